"""Renders Markdown for a pull-request comment or a step summary: verdict first, 60 kB at most.

Text stands in <code> with every sign as a character reference, as a model has named what is in it:
neither Markdown, HTML, mathematics, mentions nor links come to life there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from widthfold_onnx.reports import wording
from widthfold_onnx.reports.described import Cell, Description, Report, Table, described
from widthfold_onnx.reports.files import signature
from widthfold_onnx.results import VerifyReport

LIMIT = 60_000
"""Bytes; GitHub refuses a comment of more than 65 536 characters."""

_OPEN_ROWS = 10
_ROW_LIMITS = (200, 100, 50, 20, 5)
_CELL = 200
_LINE = 500
"""Characters of a cell and of a line."""

_SIGN = re.compile(r"[^\w /-]|_")
_LABEL = re.compile(r"[a-z]+: ")
_NUMBER = re.compile(r"[\d.]+(e[-+]\d+)?[x%]?( [KM]iB| \[[\d., ]+\])?|-|")
_SIGNS = {"pass": "✅", "fail": "❌", "unverified": "⚠️"}


def render(report: Report) -> str:
    """Render the report; tables that do not fit are cut, and say so."""
    head = ""
    if isinstance(report, VerifyReport):
        models = f"{code(report.original)} → {code(report.rewritten)}"
        meaning = f"**{report.verdict}**: {wording.meaning(report)}"
        head = f"{_SIGNS[report.verdict]} {meaning} ({models})\n\n"
    said, text = described(report, full=True), ""
    for rows in _ROW_LIMITS:
        text = f"{signature(report.schema)}\n\n{head}{_page(said, rows)}\n"
        if len(text.encode()) < LIMIT:
            break
    return text


def code(text: str, limit: int = 80) -> str:
    """Return text of unknown origin as code without any markup in it."""
    shown = _SIGN.sub(lambda sign: f"&#{ord(sign[0])};", wording.short(text, limit))
    return f"<code>{shown}</code>" if text else ""


def _page(said: Description, most: int) -> str:
    """Return all parts, with at most so many rows or lines in each."""
    parts = [_line(said.head), _lines(said.after, most), _lines(said.before, len(said.before))]
    parts += [_table(table, most) for table in said.tables]
    return "\n\n".join(filter(None, parts))


def _lines(lines: Sequence[str], most: int) -> str:
    shown = [f"- {_line(line.strip())}" for line in lines[:most]]
    if len(lines) > most:
        shown.append(f"- {len(lines) - most} more are not shown.")
    return "\n".join(shown)


def _line(line: str) -> str:
    """Return a line as code behind its label, which is a word of ours."""
    label = _LABEL.match(line)
    name = label[0] if label else ""
    return f"{f'**{name.strip()}** ' if name else ''}{code(line.removeprefix(name), _LINE)}"


def _table(table: Table, most: int) -> str:
    rows = [[*map(_cell, row)] for row in table.rows[:most]]
    lines = [table.columns, ["---"] * len(table.columns), *rows]
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    if (rest := len(table.rows) - most) > 0:
        grid += f"\n\n{rest} more {table.title} are not shown."
    if len(table.rows) <= _OPEN_ROWS:
        return grid
    return f"<details><summary>{len(table.rows)} {table.title}</summary>\n\n{grid}\n\n</details>"


def _cell(cell: Cell) -> str:
    lines = [cell] if isinstance(cell, str) else cell
    return "; ".join(x if _NUMBER.fullmatch(x) else code(x, _CELL) for x in lines)
