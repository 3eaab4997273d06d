"""widthfold store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from widthfold_onnx.cli.common import guarded
from widthfold_onnx.cli.options import options_of
from widthfold_onnx.cli.running import SEARCHING
from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import SearchOptions
from widthfold_onnx.text import printable, quoted

if TYPE_CHECKING:
    from widthfold_onnx.tuning.store.store import Store

STANDARD = Path("-")
"""Standard input or output, where a file is asked for."""


@click.group("store")
def store_command() -> None:
    """List, export, import or remove stored measurements."""


in_store = options_of("options", SearchOptions, {"--store": SEARCHING["--store"]})
"""Adds `--store`; the command gets `options`, whose store is None for the user's own."""


@store_command.command("list")
@guarded
@in_store
def list_command(options: SearchOptions) -> None:
    """List every measurement as tables; `export -` prints them for programs.

    The ratio is the time of the layer as it is / the time of its form, with a 95 % interval.
    """
    from widthfold_onnx.reports.store import show_store

    with _existing(options.store) as (store, _):
        entries = list(store.items())
    show_store(entries)


@store_command.command("export")
@guarded
@in_store
@click.argument("file", type=click.Path(path_type=Path))
def export_command(options: SearchOptions, file: Path) -> None:
    """Write every measurement to FILE, one line of JSON each.

    FILE - is standard output.
    """
    from widthfold_onnx.reports.files import write_report
    from widthfold_onnx.reports.text.console import printing, say, write
    from widthfold_onnx.tuning.store.store import export_lines

    with _existing(options.store) as (store, found):
        lines = list(export_lines(store))
    with printing():
        if file == STANDARD:
            write("".join(lines))
            return
        write_report("".join(lines), file, [found])
        say(f"wrote {len(lines)} measurement(s) to {file}")


@store_command.command("import")
@guarded
@in_store
@click.argument("file", type=click.Path(path_type=Path))
def import_command(options: SearchOptions, file: Path) -> None:
    """Read the measurements of an exported FILE into the store.

    FILE - is standard input. If any line is wrong, nothing is imported. If both have a measurement
    of the same form, the later one stays.
    """
    from widthfold_onnx.model.write.atomic import reading
    from widthfold_onnx.reports.text.console import printing, say
    from widthfold_onnx.tuning.store.store import LONGEST_LINE, Store, default_path, import_lines

    chosen = options.store or default_path()
    with reading(str(file)), _opened(file) as stream, Store(chosen) as store:
        lines = iter(lambda: stream.readline(LONGEST_LINE + 1), b"")
        store.check_writable()
        added, skipped = import_lines(store, lines)
    with printing():
        say(f"took {added} measurement(s) into {chosen}, left out {skipped} that are not newer")


@store_command.command("clear")
@guarded
@in_store
@click.option(
    "--machine",
    metavar="JSON",
    help="Remove measurements of this machine only, as `list` names it.",
)
@click.option("--yes", is_flag=True, help="Do not ask first.")
def clear_command(options: SearchOptions, machine: str | None, yes: bool) -> None:
    """Remove all measurements, or those of one machine; ask first."""
    from widthfold_onnx.reports.text.console import printing, say

    what = "every measurement" if machine is None else f"what was measured on {machine}"
    with _existing(options.store) as (store, found), printing():
        if yes or _agreed(f"Remove {what} from {found}?"):
            if len(store):
                store.check_writable()
            say(f"removed {store.clear(machine=machine)} measurement(s) from {found}")
        else:
            say("removed nothing")


@contextmanager
def _existing(path: Path | None) -> Iterator[tuple[Store, Path]]:
    """Open a store to read: a named one must exist, the user's own need not exist yet.

    Raises:
        UsageError: it is not there, or cannot be read.
    """
    from widthfold_onnx.model.write.atomic import reading
    from widthfold_onnx.tuning.store.store import Store, default_path

    chosen = path or default_path()
    with reading(str(chosen)):
        exists = chosen.exists()
    if path is not None and not exists:
        raise UsageError(f"there is no store {quoted(str(path))}")
    with Store(chosen if exists else None) as store:
        yield store, chosen


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    if file != STANDARD:
        with file.open("rb") as stream:
            yield stream
    elif sys.stdin is None:
        raise UsageError("standard input is closed")
    else:
        yield sys.stdin.buffer


def _agreed(question: str) -> bool:
    """Ask on the terminal.

    Raises:
        UsageError: standard input is no terminal.
        KeyboardInterrupt: the answer was an interrupt.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask on: say --yes to remove measurements")
    try:
        return click.confirm(printable(question, 1000), err=True)
    except click.Abort:
        raise KeyboardInterrupt from None
