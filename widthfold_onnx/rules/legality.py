"""Check whether a form is legal: integers, samples, non-finite policy, open extents, growth.

Sizes are predicted before anything is built. Reshapes state no open extent: they copy it, or infer
it. A form may need more of such an extent, such as that a tile divides it: then an If tests the
extent before it runs the folded nodes.
"""

from __future__ import annotations

import math

from widthfold_onnx.algebra.axis import NO_CONDITION, Congruence
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.algebra.packing import inferred
from widthfold_onnx.arrays import Dims
from widthfold_onnx.options import FoldOptions, NonFinite
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.form import SEVERAL_UNKNOWN_EXTENTS, Answer, Form, ProposedFold
from widthfold_onnx.rules.layers import ConvLayer, Layer
from widthfold_onnx.rules.quantization import runtime_moves_dequantizer

MAX_WEIGHT_BYTES = 256 << 20


def legal_form(proposal: ProposedFold) -> Answer:
    """Return the form of a fold, or why it is not legal under policy and limits."""
    layer, options = proposal.layer, proposal.options
    shapes = proposal.extended_shapes()
    if isinstance(shapes, Refusal):
        return shapes
    problem = _integers_problem(layer, shapes)
    if problem is None and not options.mix_samples and not layer.is_finite:
        problem = proposal.mixing_problem()
    problem = problem or _spread_problem(layer, options, proposal.fold)
    problem = problem or declared_extent_problem(layer)
    if problem is not None:
        return problem
    form = proposal.form(shapes)
    return _open_extents_problem(layer, form) or _growth_problem(layer, options, form) or form


def _integers_problem(layer: Layer, shapes: tuple[Dims, Dims]) -> Refusal | None:
    """Refuse to extend integers without a Pad, and what would no longer be computed in integers."""
    quantization = layer.quantization
    if quantization is None:
        return None
    if not quantization.extends and shapes[0] != layer.planned_shape:
        return Refusal(Code.EXTENSION_UNSUPPORTED, "the operator set has no Pad of integers")
    if not quantization.cuts and shapes[1] != layer.output_shape:
        return Refusal(
            Code.QUANTIZED,
            "its result would be cut, and it is not quantized right behind that: the runtime would "
            "no longer compute in integers",
        )
    return None


def _spread_problem(layer: Layer, options: FoldOptions, fold: ConvFold) -> Refusal | None:
    """Refuse structural zeros that spread Inf and NaN, and groups that drop nonzero weights."""
    strict = options.nonfinite is NonFinite.REFUSE
    groups = fold.regrouping.result.group
    if fold.regrouping.leaves_out and layer.weight_groups % groups:
        return Refusal(Code.JOINED_CHANNELS, f"the weight is not zero between {groups} groups")
    zeros = fold.structural_zeros()
    if zeros and strict and not layer.is_finite:
        return Refusal(
            Code.STRUCTURAL_ZEROS,
            f"{zeros:.0%} of the weight would be zeros that spread Inf and NaN",
        )
    if fold.regrouping.leaves_out and strict:
        return Refusal(Code.ZEROS_LEFT_OUT, "zeros that spread Inf and NaN would be left out")
    return None


def _growth_problem(layer: Layer, options: FoldOptions, form: Form) -> Refusal | None:
    """Refuse a form that grows past the limits."""
    size = math.prod(form.fold.weight_shape(layer.weight_shape)) * layer.itemsize
    if size > MAX_WEIGHT_BYTES:
        return Refusal(
            Code.WEIGHT_TOO_LARGE,
            f"the weight would have {size >> 20} MiB; the limit is {MAX_WEIGHT_BYTES >> 20} MiB",
        )
    if form.bytes_ratio > options.max_bytes_growth:
        return Refusal(
            Code.BYTES_GROWTH,
            f"input, weight and output would grow {form.bytes_ratio:.1f}x; "
            f"--max-bytes-growth is {options.max_bytes_growth:g}",
        )
    if form.flops_ratio > options.max_flops_growth:
        return Refusal(
            Code.FLOPS_GROWTH,
            f"multiply-adds would grow {form.flops_ratio:.1f}x; "
            f"--max-flops-growth is {options.max_flops_growth:g}",
        )
    return None


def wide_problem(layer: Layer, options: FoldOptions) -> Refusal | None:
    """Refuse a layer whose input and output channels fill the lanes already, in every group."""
    inputs, outputs = (channels // layer.group for channels in layer.channels)
    if min(inputs, outputs) < options.max_channels:
        return None
    suffix = " per group" if layer.group > 1 else ""
    return Refusal(
        Code.ALREADY_WIDE,
        f"{inputs} -> {outputs} channels{suffix}; both sides have at least "
        f"{options.max_channels} (--max-channels)",
    )


EXTENTS = "extents"
"""Name of the property that a guard tests, in models and reports."""

GUARD_OPSET = 10
"""First operator set with a Mod (ONNX changelog)."""


def guard_conditions(layer: Layer, form: Form) -> dict[int, Congruence]:
    """Return the conditions on the extents of the data, by axis of the data as it is stored."""
    axes = zip(layer.stored_axes, layer.fixed_shape, form.conditions, strict=True)
    return {axis: c for axis, extent, c in axes if extent is None and c != NO_CONDITION}


def guard_problem(layer: Layer) -> Refusal | None:
    """Return why no guard can stand around a layer: its operator set, or data no If can read."""
    if layer.opset < GUARD_OPSET:
        return Refusal(
            Code.OPSET_TOO_OLD, f"opset {layer.opset} is below {GUARD_OPSET}, which the guard needs"
        )
    if runtime_moves_dequantizer(layer.data):
        return Refusal(
            Code.GUARD_NOT_LOADABLE,
            "it needs a guard, and its data comes from a DequantizeLinear through moves: "
            "ONNX Runtime aborts while it loads an If that captures it",
        )
    return None


def declared_extent_problem(layer: Layer) -> Refusal | None:
    """Refuse all forms of a layer whose data is declared with an extent that may not hold."""
    declared = layer.data.shape or ()
    for axis, extent in zip(layer.stored_axes, layer.fixed_shape, strict=True):
        if extent is None and axis < len(declared) and isinstance(declared[axis], int):
            return Refusal(
                Code.UNKNOWN_EXTENT,
                f"its data is declared with an extent of {declared[axis]}, which other iterations "
                "of a loop need not have, and the runtime would take it for given",
            )
    return None


def _open_extents_problem(layer: Layer, form: Form) -> Refusal | None:
    """Refuse a form that constant Reshapes cannot express, or that needs a guard where none can be.

    A Reshape copies extents that keep their axis, and infers one more. A DepthToSpace takes any.
    """
    shuffles = isinstance(layer, ConvLayer) and layer.shuffles
    if inferred(form.packing_moves) > 1 or inferred(form.unpacking_moves, shuffles=shuffles) > 1:
        return SEVERAL_UNKNOWN_EXTENTS
    return guard_problem(layer) if guard_conditions(layer, form) else None
