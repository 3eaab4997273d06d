"""Describes a fold in words and numbers, for readers of a report."""

from __future__ import annotations

from collections.abc import Sequence

from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.fold.conv_axis import ConvAxis, FoldedAxis
from widthfold_onnx.results import AxisPattern
from widthfold_onnx.rules.match.site import axis_names


def patterns(fold: ConvFold, axes: Sequence[ConvAxis], samples: int | None) -> list[AxisPattern]:
    """Return the folded axes of a site, the batch first.

    Args:
        fold: how the Conv was folded.
        axes: geometry of the original.
        samples: batch that was planned with; None for any.
    """
    names = axis_names(len(axes))
    result = []
    if fold.batch > 1:
        result.append(
            AxisPattern(
                axis=names[0],
                in_tile=fold.batch,
                out_tile=fold.batch,
                blocked=False,
                in_length=samples,
                original_kernel=1,
                kernel=1,
                stride=1,
                taps=[(b, b, 0, 0) for b in range(fold.batch)],
            )
        )
    for name, axis, folded in zip(names[2:], axes, fold.axes, strict=True):
        if folded.folded:
            result.append(pattern(name, axis, folded))
    return result


def pattern(name: str, axis: ConvAxis, folded: FoldedAxis) -> AxisPattern:
    """Describe one folded axis."""
    columns = (folded.g, folded.f, folded.q, folded.k)
    return AxisPattern(
        axis=name,
        in_tile=folded.in_tile,
        out_tile=folded.out_tile,
        blocked=folded.blocked,
        in_length=axis.length,
        original_kernel=folded.original_kernel,
        kernel=folded.kernel,
        stride=folded.stride,
        taps=[(int(g), int(f), int(q), int(k)) for g, f, q, k in zip(*columns, strict=True)],
    )


def sentence(fold: ConvFold, folded: Sequence[AxisPattern]) -> str:
    """Describe a fold in one sentence."""
    before, after = fold.regrouping.before, fold.regrouping.after
    parts = []
    if before != after:
        parts.append(
            f"{before.inputs} -> {before.outputs} channels (groups: {before.group}) became "
            f"{after.inputs} -> {after.outputs} (groups: {after.group})"
        )
    for axis in folded:
        if axis.axis == "batch":
            way = "one dense group" if fold.dense else f"{axis.in_tile} groups"
            parts.append(f"every {axis.in_tile} samples became {way} of channels")
            continue
        layout = "blocks" if axis.blocked else "neighbours"
        sides = (
            (axis.in_tile, f"input positions ({layout})"),
            (axis.out_tile, "output positions"),
        )
        moved = " and ".join(f"{digits} {side}" for digits, side in sides if digits > 1)
        parts.append(
            f"along the {axis.axis}, {moved} became channels, and {axis.original_kernel} taps "
            f"a kernel of {axis.kernel} at stride {axis.stride}"
        )
    return (
        f"{'; '.join(parts)}; {fold.structural_zeros():.0%} of the new weight is zero by structure"
    )
