"""Write to standard output: tables framed on a terminal, plain columns in a pipe."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from widthfold_onnx.errors import UsageError
from widthfold_onnx.reports.description import Cell, Description, Table
from widthfold_onnx.reports.words import short_names
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
_LONGEST = 1000
_GAP = 2
_PIPE_COLUMN = 48
_NAME_WIDTH = 36
_MIN_NAME_WIDTH = 20


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Let the block print in any encoding; ignore a closed pipe, report a full disk.

    Raises:
        UsageError: the output cannot be written, e.g. as the disk is full.
    """
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
        with open(os.devnull, "wb") as null_device:  # noqa: PTH123 - os.devnull is no path of ours
            os.dup2(null_device.fileno(), sys.stdout.fileno())
        if error.errno not in CLOSED_PIPE:
            raise UsageError(f"cannot write the table: {error.strerror}") from error


@printing()
def show(description: Description, *, whole_names: bool = False) -> None:
    """Print a description: assumptions, tables, facts, summary, remarks.

    Args:
        description: the description.
        whole_names: do not shorten the names in tables.
    """
    for line in map(str, description.assumptions):
        say(line)
    for content in description.tables:
        table(content, whole_names=whole_names)
    lines = (*description.facts, description.head, *description.remarks)
    for line in filter(None, map(str, lines)):
        say(line)


def table(content: Table, *, whole_names: bool = False) -> None:
    """Print a table. If a terminal is too narrow for it, sentences go below their row.

    Names are shortened to the width of their column; a terminal wraps them if `whole_names`.
    """
    console = _console()
    rows = [[_lines(cell) for cell in row] for row in (content.columns, *content.rows)]
    if console.is_terminal:
        _print_grid(console, rows, sentences=content.sentences, whole_names=whole_names)
        return
    texts = [["; ".join(cell) for cell in row] for row in rows]
    if content.names and not whole_names:
        names = short_names([name for name, *_ in texts[1:]], _PIPE_COLUMN)
        texts[1:] = [[name, *row[1:]] for name, row in zip(names, texts[1:], strict=True)]
    for line in _plain(texts):
        sys.stdout.write(f"{_prefixed(line)}\n")


def _print_grid(
    console: Console,
    rows: Sequence[Sequence[Sequence[str]]],
    *,
    sentences: bool,
    whole_names: bool,
) -> None:
    """Print rows of cells, each a list of lines, on a terminal; the first row is the head.

    Args:
        console: the terminal.
        rows: the cells.
        sentences: True if the last column holds sentences, which may go below their row.
        whole_names: as in `table`.
    """
    widths, is_stacked = _widths(rows, console.width, sentences=sentences)
    names: list[str] = [row[0][0] for row in rows]
    if not whole_names:
        names[1:] = short_names(names[1:], widths[0])
        widths[0] = max(map(cell_len, names))
    for name, row in zip(names, rows, strict=True):
        grid = Grid.grid(padding=(0, _GAP, 0, 0))
        for width in widths:
            grid.add_column(width=width, overflow="fold")
        texts: list[str] = [name, *map("\n".join, row[1 : len(widths)])]
        is_head = row is rows[0]
        grid.add_row(*(Text(text, "bold" if is_head else STYLES.get(text, "")) for text in texts))
        console.print(grid)
        if is_head:
            console.print("─" * min(_extent(widths), console.width))
        elif is_stacked:
            for line in filter(None, row[-1]):
                console.print(Padding(Text(line), (0, 0, 0, 2 * _GAP), expand=False))
    console.print()


def _widths(
    rows: Sequence[Sequence[Sequence[str]]], room: int, *, sentences: bool
) -> tuple[list[int], bool]:
    """Return widths with which the columns fit into `room` characters.

    The second result is True if the last column, of sentences, goes below the rows; then it has no
    width.
    """
    widths = [
        max(cell_len(line) for cell in column for line in cell)
        for column in zip(*rows, strict=True)
    ]
    widths[0] = min(widths[0], _NAME_WIDTH)
    least = _extent([min(widths[0], _MIN_NAME_WIDTH), *widths[1:]])
    is_stacked = sentences and len(widths) > 1 and least > room
    if is_stacked:
        widths.pop()
    while _extent(widths) > room and max(widths) > 1:
        column = 0 if widths[0] > _MIN_NAME_WIDTH else widths.index(max(widths))
        widths[column] -= 1
    return widths, is_stacked


def _extent(widths: Sequence[int]) -> int:
    """Return the width of a row, in characters."""
    return sum(widths) + _GAP * (len(widths) - 1)


def _lines(cell: Cell) -> list[str]:
    return [printable(line, _LONGEST) for line in ([cell] if isinstance(cell, str) else cell)]


def _plain(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns for a pipe; an overlong cell shifts its own row only."""
    widths = [min(max(map(cell_len, column)), _PIPE_COLUMN) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _prefixed(line: str) -> str:
    """Prefix a line that begins with two colons: some CI services would take it for a command."""
    return f"| {line}" if line.lstrip().startswith("::") else line


def say(line: str, *, command: bool = False) -> None:
    """Print a line, escaped; a terminal wraps it between words.

    Args:
        line: the text.
        command: True if users copy it; then it is not wrapped.
    """
    console = _console()
    console.print(
        Text(_prefixed(printable(line, 2000))), soft_wrap=command or not console.is_terminal
    )


@printing()
def write(text: str) -> None:
    """Print a whole document as it is, in UTF-8; its format has escaped names and texts."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.stdout.write(text)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error; rich would exit with a code of its own."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _console() -> Console:
    terminal = sys.stdout.isatty()
    return _Console(
        width=None if terminal else _UNBOUNDED,
        force_terminal=terminal,  # not even FORCE_COLOR puts control codes into a pipe
        highlight=False,
        soft_wrap=False,
    )
