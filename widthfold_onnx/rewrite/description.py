"""Describe a fold in words and numbers, when it is made, for readers of a report."""

from __future__ import annotations

from collections.abc import Sequence

from widthfold_onnx.algebra.axis import fold_axis
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.algebra.conv_axis import ConvAxis, FoldedAxis
from widthfold_onnx.results import AxisPattern
from widthfold_onnx.rewrite.record import MOST_TAPS, FoldRecord
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.site import LinearSite


def describe(site: LinearSite, form: Reformulation) -> FoldRecord:
    """Describe the fold of a site."""
    fold = form.fold
    axes = patterns(fold, site.position_names, form.in_shape[0])
    times = f" by {form.factor}" if form.factor > 1 else ""
    filled = "zero" if site.quantization is None else "its zero point"
    channels = (*site.channels, *fold.channels(*site.channels))
    return FoldRecord(
        form=f"{form.axis}{times}, {form.form}",
        channels="{} -> {}, folded {} -> {}".format(*channels),
        fold=f"{sentence(fold, axes)}; {fold.structural_zeros():.0%} of the new weight is {filled} "
        "by structure",
        axes=axes,
    )


def patterns(fold: ConvFold, names: Sequence[str], samples: int | None) -> list[AxisPattern]:
    """Return the folded axes of a site, the batch first.

    Args:
        fold: how the site is folded.
        names: of the other axes.
        samples: extent of the batch; None for any.
    """
    batch = fold_axis(ConvAxis(length=samples, kernel=1), fold.batch, fold.batch)
    assert isinstance(batch, FoldedAxis)
    pairs = [("batch", batch), *zip(names, fold.axes, strict=True)]
    return [_pattern(name, axis) for name, axis in pairs if axis.folded]


def _pattern(name: str, folded: FoldedAxis) -> AxisPattern:
    columns = (taps.tolist() for taps in (folded.g, folded.f, folded.q, folded.k))
    return AxisPattern(
        axis=name,
        in_tile=folded.in_tile,
        out_tile=folded.out_tile,
        blocked=folded.blocked,
        in_length=folded.in_length,
        original_kernel=folded.original_kernel,
        kernel=folded.kernel,
        stride=folded.stride,
        taps=list(zip(*columns, strict=True)) if folded.k.size <= MOST_TAPS else [],
    )


def sentence(fold: ConvFold, axes: Sequence[AxisPattern]) -> str:
    """Say what a fold does, for the patterns of its folded axes."""
    before, after = fold.regrouping.before, fold.regrouping.after
    parts = []
    if before != after:
        parts.append(
            f"{before.inputs} -> {before.outputs} channels (groups: {before.group}) became "
            f"{after.inputs} -> {after.outputs} (groups: {after.group})"
        )
    for axis in axes:
        layout = "blocks" if axis.blocked else "neighbours"
        if axis.axis == "batch":
            way = "one dense group" if fold.dense else f"{axis.in_tile} groups"
            parts.append(f"every {axis.in_tile} samples became {way} of channels")
            continue
        if axis.axis in ("rows", "columns"):
            parts.append(
                f"every {axis.in_tile} {axis.axis} ({layout}) became channels of a block-diagonal "
                "weight"
            )
            continue
        sides = (
            (axis.in_tile, f"input positions ({layout})"),
            (axis.out_tile, "output positions"),
        )
        moved = " and ".join(f"{digits} {side}" for digits, side in sides if digits > 1)
        parts.append(
            f"along the {axis.axis}, {moved} became channels, and {axis.original_kernel} taps "
            f"a kernel of {axis.kernel} at stride {axis.stride}"
        )
    if fold.summed:
        parts.append(
            f"the positions of the first axis became samples, and the results of its {fold.sums} "
            "taps channels, which are shifted and added"
        )
    return "; ".join(parts)
