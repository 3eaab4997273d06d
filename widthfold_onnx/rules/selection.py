"""Choose forms of a layer: the cheapest on paper at a fixed factor, or all that a search tries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from widthfold_onnx.options import FoldOptions, FormName
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.enumeration import conv_forms, every_form, forms_at_factor
from widthfold_onnx.rules.form import Answer, Form
from widthfold_onnx.rules.layers import ConvLayer, Layer, ProductLayer
from widthfold_onnx.rules.legality import declared_extent_problem, guard_conditions, wide_problem


def preferred_form(layer: Layer, options: FoldOptions) -> Answer:
    """Return the preferred legal form at the factor of the options, or why there is none."""
    problem = wide_problem(layer, options) or _weight_problem(layer)
    if problem is not None:
        return problem
    answers = list(forms_at_factor(layer, options))
    legal = [answer for _, answer in answers if isinstance(answer, Form)]
    if legal:
        return min(legal, key=lambda form: preference(layer, form, options))
    refusals = [(axis, answer) for axis, answer in answers if isinstance(answer, Refusal)]
    if not refusals and options.form is FormName.STRIDES:
        return Refusal(Code.NO_STRIDES, "it has no stride to fold (--form strides)")
    if not refusals:
        return Refusal(Code.NO_SUCH_AXIS, f"{layer.op} folds along no axis {options.axis}")
    by_axis = nearest_refusals(refusals)
    code = next(iter(by_axis.values())).code
    return Refusal(
        code, "; ".join(f"{axis}: {refusal.reason}" for axis, refusal in by_axis.items())
    )


def preference(layer: Layer, form: Form, options: FoldOptions) -> tuple[float, ...]:
    """Return the sort key of a form at the factor of the options; the smallest is preferred.

    The order: no guard, a guard on a spatial extent, a guard on the batch, whose size mostly is 1;
    a view before a move; one axis before several; the fewest multiply-adds; the fewest moves,
    Reshapes included; the fewest bytes of data, weight and result. Among forms that fold strides
    alone, the form of the most axes comes first.
    """
    most_axes = -len(form.folded_axes) if options.form is FormName.STRIDES else 0
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


def _cost(form: Form) -> tuple[bool, int, float, int, float]:
    """Return the sort key, cheapest first; see `preference`."""
    moves = len(form.packing_moves) + len(form.unpacking_moves)
    axes = form.spec.axis.count("+")
    return (not form.is_view, axes, form.flops_ratio, moves, form.bytes_ratio)


def nearest_refusals(refusals: Sequence[tuple[str, Refusal]]) -> dict[str, Refusal]:
    """Return per axis the refusal of the form that came nearest to being legal, the nearest first.

    Folds of several axes are left out: the reasons of single axes are enough.
    """
    by_nearness = sorted(refusals, key=lambda item: item[1].nearness, reverse=True)
    nearest: dict[str, Refusal] = {}
    for axis, refusal in by_nearness:
        if "+" not in axis:
            nearest.setdefault(axis, refusal)
    return nearest


def search_problem(layer: Layer, options: FoldOptions) -> Refusal | None:
    """Refuse a layer that a search leaves alone.

    A wide layer may still gain by a lift, or an Einsum as a MatMul.
    """
    may_be_wide = _is_of_one_axis(layer) or _is_einsum(layer)
    width_refusal = None if may_be_wide else wide_problem(layer, options)
    return width_refusal or _weight_problem(layer) or declared_extent_problem(layer)


def lift_of(layer: Layer, options: FoldOptions) -> Answer:
    """Return the form that lifts a layer of one axis, and changes nothing else."""
    problem = search_problem(layer, options)
    if problem is None and _is_of_one_axis(layer):
        for _, answer in conv_forms(layer, options, (1,) * len(layer.positions), lift=1):
            if isinstance(answer, Form) and answer.spec.is_lift_alone:
                return answer
    return problem or Refusal(Code.NO_GAIN, "it has no axis to add")


def forms_to_race(layer: Layer, options: FoldOptions) -> list[Form]:
    """Return the forms without a guard if they suffice, else every legal form.

    They suffice if one of them folds, or if all extents are fixed. A guard keeps the weights of
    both branches, and gains at some sizes only.
    """
    unguarded = every_form(layer, options, folds_open_axes=False)
    forms = [form for form in unguarded if not guard_conditions(layer, form)]
    has_fold = any(form.folded_axes for form in forms)
    return forms if has_fold or None not in layer.fixed_shape else list(every_form(layer, options))


def _is_of_one_axis(layer: Layer) -> TypeGuard[ConvLayer]:
    """Check whether it is a Conv of floats along one axis.

    A lift gives it another one, and so the runtime's blocked kernels, which are for two axes. That
    may pay at any width.
    """
    return isinstance(layer, ConvLayer) and len(layer.axes) == 1 and layer.quantization is None


def _is_einsum(layer: Layer) -> bool:
    """Check whether it is an Einsum, which may be a MatMul."""
    return isinstance(layer, ProductLayer) and layer.labels is not None
