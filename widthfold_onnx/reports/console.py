"""Write to standard output: tables framed on a terminal, plain columns in a pipe."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from widthfold_onnx.errors import UsageError
from widthfold_onnx.reports.description import Cell, Description, Table
from widthfold_onnx.reports.words import short_text
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
_MIN_NAME_WIDTH = 20


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
        with open(os.devnull, "wb") as null_device:  # noqa: PTH123 - os.devnull is no path of ours
            os.dup2(null_device.fileno(), sys.stdout.fileno())
        if error.errno not in CLOSED_PIPE:
            raise UsageError(f"cannot write the table: {error.strerror}") from error


@printing()
def show(description: Description) -> None:
    """Print a description: assumptions, tables, facts, summary, remarks."""
    for line in map(str, description.assumptions):
        say(line)
    for content in description.tables:
        table(content)
    lines = (*description.facts, description.head, *description.remarks)
    for line in filter(None, map(str, lines)):
        say(line)


def table(content: Table) -> None:
    """Print a table; where it does not fit the terminal, its sentences stand below their row."""
    console = _console()
    rows = [[_lines(cell) for cell in row] for row in (content.columns, *content.rows)]
    if not console.is_terminal:
        for line in _plain([["; ".join(cell) for cell in row] for row in rows]):
            sys.stdout.write(f"{_prefixed(line)}\n")
        return
    widths = [
        max(cell_len(line) for cell in column for line in cell)
        for column in zip(*rows, strict=True)
    ]
    widths[0] = min(widths[0], _NAME_WIDTH)
    least = _extent([min(widths[0], _MIN_NAME_WIDTH), *widths[1:]])
    is_stacked = content.sentences and len(widths) > 1 and least > console.width
    if is_stacked:
        widths.pop()
    while _extent(widths) > console.width and max(widths) > 1:
        place = 0 if widths[0] > _MIN_NAME_WIDTH else widths.index(max(widths))
        widths[place] -= 1
    names = [rows[0][0][0], *_abbreviated([row[0][0] for row in rows[1:]], widths[0])]
    widths[0] = max(map(cell_len, names))
    for name, row in zip(names, rows, strict=True):
        grid = Grid.grid(padding=(0, _GAP, 0, 0))
        for width in widths:
            grid.add_column(width=width, overflow="fold")
        texts = [name, *map("\n".join, row[1 : len(widths)])]
        is_head = row is rows[0]
        grid.add_row(*(Text(text, "bold" if is_head else STYLES.get(text, "")) for text in texts))
        console.print(grid)
        if is_head:
            console.print("─" * min(_extent(widths), console.width))
        elif is_stacked:
            for line in filter(None, row[-1]):
                console.print(Padding(Text(line), (0, 0, 0, 2 * _GAP), expand=False))
    console.print()


def _abbreviated(names: Sequence[str], width: int) -> list[str]:
    """Shorten names to a width: without the folders that all share, then to both ends."""
    paths = [name.split("/") for name in names]
    head, tail = _shared_levels(paths), _shared_levels([path[::-1] for path in paths])
    if max(map(cell_len, names)) > width and all(head + tail < len(path) for path in paths):
        prefix, suffix = "…/" if head else "", "/…" if tail else ""
        inner = ["/".join(path[head : len(path) - tail]) for path in paths]
        names = [f"{prefix}{name}{suffix}" for name in inner]
    return [short_text(name, width) for name in names]


def _shared_levels(paths: Sequence[Sequence[str]]) -> int:
    """Count the folders with which all paths begin."""
    levels = zip(*paths, strict=False)
    return len(list(takewhile(lambda folders: len(set(folders)) == 1, levels)))


def _extent(widths: Sequence[int]) -> int:
    """Return the characters of a row."""
    return sum(widths) + _GAP * (len(widths) - 1)


def _lines(cell: Cell) -> list[str]:
    return [printable(line, _LONGEST) for line in ([cell] if isinstance(cell, str) else cell)]


def _plain(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return columns for a pipe: an overlong cell sticks out instead of widening its column."""
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
        command: it is to be copied, so it is not wrapped.
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
