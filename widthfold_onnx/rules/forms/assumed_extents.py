"""Refuse forms that would go wrong unnoticed at other extents than the assumed ones.

The Reshapes state every assumed extent that is folded, so that a fold fails at any other.
"""

from __future__ import annotations

from dataclasses import replace

from widthfold_onnx.fold.axis import fold_axis
from widthfold_onnx.fold.packing import Reshape, pixel_shuffle
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.site import LinearSite


def wrong_elsewhere(site: LinearSite, options: FoldOptions, form: Reformulation) -> Refusal | None:
    """Refuse a form that constant Reshapes cannot express, or whose Reshapes miss another extent.

    A Reshape copies dimensions and infers one. If an assumed extent is folded without a guard, the
    first Reshape must fail when the real extent differs, and so may not infer. If the output alone
    is folded, no Reshape sees the input: at a stride the Conv has the same number of outputs for
    several extents, and a pixel shuffle accepts any number of them, which is right unless the form
    is bound to the assumed extent.
    """
    fold, guarded = form.fold, options.guard_shapes
    if not guarded and any(not fold.axes[i].folded for i in site.sized_pads):
        return Refusal(
            Code.UNGUARDED_EXTENT,
            "SAME padding at a stride depends on an assumed extent that is not folded",
        )
    inferred = [s.inferred for s in (*form.folding, *form.unfolding) if isinstance(s, Reshape)]
    if max(inferred, default=0) > 1:
        return Refusal(
            Code.SEVERAL_UNKNOWN_EXTENTS,
            "more than one extent beside the folded axis is not known; a Reshape infers one",
        )
    assumed = {i for i in form.folded if site.static[i] is None and form.stated[i] is not None}
    is_shuffled = pixel_shuffle(form.unfolding) is not None
    unseen = not site.is_product and any(
        fold.axes[i - 2].in_tile == 1
        and (fold.axes[i - 2].stride > 1 or (is_shuffled and _is_bound(site, form, i)))
        for i in assumed - {0}
    )
    if assumed and not guarded and (len(assumed) > 1 or inferred[0] or unseen):
        return Refusal(
            Code.UNGUARDED_EXTENT,
            "at another size than the assumed one the fold would go wrong unnoticed",
        )
    return None


def _is_bound(site: LinearSite, form: Reformulation, axis: int) -> bool:
    """Check whether a form is right only for the planned extent of a spatial axis."""
    known = form.fold.axes[axis - 2]
    free = replace(site.axes[axis - 2], length=None)
    every = fold_axis(free, known.out_tile, known.in_tile, blocked=known.blocked)
    is_same = not isinstance(every, Refusal) and every.geometry == known.geometry
    return axis - 2 in site.sized_pads or not is_same
