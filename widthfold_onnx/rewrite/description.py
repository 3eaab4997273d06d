"""Describe a fold for readers of a report, when the fold is made."""

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
    names = site.position_names
    times = f" by {form.factor}" if form.factor > 1 else ""
    channels = (*site.channels, *form.fold.channels(*site.channels))
    return FoldRecord(
        form=f"{form.axis}{times}, {form.form}",
        channels="{} -> {}, folded {} -> {}".format(*channels),
        axes=patterns(form.fold, names, form.in_shape[0]),
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
