"""Define descriptions of reports: tables and lines, which every renderer shows."""

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
        is_detail: True if only full tables have it.
        names: True if it holds names of a model, which renderers may shorten. Only the first column
            of a table can be such a column.
        sentences: True if it holds sentences, which renderers may put below the row. Only the last
            column of a table can be such a column.
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
        title: what the rows are, e.g. "layers".
        columns: headings.
        rows: cells, [row][column].
        names: True if the first column holds names of a model.
        sentences: True if the last column holds sentences.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: bool
    sentences: bool

    def short_names(self, limit: int) -> list[str]:
        """Return the texts of the first column.

        If they are names of a model, each is shortened to at most `limit` characters.
        """
        texts = ["; ".join([cell] if isinstance(cell, str) else cell) for cell, *_ in self.rows]
        return short_names(texts, limit) if self.names else texts


@dataclass(frozen=True)
class Line:
    """A line of text with a label in front; the label may be ""."""

    label: str
    text: str

    def __str__(self) -> str:
        return f"{self.label}: {self.text}" if self.label else self.text


@dataclass(frozen=True)
class Description:
    """A report as text, in the order in which a console prints it; renderers escape names.

    Attributes:
        head: the summary, a line between `facts` and `remarks`.
        assumptions: lines before the tables.
        tables: tables that have rows.
        facts: lines between the tables and the summary.
        remarks: lines after the summary.
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
    """Return a table without empty columns, as a list; [] if all columns are empty."""
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
    """Return a transposed table: one line for each column, without empty lines.

    Args:
        title: what the rows, now columns, are.
        corner: heading of the first column, which holds the headings of `columns`.
        columns: become lines.
        rows: become columns, each below its name.
        is_full: True to include columns that are details.
    """
    lines = [
        [column.heading, *map(column.cell, rows.values())]
        for column in columns
        if is_full or not column.is_detail
    ]
    visible_lines = [[heading, *cells] for heading, *cells in lines if any(cells)]
    return Table(title, [corner, *rows], visible_lines, names=False, sentences=False)
