"""Describe the inputs of a run: assumed sizes, chosen values, and the gain at each size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from widthfold_onnx.reports.description import Column, Line, Table, tabulated
from widthfold_onnx.reports.words import gain_text, shapes_text
from widthfold_onnx.results import AssumedSizes, SizeGain
from widthfold_onnx.text import value_text

GAINS: tuple[Column[SizeGain], ...] = (
    Column("inputs", lambda row: shapes_text(row.shapes)),
    Column("original ms", lambda row: "" if row.original_ms is None else f"{row.original_ms:.3f}"),
    Column("speed-up", lambda row: "" if row.gain is None else gain_text(row.gain)),
    Column("verdict", lambda row: row.verdict or "not timed"),
    Column("note", lambda row: row.note, sentences=True),
)


def size_table(rows: Sequence[SizeGain]) -> list[Table]:
    """Return a row for each size; no table for a single size, which the summary names."""
    return tabulated("sizes", GAINS, rows) if len(rows) > 1 else []


def size_gain(row: SizeGain) -> str:
    """Return the speed-up at a size with its verdict, or why there is none."""
    if row.gain is None:
        return row.note or "not timed"
    return f"{gain_text(row.gain)}, {row.verdict}"


def assumptions(
    sizes: AssumedSizes | None, cases: Sequence[Mapping[str, Sequence[float]]]
) -> list[Line]:
    """Return a line on assumed sizes and a line on chosen values, if there are any.

    Args:
        sizes: sizes of open dimensions.
        cases: combinations of values of inputs that choose between parts of a model.
    """
    lines = [] if sizes is None else [Line("sizes", _assumed_sizes(sizes))]
    texts = [", ".join(value_text(name, value) for name, value in case.items()) for case in cases]
    if any(texts):
        values = "; ".join(texts[1:])
        note = f"; compared with {values}, too; --value fixes one" if values else ""
        lines.append(Line("values", f"{texts[0]}{note}"))
    return lines


def _assumed_sizes(sizes: AssumedSizes) -> str:
    """Name the assumed sizes by input, and the open dimensions."""
    by_input = [
        f"{name} "
        + " and ".join(dict.fromkeys("x".join(map(str, size[name])) for size in sizes.sizes))
        for name in sizes.open
    ]
    symbols = dict.fromkeys(dim for dims in sizes.open.values() for dim in dims)
    return (
        f"{', '.join(by_input)}, assumed (open: {', '.join(symbols)}); give yours with "
        "--input-shape"
    )
