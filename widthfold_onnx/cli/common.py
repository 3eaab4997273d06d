"""Define what commands share: sections of `--help`, errors and exit codes, progress, messages."""

from __future__ import annotations

import contextlib
import functools
import shlex
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from widthfold_onnx.errors import CheckFailedError, InternalError, WidthfoldError, shown_log
from widthfold_onnx.progress import Step, progress_to
from widthfold_onnx.system import END_SIGNALS, interrupt
from widthfold_onnx.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from widthfold_onnx.results import OptimizeReport

INTERRUPTED = 130

SECTIONS = {
    "Start with": "factor input-shape provider threads check",
    "Which layers": "nodes skip max-channels max-flops-growth max-bytes-growth",
    "How they are folded": (
        "form axis layout ragged fixed-shapes mix-samples nonfinite companion pad-channels groups"
    ),
    "How models run": "value provider-option session-option inputs seeds",
    "What is measured": "effort time-budget no-timing store target no-measure jobs dask",
    "What has to hold": (
        "rtol atol truth-work baseline fail-under require-fold no-verify partial freeze-weights"
    ),
    "What is printed": "save-plan details report format debug help",
}
"""Names of options by section of `--help`, the most needed first; a command lists its own."""

_AGAIN_SECONDS = 0.05
_STATUS_BAR = 24
_STATUS_TEXT = 100
"""Width of the bar, and most characters of the text, in the status line."""


class Sectioned(click.Command):
    """A command whose `--help` lists options in sections; each option must be in `SECTIONS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options section by section."""
        records = {max(p.opts, key=len): p.get_help_record(ctx) for p in self.get_params(ctx)}
        for title, names in SECTIONS.items():
            section_records = [records.get(f"--{name}") for name in names.split()]
            if any(section_records):
                with formatter.section(title):
                    formatter.write_dl([record for record in section_records if record])


class ModelType(click.Path):
    """A file name. The loader, not click, checks that the file exists: its message says more."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an empty name, which would be the current folder."""
        return super().convert(value, param, ctx) if value else self.fail("no name", param, ctx)


MODEL = ModelType(path_type=Path)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn every error of a command into one line on standard error and its exit code."""

    @click.option(
        "--debug",
        is_flag=True,
        help="Show the traceback of an error, and exceptions that were no error.",
    )
    @functools.wraps(command)
    def run(*, debug: bool, **arguments: Any) -> None:
        for number in END_SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:  # SIGHUP stays ignored under nohup
                signal.signal(number, _terminate)
        with _exit_codes(debug=debug), _repeated_interrupts(), warnings.catch_warnings():
            if not debug:
                warnings.simplefilter("ignore")  # warnings of libraries are not for the user
            with shown_log() if debug else contextlib.nullcontext():
                command(**arguments)

    return run


@contextlib.contextmanager
def _exit_codes(*, debug: bool) -> Iterator[None]:
    try:
        yield
    except click.exceptions.Exit:
        raise
    except KeyboardInterrupt:
        leave("interrupted", INTERRUPTED)
    except WidthfoldError as error:
        if debug:
            traceback.print_exc()
        leave(str(error), error.exit_code)
    except MemoryError:
        leave("out of memory", InternalError.exit_code)
    except Exception as error:  # last resort: anything else is a fault of ours
        if debug:
            traceback.print_exc()
        kind = type(error).__name__
        leave(
            f"internal error, please report it: {kind}: {printable(str(error))}",
            InternalError.exit_code,
        )


@contextlib.contextmanager
def _repeated_interrupts() -> Iterator[None]:
    """Send an interrupt again if Python drops it.

    Python prints and drops an exception that is raised in a callback of the import system or the
    garbage collector. A Ctrl-C that arrives there is dropped with it: 1 of 200 during imports.
    """
    original_hook = sys.unraisablehook

    def resend(unraisable: sys.UnraisableHookArgs) -> None:
        main = threading.main_thread().ident
        if unraisable.exc_type is KeyboardInterrupt and main:
            # Not from here, where it would be dropped, too.
            threading.Timer(_AGAIN_SECONDS, interrupt, (main,)).start()
        else:
            original_hook(unraisable)

    sys.unraisablehook = resend
    try:
        yield
    finally:
        sys.unraisablehook = original_hook


@contextlib.contextmanager
def status_line() -> Iterator[None]:
    """Show steps on standard error if that is a terminal; show nothing anywhere else."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # only here: `--help` does not wait for it

    with (
        Console(stderr=True).status("") as line,
        progress_to(lambda step: line.update(StatusLine(step))),
    ):
        yield


class StatusLine:
    """A step as text, with a bar and a countdown of the remaining time where they are known."""

    def __init__(self, step: Step) -> None:
        """Start the clock of the step."""
        self._step = step
        self._start = time.monotonic()

    def __rich__(self) -> RenderableType:
        """Return what the status line shows now."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        step, text = self._step, Text(printable(self._step.text, _STATUS_TEXT))
        if not step.total:
            return text
        cells: list[RenderableType] = [
            text,
            ProgressBar(total=step.total, completed=step.done, width=_STATUS_BAR),
        ]
        if step.seconds_left is not None:
            seconds = step.seconds_left - (time.monotonic() - self._start)
            cells.append(Text(f"{max(seconds, 0):.0f} s left"))
        line = Table.grid(padding=(0, 1))
        line.add_row(*cells)
        return line


def leave(message: str, code: int) -> NoReturn:
    """Print one line and exit."""
    click.echo(f"widthfold: {printable(message, 1000)}", err=True)
    raise click.exceptions.Exit(code)


NAMED_LAYERS = 3
"""Most folded layers to name in a message."""


def leave_unwritten(result: OptimizeReport, remedy: str) -> NoReturn:
    """Exit with the reason why a result did not pass its verification.

    Args:
        result: the report, with a verification that did not pass.
        remedy: clause that says how to leave a layer alone, e.g. by `--skip`.
    """
    assert result.verification is not None
    error = result.verification.error
    assert error is not None
    folded = [printable(site.node, 60) for site in result.sites if site.status == "folded"]
    hint = ""
    if folded and isinstance(error, CheckFailedError):
        rest = len(folded) - NAMED_LAYERS
        names = ", ".join(folded[:NAMED_LAYERS]) + (f" and {rest} more" if rest > 0 else "")
        hint = f"; {remedy}; folded: {names}"
    leave(f"OUT is not written: {error}{hint}", error.exit_code)


def typed_command() -> str:
    """Return the command line as typed, but without folders: a report names no absolute path."""
    words = click.get_current_context().find_root().obj or []
    return shlex.join(["widthfold", *map(_without_folder, words)])


def _without_folder(word: str) -> str:
    option, equals, value = word.rpartition("=")
    path = Path(value)
    with contextlib.suppress(OSError):  # a word too long to be a path
        if path.is_absolute() and str(path.parent) != path.anchor and path.parent.is_dir():
            return f"{option}{equals}{path.name}"
    return word


def _terminate(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
