"""Leave extents open that are only assumed: if a form is right for others, the Reshapes infer them.

Otherwise any reader of the model, such as a second run, would take an assumed extent for a fact. A
form that is extended, has SAME padding or folds a whole axis may be right for the assumed extent
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from widthfold_onnx.fold.axis import fold_axis
from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.fold.layout import Packing, can_stand_for, pack
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.base import LinearSite
from widthfold_onnx.rules.windowed_form import WindowedForm


def guessed(site: LinearSite, fold: ConvFold) -> frozenset[int]:
    """Return the folded axes whose extent is only assumed."""
    return frozenset(
        i
        for i, (plan, fixed) in enumerate(zip(site.planned, site.static, strict=True))
        if fixed is None and plan is not None and i != 1
        if (fold.batch > 1 if i == 0 else fold.axes[i - 2].folded)
    )


def opened(site: LinearSite, form: WindowedForm, shapes: Sequence[Dims]) -> WindowedForm:
    """Return the form with open extents in its Reshapes, where it is right for other extents too.

    Args:
        site: the site that is folded.
        form: its form with all extents written.
        shapes: extents of its input and output that may be written.
    """
    assumed = guessed(site, form.fold)
    if not assumed:
        return form
    form = replace(form, bound=frozenset(i for i in assumed if _is_bound(site, form, i)))
    free = assumed - form.bound
    wanted = (tuple(None if i in free else e for i, e in enumerate(shape)) for shape in shapes)
    result = replace(form, written=packings_of(form.fold, *wanted))
    pairs = zip(result.moves, form.moves, strict=True)
    fits = all(can_stand_for(*pair) for pair in pairs)
    return replace(result if fits else form, opens=fits and not form.bound)


def _is_bound(site: LinearSite, form: WindowedForm, axis: int) -> bool:
    """Check whether a form is right only for the planned extent of an axis."""
    before, after = (site.planned[axis], site.output[axis]), (form.in_shape, form.out_shape)
    if before != tuple(shape[axis] for shape in after) or axis - 2 in site.sized_pads:
        return True
    if axis == 0:
        return False
    known = form.fold.axes[axis - 2]
    free = replace(site.axes[axis - 2], length=None)
    every = fold_axis(free, known.out_digits, known.in_digits, blocked=known.blocked)
    return isinstance(every, Refusal) or every.geometry != known.geometry


def packings_of(fold: ConvFold, in_shape: Dims, out_shape: Dims) -> tuple[Packing, Packing]:
    """Return how input and output of these extents are packed."""
    digits = [(axis.in_digits, axis.blocked) for axis in fold.axes]
    before = pack(in_shape, digits, group=fold.group, batch=fold.batch, lift=fold.lift)
    digits = [(axis.out_digits, axis.blocked) for axis in fold.axes]
    after = pack(out_shape, digits, group=fold.group, batch=fold.batch, lift=fold.lift)
    return before, after
