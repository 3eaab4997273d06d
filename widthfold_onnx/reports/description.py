"""Define the description of a report: tables and lines, which every renderer shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from widthfold_onnx.reports.words import short_names

Row = TypeVar("Row")

Cell = str | list[str]
"""The text of a cell, or its lines."""

NUMBER = re.compile(r"[\d.]+(e[-+]\d+)?[x%]?( [KM]iB| \[[\d., ]+\])?|-|")
"""A cell that holds a number with its unit or interval, or nothing."""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table.

    Attributes:
        heading: the text above it.
        cell: returns the cell of a row.
        is_detail: whether a brief table lacks the column.
        names: whether it holds names of a model, which may be shortened; only the first column of a
            table may.
        sentences: whether it holds sentences, which may stand below their row; only the last
            column of a table may.
    """

    heading: str
    cell: Callable[[Row], Cell]
    is_detail: bool = False
    names: bool = False
    sentences: bool = False


@dataclass(frozen=True)
class Table:
    """A table without empty columns.

    Attributes:
        title: what its rows are.
        columns: headings.
        rows: cells by row.
        names: whether the first column holds names of a model.
        sentences: whether the last column holds sentences.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: bool
    sentences: bool

    def short_names(self, limit: int) -> list[str]:
        """Return the text of the first column, each name shortened to at most `limit` characters.

        What is no name is returned as it is.
        """
        texts = ["; ".join([cell] if isinstance(cell, str) else cell) for cell, *_ in self.rows]
        return short_names(texts, limit) if self.names else texts


@dataclass(frozen=True)
class Line:
    """A line of text behind its label; "" where it has none."""

    label: str
    text: str

    def __str__(self) -> str:
        return f"{self.label}: {self.text}" if self.label else self.text


@dataclass(frozen=True)
class Description:
    """A report as text; names in it are as the model has them.

    Attributes:
        head: the summary.
        assumptions: lines that stand before the tables.
        tables: tables that have rows.
        facts: lines that lead to the summary.
        remarks: lines that add to the summary.
        verdict: pass, fail or unverified; "" for a report that judges nothing.
        meaning: what the verdict means for the models.
        models: names of the compared models.
    """

    head: Line
    assumptions: Sequence[Line] = ()
    tables: Sequence[Table] = ()
    facts: Sequence[Line] = ()
    remarks: Sequence[Line] = ()
    verdict: str = ""
    meaning: str = ""
    models: Sequence[str] = ()


def tabulated(
    title: str, columns: Sequence[Column[Row]], rows: Iterable[Row], *, is_full: bool = False
) -> list[Table]:
    """Return a table without the columns that are empty everywhere; none if nothing remains."""
    columns = [column for column in columns if is_full or not column.is_detail]
    cells = [[column.cell(row) for column in columns] for row in rows]
    indices = [i for i in range(len(columns)) if any(row[i] for row in cells)]
    if not indices:
        return []
    headings = [columns[i].heading for i in indices]
    visible_cells = [[row[i] for i in indices] for row in cells]
    names, sentences = columns[indices[0]].names, columns[indices[-1]].sentences
    return [Table(title, headings, visible_cells, names, sentences)]


def transposed(
    title: str,
    corner: str,
    columns: Sequence[Column[Row]],
    rows: Mapping[str, Row],
    *,
    is_full: bool = False,
) -> Table:
    """Return a table turned on its side, without the lines that are empty everywhere.

    Args:
        title: what its columns are.
        corner: the heading of the headings.
        columns: a line each, behind its heading.
        rows: a column each, below its name.
        is_full: whether it has the lines that are details.
    """
    lines = [
        [column.heading, *map(column.cell, rows.values())]
        for column in columns
        if is_full or not column.is_detail
    ]
    visible_lines = [[heading, *cells] for heading, *cells in lines if any(cells)]
    return Table(title, [corner, *rows], visible_lines, names=False, sentences=False)
