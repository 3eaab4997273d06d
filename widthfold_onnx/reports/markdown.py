"""Render Markdown for a pull-request comment or a step summary: verdict first, 60 kB at most.

Texts may contain names of a model. So they are put into <code>, with every punctuation mark as a
character reference: no part of them acts as Markdown, HTML, mathematics, a mention or a link.
"""

from __future__ import annotations

import re

from widthfold_onnx.reports.described import AnyReport, described
from widthfold_onnx.reports.description import NUMBER, Cell, Description, Line, Table
from widthfold_onnx.reports.words import short_text

LIMIT = 60_000
"""Most bytes; GitHub refuses comments of more than 65 536 characters."""

_OPEN_ROWS = 10
_ROW_LIMITS = (200, 100, 50, 20, 5)
_NAME = 60
_CELL = 200
_LINE = 500
"""Most characters of a name in a table, of another cell, and of a line."""

_SIGN = re.compile(r"[^\w /-]|_")
_SIGNS = {"pass": "✅", "fail": "❌", "unverified": "⚠️"}


def render(report: AnyReport) -> str:
    """Render the report; tables that do not fit are cut, and say so."""
    description, text = described(report, is_full=True), ""
    for rows in _ROW_LIMITS:
        text = f"<!-- {report.schema} -->\n\n{_page(description, rows)}\n"
        if len(text.encode()) < LIMIT:
            break
    return text


def escaped(text: str, limit: int = 80) -> str:
    """Return text of unknown origin with every punctuation mark as a character reference."""
    return _SIGN.sub(lambda sign: f"&#{ord(sign[0])};", short_text(text, limit))


def code(text: str, limit: int = 80) -> str:
    """Return text of unknown origin as code without any markup in it."""
    return f"<code>{escaped(text, limit)}</code>" if text else ""


def _page(description: Description, most: int) -> str:
    """Return the whole page; tables and the list of lines have at most `most` items."""
    lines = [description.head, *description.assumptions, *description.remarks, *description.facts]
    items = [f"- {_line(line)}" for line in lines[:most] if line.text]
    if len(lines) > most:
        items.append(f"- {len(lines) - most} more are not shown.")
    tables = [_table(table, most) for table in description.tables]
    return "\n\n".join(filter(None, [_verdict(description), "\n".join(items), *tables]))


def _verdict(description: Description) -> str:
    if not description.verdict:
        return ""
    models = " → ".join(map(code, description.models))
    return (
        f"{_SIGNS[description.verdict]} **{description.verdict}**: {description.meaning} ({models})"
    )


def _line(line: Line) -> str:
    """Return a line as code behind its label."""
    label = f"**{escaped(line.label, _LINE)}:** " if line.label else ""
    return f"{label}{code(line.text, _LINE)}"


def _table(table: Table, most: int) -> str:
    names = table.short_names(_NAME)
    rows = [
        [_cell(name), *map(_cell, row[1:])]
        for name, row in zip(names, table.rows[:most], strict=False)
    ]
    lines = [table.columns, ["---"] * len(table.columns), *rows]
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    if (hidden_count := len(table.rows) - most) > 0:
        grid += f"\n\n{hidden_count} more {table.title} are not shown."
    if len(table.rows) <= _OPEN_ROWS:
        return grid
    return f"<details><summary>{len(table.rows)} {table.title}</summary>\n\n{grid}\n\n</details>"


def _cell(cell: Cell) -> str:
    lines = [cell] if isinstance(cell, str) else cell
    return "; ".join(x if NUMBER.fullmatch(x) else code(x, _CELL) for x in lines)
