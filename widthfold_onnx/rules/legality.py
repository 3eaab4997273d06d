"""Check whether a Conv may be folded: divisibility, non-finite policy, open extents, growth.

Sizes are predicted before anything is built.
"""

from __future__ import annotations

import math
from dataclasses import replace

from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.fold.layout import Packing, pack
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.options import FoldOptions, NonFinite
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.assumed import wrong_elsewhere
from widthfold_onnx.rules.base import LinearSite, Reformulation
from widthfold_onnx.rules.guarding import guard_problem
from widthfold_onnx.rules.windowed import WindowedSite, axis_names
from widthfold_onnx.rules.windowed_form import WindowedForm

MAX_WEIGHT_BYTES = 256 << 20
# Value of an unknown spatial extent when sizes are compared; an unknown batch counts as 1.
NOMINAL_EXTENT = 64


def judge(
    site: WindowedSite, options: FoldOptions, fold: ConvFold, label: str, factor: int, kind: str
) -> WindowedForm | Refusal:
    """Check divisibility, non-finite policy and limits; predict sizes before building anything.

    Args:
        site: the site to fold.
        options: policy and limits.
        fold: the fold.
        label: names of the folded axes.
        factor: positions that become channels.
        kind: how each axis is folded.
    """
    unknown = _unknown(site, fold)
    if unknown is not None and not (options.guard_shapes and site.quantization is None):
        return unknown
    in_shape = _extended(site, fold, output=False)
    out_shape = _extended(site, fold, output=True)
    for actual, extended in ((site.planned, in_shape), (site.output, out_shape)):
        if actual != extended and not options.ragged:
            axis = next(i for i, (a, e) in enumerate(zip(actual, extended, strict=True)) if a != e)
            return Refusal(
                Code.FACTOR_DOES_NOT_DIVIDE,
                f"{'input' if actual is site.planned else 'output'} extent {actual[axis]} would "
                f"have to be {extended[axis]}",
            )
    known = site.quantization
    if known is not None and not known.extends and in_shape != site.planned:
        return Refusal(Code.EXTENSION_UNSUPPORTED, "the operator set has no Pad of integers")
    if known is not None and not known.cuts and out_shape != site.output:
        return Refusal(
            Code.QUANTIZED,
            "its result would be cut, and it is not quantized right behind that: the runtime would "
            "no longer compute in integers",
        )
    if site.is_dequantized and fold.group > 1:
        fold = replace(fold, digit_major=False)  # no state describes digit-major groups
    if fold.dense and not (options.mix_samples or site.is_finite):
        return Refusal(
            Code.MIXES_SAMPLES,
            "one dense group lets a NaN of one sample reach others (--mix-samples allows it)",
        )
    after = fold.regrouping.after
    if fold.regrouping.leaves_out and site.groups % after.group:
        return Refusal(Code.JOINED_CHANNELS, f"the weight is not zero between {after.group} groups")
    zeros = fold.structural_zeros()
    if zeros and options.nonfinite is NonFinite.REFUSE and not site.is_finite:
        return Refusal(
            Code.STRUCTURAL_ZEROS,
            f"{zeros:.0%} of the weight would be zeros that spread Inf and NaN",
        )
    if fold.regrouping.leaves_out and options.nonfinite is NonFinite.REFUSE:
        return Refusal(Code.ZEROS_LEFT_OUT, "zeros that spread Inf and NaN would be left out")
    result = _form(site, fold, label, factor, kind, in_shape, out_shape, assumed=False)
    problem = wrong_elsewhere(site, options, result)
    if problem is not None and options.guard_shapes:
        # With all assumed extents written and tested, Reshapes have fewer to infer.
        result = _form(site, fold, label, factor, kind, in_shape, out_shape, assumed=True)
        problem = wrong_elsewhere(site, options, result)
    problem = problem or too_large(site, options, result)
    return problem or guard_problem(site, result, options) or result


def _unknown(site: WindowedSite, fold: ConvFold) -> Refusal | None:
    """Refuse a fold that needs to divide an unknown extent."""
    names = axis_names(len(site.axes))
    for axis, digits in enumerate(fold.in_state.factors):
        if digits > 1 and site.planned[axis] is None:
            return Refusal(
                Code.UNKNOWN_EXTENT,
                f"the extent of the {names[axis]} is not known; {digits} would have to divide it",
            )
    return None


def _form(
    site: WindowedSite,
    fold: ConvFold,
    label: str,
    factor: int,
    kind: str,
    in_shape: Dims,
    out_shape: Dims,
    *,
    assumed: bool,
) -> WindowedForm:
    """Return the form of a fold; with `assumed` extents that are only assumed are written too."""
    packings = [
        _packed(fold, _kept(site, shape, fold, assumed=assumed), output=output)
        for shape, output in ((in_shape, False), (out_shape, True))
    ]
    fits = (in_shape, out_shape) == (site.planned, site.output)
    views = all(p.is_view for p in packings)
    produced = (out_shape[0], 1, *out_shape[2:])
    multiplied = (site.positions[0], 1, *site.positions[1:])
    return WindowedForm(
        fold=replace(fold, digit_major=fold.digit_major and not views),
        input=packings[0],
        output=packings[1],
        in_shape=in_shape,
        out_shape=out_shape,
        axis=label,
        factor=factor,
        is_view=views and fits,
        kind=kind,
        flops_ratio=fold.flops_growth(elements(produced) / elements(multiplied)),
        bytes_ratio=_bytes_growth(site, fold, in_shape, out_shape),
    )


def _packed(fold: ConvFold, shape: Dims, *, output: bool) -> Packing:
    """Return how the input or output of these extents is packed."""
    digits = [(a.out_digits if output else a.in_digits, a.blocked) for a in fold.axes]
    return pack(shape, digits, group=fold.group, batch=fold.batch, lift=fold.lift)


def _extended(site: WindowedSite, fold: ConvFold, *, output: bool) -> Dims:
    """Return the shape of the input or output after extension to the extents of the fold."""
    shape = site.output if output else site.planned
    lengths = [a.out_length if output else a.in_length for a in fold.axes]
    batch = None if shape[0] is None else -(-shape[0] // fold.batch) * fold.batch
    spatial = (s if e is None else e for s, e in zip(shape[2:], lengths, strict=True))
    return (batch, fold.regrouping.channels(*site.channels)[output], *spatial)


def _kept(site: WindowedSite, shape: Dims, fold: ConvFold, *, assumed: bool) -> Dims:
    """Return the shape to write into the graph: of kept axes only static extents, or `assumed`."""
    batch = shape[0] if assumed or fold.batch > 1 or site.static[0] is not None else None
    spatial = (
        extent if assumed or axis.folded or fixed is not None else None
        for extent, axis, fixed in zip(shape[2:], fold.axes, site.static[2:], strict=True)
    )
    return (batch, shape[1], *spatial)


def too_large(site: LinearSite, options: FoldOptions, result: Reformulation) -> Refusal | None:
    """Refuse a form that grows past the limits."""
    size = math.prod(result.fold.weight_shape(site.weight_shape)) * site.itemsize
    if size > MAX_WEIGHT_BYTES:
        return Refusal(
            Code.WEIGHT_TOO_LARGE,
            f"the weight would have {size >> 20} MiB; the limit is {MAX_WEIGHT_BYTES >> 20} MiB",
        )
    if result.bytes_ratio > options.max_bytes_growth:
        return Refusal(
            Code.BYTES_GROWTH,
            f"input, weight and output would grow {result.bytes_ratio:.1f}x; "
            f"--max-bytes-growth is {options.max_bytes_growth:g}",
        )
    if result.flops_ratio > options.max_flops_growth:
        return Refusal(
            Code.FLOPS_GROWTH,
            f"multiply-adds would grow {result.flops_ratio:.1f}x; "
            f"--max-flops-growth is {options.max_flops_growth:g}",
        )
    return None


def _bytes_growth(site: WindowedSite, fold: ConvFold, in_shape: Dims, out_shape: Dims) -> float:
    weight = math.prod(site.weight_shape)
    before = elements(site.planned) + weight + elements(site.output)
    after = elements(in_shape) + weight * fold.weight_growth() + elements(out_shape)
    return after / before


def elements(shape: Dims) -> int:
    """Return the elements of a tensor, for comparisons: unknown extents are nominal."""
    nominal = (1 if i == 0 else NOMINAL_EXTENT for i in range(len(shape)))
    return math.prod(n if e is None else e for e, n in zip(shape, nominal, strict=True))
