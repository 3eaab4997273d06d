"""The door to standard output: tables framed on a terminal, plain columns in a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from widthfold_onnx.errors import UsageError
from widthfold_onnx.reports.wording import short
from widthfold_onnx.text import printable

STYLES = {
    "folded": "green",
    "kept": "cyan",
    "refused": "dim",
    "pass": "bold green",
    "exact": "green",
    "fail": "bold red",
    "different": "bold red",
    "unverified": "bold yellow",
    "skipped": "yellow",
}
Cell = str | list[str]
"""The text of a cell, or its lines."""

_PIPE_WIDTH = 10_000
_LONGEST = 400
_NAME_WIDTH = 36


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Print whatever the encoding; a reader that left early is no fault, a full disk is one."""
    if sys.stdout is None:  # the caller closed it: there is nobody to print for
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered would fail again when the interpreter ends.
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123 - os.devnull is no path of ours
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise UsageError(f"cannot write the table: {error.strerror}") from error


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table; columns that are empty everywhere are left out.

    Args:
        columns: headings.
        rows: cells by row, as long as `columns`; escaped here.
    """
    if not rows:
        return
    console = _console()
    grid = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    for column in columns:
        grid.add_column(column, overflow="fold", no_wrap=not console.is_terminal)
    used = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    grid.columns = [grid.columns[i] for i in used]
    for row in rows:
        cells = ([cell] if isinstance(cell := row[i], str) else cell for i in used)
        lines = ([printable(line, _LONGEST) for line in cell] for cell in cells)
        shown = [("\n" if console.is_terminal else "; ").join(cell) for cell in lines]
        if console.is_terminal:
            shown[0] = short(shown[0], _NAME_WIDTH)
        grid.add_row(*(Text(text, STYLES.get(text, "")) for text in shown))
    if console.is_terminal:
        console.print(grid)
        return
    with console.capture() as captured:
        console.print(grid)
    for line in captured.get().splitlines():
        sys.stdout.write(f"{_tame(line.rstrip())}\n")


def _tame(line: str) -> str:
    """A line that begins with two colons would be a command to the log of some CI services."""
    return f"| {line}" if line.lstrip().startswith("::") else line


def say(line: str) -> None:
    """Print a line, escaped."""
    _console().print(Text(_tame(printable(line, 2000))), soft_wrap=True)


def write(text: str) -> None:
    """Print a whole document as it is; its form has escaped what is in it."""
    sys.stdout.write(text)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Say so, where rich would exit with a code of its own."""
        raise BrokenPipeError


def _console() -> Console:
    terminal = sys.stdout.isatty()
    return _Console(
        width=None if terminal else _PIPE_WIDTH,
        force_terminal=terminal,  # not even FORCE_COLOR puts control codes into a pipe
        highlight=False,
        soft_wrap=False,
    )
