"""Choose forms of a layer: the cheapest on paper at a fixed factor, or all that a search tries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

from widthfold_onnx.options import FACTORS, STRIDES_ALONE, AxisName, FoldOptions, Layout
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.enumeration import (
    AxisForm,
    Factors,
    conv_forms,
    factorizations,
    forms_at_factor,
    groupings,
    summed_taps,
)
from widthfold_onnx.rules.form import Form, FormSpec
from widthfold_onnx.rules.layers import ConvLayer, Layer, ProductLayer
from widthfold_onnx.rules.legality import declared_extent_problem, guard_conditions, legal_form
from widthfold_onnx.rules.row_fold import RowFold

MAX_WHOLE = 64
"""Largest number of positions of an axis that may become channels as a whole."""

ORDERS = {Layout.AUTO: (False, True), Layout.NCHW: (False,), Layout.NHWC: (True,)}
"""Channel orders to try by layout: tile-major or not."""

LIFTED_RANKS = (1, 2)
"""Spatial axes of a Conv that may be lifted. The CPU's blocked kernels exist for two axes only: a
Conv of one axis is lifted to reach them, one of two to avoid them."""


def preferred_form(layer: Layer, options: FoldOptions, factor: int) -> Form | Refusal:
    """Return the preferred legal form at a factor, or why there is none."""
    problem = wide_problem(layer, options) or _weight_problem(layer)
    if problem is not None:
        return problem
    forms = list(forms_at_factor(layer, options, factor))
    legal = [form for _, form in forms if isinstance(form, Form)]
    if legal:
        return min(legal, key=lambda form: preference(layer, form, factor))
    refusals = [(axis, form) for axis, form in forms if isinstance(form, Refusal)]
    if not refusals and factor == STRIDES_ALONE:
        return Refusal(Code.NO_STRIDES, "it has no stride to fold (--form strides)")
    if not refusals:
        return Refusal(Code.NO_SUCH_AXIS, f"{layer.op} folds along no axis {options.axis}")
    by_axis = furthest_refusals(refusals)
    code = next(iter(by_axis.values())).code
    return Refusal(
        code, "; ".join(f"{axis}: {refusal.reason}" for axis, refusal in by_axis.items())
    )


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


def _weight_problem(layer: Layer) -> Refusal | None:
    """Refuse a layer whose weight holds NaN or Inf.

    NaN or Inf times a zero of the padding is NaN. Kernels differ in which of these products they
    compute, and so do a Conv and its fold.
    """
    if layer.has_finite_weight:
        return None
    return Refusal(Code.WEIGHT_NOT_FINITE, "the weight holds NaN or Inf")


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


def _cost(form: Form) -> tuple[bool, int, float, int, float]:
    """Return the sort key, cheapest first; see `preference`."""
    steps = len(form.folding) + len(form.unfolding)
    axes = form.spec.axis.count("+")
    return (not form.is_view, axes, form.flops_ratio, steps, form.bytes_ratio)


def furthest_refusals(refusals: Sequence[tuple[str, Refusal]]) -> dict[str, Refusal]:
    """Return per axis the refusal of the candidate that got furthest, the best one first.

    Folds of several axes are left out: the reasons of single axes are enough.
    """
    best: dict[str, Refusal] = {}
    for axis, refusal in refusals:
        previous = best.get(axis)
        if previous is None or refusal.code.order > previous.code.order:
            best[axis] = refusal
    single = {axis: refusal for axis, refusal in best.items() if "+" not in axis}
    return dict(sorted(single.items(), key=lambda item: -item[1].code.order))


def search_problem(layer: Layer, options: FoldOptions) -> Refusal | None:
    """Refuse a layer that a search leaves alone.

    A wide layer may still gain by a lift, or an Einsum as a MatMul.
    """
    may_be_wide = _is_of_one_axis(layer) or _is_einsum(layer)
    width_refusal = None if may_be_wide else wide_problem(layer, options)
    return width_refusal or _weight_problem(layer) or declared_extent_problem(layer)


def lift_of(layer: Layer, options: FoldOptions) -> Form | Refusal:
    """Return the form that lifts a layer of one axis, and changes nothing else."""
    problem = search_problem(layer, options)
    if problem is None and _is_of_one_axis(layer):
        for form in _legal(conv_forms(layer, options, (1,) * len(layer.positions), lift=1)):
            if form.spec.is_lift_alone:
                return form
    return problem or Refusal(Code.NO_GAIN, "it has no axis to add")


def forms_to_race(layer: Layer, options: FoldOptions) -> list[Form]:
    """Return the legal forms of a layer; if one of them folds fixed extents, those without a guard.

    A guard keeps the weights of both branches, and gains at some sizes only.
    """
    unguarded = every_form(layer, options, folds_open_axes=False)
    forms = [form for form in unguarded if not guard_conditions(layer, form)]
    has_fold = any(form.folded_axes for form in forms)
    return forms if has_fold or None not in layer.static else list(every_form(layer, options))


def every_form(
    layer: Layer, options: FoldOptions, *, folds_open_axes: bool = True
) -> Iterator[Form]:
    """Yield every legal form of a layer, each once.

    Extents need not be divisible: the cost of extending and cutting is measured with the form. If
    the options name an axis, channels and groups stay as they are. A wide layer, which is of one
    axis, is lifted only.

    Args:
        layer: the layer.
        options: layout, axis and limits are used.
        folds_open_axes: whether open axes of a Conv are folded by a factor, which needs a guard.
            With an open batch these are two thirds of the forms (basic-pitch).
    """
    if isinstance(layer, ProductLayer):
        yield from _of_product(layer, options)
        return
    assert isinstance(layer, ConvLayer)
    options = replace(options, ragged=True)
    unfolded = (1,) * len(layer.positions)
    if wide_problem(layer, options) is not None:
        yield from _legal(conv_forms(layer, options, unfolded, lift=1))
        return
    full_extents = [n for n in layer.positions[1:] if n is not None and n <= MAX_WHOLE]
    # A lifted Conv is not computed by the channels-last kernels, so that order is not tried.
    ways = [(0, order) for order in ORDERS[options.layout]]
    ways += [(1, False)] if len(layer.axes) in LIFTED_RANKS else []
    # A factor equal to the dilation removes it: every tile reads positions of its own tile only.
    dilations = [axis.dilation for axis in layer.axes if axis.dilation <= FACTORS[-1]]
    specs: set[FormSpec] = set()
    for factor in sorted({1, *FACTORS, *full_extents, *dilations}):
        for factors in factorizations(options.axis, factor, len(layer.axes)):
            if not folds_open_axes and _folds_open_axis(layer, factors):
                continue
            for lift, order in ways:
                forms = conv_forms(
                    layer, options, factors, lift=lift, tile_major=order, one_sided=True
                )
                for form in _legal(forms):
                    spec = form.spec
                    if spec not in specs:
                        specs.add(spec)
                        yield form
    if options.axis is AxisName.AUTO:
        yield from summed_taps(layer, options)
        for grouping in groupings(layer):
            yield from _legal(conv_forms(layer, options, unfolded, grouping=grouping))


def _folds_open_axis(layer: ConvLayer, factors: Factors) -> bool:
    """Check whether factors fold an open axis: a factor would have to divide its extent."""
    batch, _, *extents = layer.static
    pairs = zip((batch, *extents), factors, strict=True)
    return any(extent is None and factor > 1 for extent, factor in pairs)


def _of_product(layer: ProductLayer, options: FoldOptions) -> Iterator[Form]:
    """Yield the legal forms at the usual factors, or if there are none at any factor up to them.

    An Einsum is also tried as a MatMul, and nothing else if it is wide.
    """
    if _is_einsum(layer):
        plain_form = legal_form(RowFold.smallest(layer, options, 1))
        yield from _legal([(layer.position_names[0], plain_form)])
        if wide_problem(layer, options) is not None:
            return
    for factors in (FACTORS, range(2, FACTORS[-1] + 1)):
        legal = [f for factor in factors for f in _legal(forms_at_factor(layer, options, factor))]
        if legal:
            yield from legal
            return


def _legal(forms: Iterable[AxisForm]) -> Iterator[Form]:
    """Yield the forms that are legal."""
    for _, form in forms:
        if isinstance(form, Form):
            yield form


def _is_of_one_axis(layer: Layer) -> TypeGuard[ConvLayer]:
    """Check whether it is a Conv of floats along one axis.

    A lift gives it another one, and so the runtime's blocked kernels, which are for two axes. That
    may pay at any width.
    """
    return isinstance(layer, ConvLayer) and len(layer.axes) == 1 and layer.quantization is None


def _is_einsum(layer: Layer) -> TypeGuard[ProductLayer]:
    """Check whether it is an Einsum, which may be a MatMul."""
    return isinstance(layer, ProductLayer) and layer.labels is not None
