"""Describes the sizes of a run: those that were assumed, and the gain at each."""

from __future__ import annotations

from collections.abc import Sequence

from widthfold_onnx.reports.description import Column, Line, Table, tabulated
from widthfold_onnx.reports.words import gain, shapes
from widthfold_onnx.results import AssumedSizes, SizeGain

GAINS: tuple[Column[SizeGain], ...] = (
    Column("inputs", lambda row: shapes(row.shapes)),
    Column("original ms", lambda row: "" if row.original_ms is None else f"{row.original_ms:.3f}"),
    Column("speed-up", lambda row: "" if row.gain is None else gain(row.gain)),
    Column("verdict", lambda row: row.verdict or "not timed"),
    Column("note", lambda row: row.note, sentences=True),
)


def table(rows: Sequence[SizeGain]) -> list[Table]:
    """Return a row for each size; no table for one size, which the summary tells."""
    return tabulated("sizes", GAINS, rows) if len(rows) > 1 else []


def gained(row: SizeGain) -> str:
    """Return the speed-up at a size with its verdict, or why there is none."""
    if row.gain is None:
        return row.note or "not timed"
    return f"{gain(row.gain)}, {row.verdict}"


def assumed(sizes: AssumedSizes | None) -> list[Line]:
    """Say which sizes were assumed, and for which open dimensions; no line if there are none."""
    if sizes is None:
        return []
    by_input = [
        f"{name} "
        + " and ".join(dict.fromkeys("x".join(map(str, each[name])) for each in sizes.sizes))
        for name in sizes.open
    ]
    opened = dict.fromkeys(dim for dims in sizes.open.values() for dim in dims)
    return [
        Line(
            "sizes",
            f"{', '.join(by_input)}, assumed (open: {', '.join(opened)}); give yours with "
            "--input-shape",
        )
    ]
