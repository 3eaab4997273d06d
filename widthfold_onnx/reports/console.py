"""Writes to standard output: tables framed on a terminal, plain columns in a pipe."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from widthfold_onnx.errors import UsageError
from widthfold_onnx.reports.description import Cell, Description, Table
from widthfold_onnx.reports.words import short
from widthfold_onnx.system import CLOSED_PIPE
from widthfold_onnx.text import printable

STYLES = {
    "folded": "green",
    "kept": "cyan",
    "refused": "dim",
    "pass": "bold green",
    "fail": "bold red",
    "different": "bold red",
    "unverified": "bold yellow",
    "skipped": "yellow",
}
_UNBOUNDED = 10_000
_LONGEST = 400
_GAP = 2
_PIPE_COLUMN = 48
_NAME_WIDTH = 36
_LEAST_NAME_WIDTH = 12


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Print in any encoding; a closed pipe is ignored, a full disk is an error."""
    if sys.stdout is None:  # the caller closed it
        # It stays open for the rest of the process.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - no path of ours
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # Buffered output would fail again when the interpreter ends.
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123 - os.devnull is no path of ours
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        if error.errno not in CLOSED_PIPE:
            raise UsageError(f"cannot write the table: {error.strerror}") from error


@printing()
def show(description: Description) -> None:
    """Print a description: assumptions, tables, facts, summary, remarks."""
    for line in map(str, description.assumptions):
        say(line)
    for each in description.tables:
        table(each)
    lines = (*description.facts, *description.certificate, description.head, *description.remarks)
    for line in filter(None, map(str, lines)):
        say(line)


def table(content: Table) -> None:
    """Print a table; where it does not fit the terminal, its sentences stand below their row."""
    cells = [[_lines(cell) for cell in row] for row in content.rows]
    console = _console()
    if not console.is_terminal:
        for line in _plain(
            [content.columns, *(["; ".join(cell) for cell in row] for row in cells)]
        ):
            sys.stdout.write(f"{_tame(line)}\n")
        return
    shown, grid, width = _framed(console, content.columns, cells, _NAME_WIDTH)
    if content.sentences and len(content.columns) > 1 and width > console.width:
        rows = [content.columns[:-1], *(row[:-1] for row in shown)]
        _stacked(console, rows, [row[-1] for row in cells])
    else:
        if width > console.width:
            name_width = max(_LEAST_NAME_WIDTH, _NAME_WIDTH + console.width - width)
            _, grid, _ = _framed(console, content.columns, cells, name_width)
        console.print(grid)
    console.print()


def _framed(
    console: Console, columns: Sequence[str], cells: Sequence[Sequence[list[str]]], name_width: int
) -> tuple[list[list[str]], Grid, int]:
    """Return the rows with names of at most a width, their table, and the width of the table."""
    rows = [[short(row[0][0], name_width), *map("\n".join, row[1:])] for row in cells]
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*map(_styled, row))
    unbounded = console.options.update(width=_UNBOUNDED)
    return rows, grid, console.measure(grid, options=unbounded).maximum


def _lines(cell: Cell) -> list[str]:
    return [printable(line, _LONGEST) for line in ([cell] if isinstance(cell, str) else cell)]


def _styled(text: str) -> Text:
    return Text(text, STYLES.get(text, ""))


def _plain(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return columns for a pipe: an overlong cell sticks out instead of widening its column."""
    widths = [min(max(map(cell_len, column)), _PIPE_COLUMN) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _stacked(
    console: Console, rows: Sequence[Sequence[str]], sentences: Sequence[Sequence[str]]
) -> None:
    """Print rows, the first of them the head, each with its sentences below it."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    while sum(widths) + _GAP * len(widths) > console.width and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    for row, lines in zip(rows, [[], *sentences], strict=True):
        grid = Grid.grid(padding=(0, _GAP, 0, 0))
        for width in widths:
            grid.add_column(width=width, overflow="fold")
        head, cells = row is rows[0], [short(row[0], widths[0]), *row[1:]]
        grid.add_row(*(Text(text, "bold") if head else _styled(text) for text in cells))
        console.print(grid)
        if head:
            console.print("─" * min(sum(widths) + _GAP * (len(widths) - 1), console.width))
        for line in filter(None, lines):
            console.print(Padding(Text(line), (0, 0, 0, 2 * _GAP), expand=False))


def _tame(line: str) -> str:
    """Prefix a line that begins with two colons: some CI services would take it for a command."""
    return f"| {line}" if line.lstrip().startswith("::") else line


def say(line: str, *, command: bool = False) -> None:
    """Print a line, escaped; a terminal wraps it between words.

    Args:
        line: the text.
        command: it is to be copied, so it is not wrapped.
    """
    console = _console()
    console.print(Text(_tame(printable(line, 2000))), soft_wrap=command or not console.is_terminal)


def write(text: str) -> None:
    """Print a whole document as it is, in UTF-8; its form has escaped names and texts."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.stdout.write(text)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise, where rich would exit with a code of its own."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _console() -> Console:
    terminal = sys.stdout.isatty()
    return _Console(
        width=None if terminal else _UNBOUNDED,
        force_terminal=terminal,  # not even FORCE_COLOR puts control codes into a pipe
        highlight=False,
        soft_wrap=False,
    )
