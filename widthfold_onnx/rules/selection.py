"""Choose the form of a layer at a fixed factor: the cheapest on paper, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from widthfold_onnx.options import STRIDES_ALONE, FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.enumeration import forms_at_factor
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import ConvLayer, Layer, ProductLayer
from widthfold_onnx.rules.legality import guard_conditions


def preferred_form(layer: Layer, options: FoldOptions, factor: int) -> Form | Refusal:
    """Return the preferred legal form at a factor, or why there is none."""
    problem = width_problem(layer, options) or weight_problem(layer)
    if problem is not None:
        return problem
    outcomes = list(forms_at_factor(layer, options, factor))
    legal = [r for _, r in outcomes if isinstance(r, Form)]
    if legal:
        return min(legal, key=lambda form: preference(layer, form, factor))
    refusals = [(axis, r) for axis, r in outcomes if isinstance(r, Refusal)]
    if not refusals and factor == STRIDES_ALONE:
        return Refusal(Code.NO_STRIDES, "it has no stride to fold (--form strides)")
    if not refusals:
        return Refusal(Code.NO_SUCH_AXIS, f"{layer.op} folds along no axis {options.axis}")
    by_axis = furthest(refusals)
    code = next(iter(by_axis.values())).code
    return Refusal(code, "; ".join(f"{axis}: {r.reason}" for axis, r in by_axis.items()))


def preference(layer: Layer, form: Form, factor: int) -> tuple[float, ...]:
    """Return the sort key of a form at a factor; the smallest is preferred.

    The order: no guard, a guard on a spatial extent, a guard on the batch, whose size mostly is 1;
    a view before a move; one axis before several; the fewest multiply-adds; the fewest moves,
    Reshapes included; the fewest bytes of data, weight and result. Among forms that fold strides
    alone, the form of the most axes comes first.
    """
    most_axes = -len(form.folded_axes) if factor == STRIDES_ALONE else 0
    return (_guard_penalty(layer, form), most_axes, *_cost(form))


def _guard_penalty(layer: Layer, form: Form) -> int:
    """Return 0 without a guard, 1 for a guard on a later axis of the data, 2 on its first axis."""
    return max((2 - min(axis, 1) for axis in guard_conditions(layer, form)), default=0)


def search_problem(layer: Layer, options: FoldOptions) -> Refusal | None:
    """Refuse a layer that a search leaves alone.

    A wide layer may still gain by a lift, or an Einsum as a MatMul.
    """
    may_be_wide = is_of_one_axis(layer) or is_einsum(layer)
    width_refusal = None if may_be_wide else width_problem(layer, options)
    return width_refusal or weight_problem(layer)


def weight_problem(layer: Layer) -> Refusal | None:
    """Refuse a layer whose weight holds NaN or Inf.

    NaN or Inf times a zero of the padding is NaN. Kernels differ in which of these products they
    compute, and so do a Conv and its fold.
    """
    if layer.has_finite_weight:
        return None
    return Refusal(Code.WEIGHT_NOT_FINITE, "the weight holds NaN or Inf")


def width_problem(layer: Layer, options: FoldOptions) -> Refusal | None:
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


def is_of_one_axis(layer: Layer) -> TypeGuard[ConvLayer]:
    """Check whether it is a Conv of floats along one axis.

    A lift gives it another one, and so the runtime's blocked kernels, which are for two axes. That
    may pay at any width.
    """
    return isinstance(layer, ConvLayer) and len(layer.axes) == 1 and layer.quantization is None


def is_einsum(layer: Layer) -> TypeGuard[ProductLayer]:
    """Check whether it is an Einsum, which may be a MatMul."""
    return isinstance(layer, ProductLayer) and layer.labels is not None


def _cost(r: Form) -> tuple[bool, int, float, int, float]:
    """Return the sort key, cheapest first; see `preference`."""
    steps = len(r.folding) + len(r.unfolding)
    return (not r.is_view, r.spec.axis.count("+"), r.flops_ratio, steps, r.bytes_ratio)


def furthest(refusals: Sequence[tuple[str, Refusal]]) -> dict[str, Refusal]:
    """Return per axis the refusal of the candidate that got furthest, the best one first.

    Folds of several axes are left out: the reasons of single axes are enough.
    """
    best: dict[str, Refusal] = {}
    for axis, refusal in refusals:
        previous = best.get(axis)
        if previous is None or refusal.code.progress > previous.code.progress:
            best[axis] = refusal
    single = {axis: refusal for axis, refusal in best.items() if "+" not in axis}
    return dict(sorted(single.items(), key=lambda item: -item[1].code.progress))
