"""What the commands share: option types, shared options, progress, and the way out."""

from __future__ import annotations

import contextlib
import functools
import math
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from widthfold_onnx.errors import UsageError, WidthfoldError
from widthfold_onnx.options import AxisName, FoldOptions, Layout
from widthfold_onnx.text import printable

INTERRUPTED = 130
INTERNAL = 70
LARGEST_EXTENT = 1 << 40

# Existence is the loader's business, whose message says more.
MODEL = click.Path(path_type=Path)


class ShapeType(click.ParamType[tuple[str, tuple[int, ...]]]):
    """NAME:1,3,224,224 -> ("NAME", (1, 3, 224, 224)); the name may hold colons."""

    name = "NAME:DIMS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...]]:
        """Split at the last colon; an empty list of dimensions is a scalar."""
        if isinstance(value, tuple):
            return value
        name, colon, dims = value.rpartition(":")
        try:
            shape = tuple(int(d) for d in dims.split(",")) if dims else ()
        except ValueError:
            shape = (-1,)
        if not colon or not name or not all(1 <= extent <= LARGEST_EXTENT for extent in shape):
            self.fail(f"{printable(value)!r} is not of the form NAME:1,3,224,224", param, ctx)
        return name, shape


class AxisType(click.ParamType[AxisName | int]):
    """auto, batch, height, width, depth, or an index into the Conv's input shape."""

    name = "AXIS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> AxisName | int:
        """A digit is an index, anything else a name."""
        if isinstance(value, AxisName | int):
            return value
        if value.isascii() and value.isdigit() and len(value) < 4:
            return int(value)
        try:
            return AxisName(value)
        except ValueError:
            names = ", ".join(AxisName)
            self.fail(f"{printable(value)!r} is none of {names}, 0, 2, 3, 4", param, ctx)


def fold_options(default_factor: int | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of a fold; the command gets one `fold` argument of type FoldOptions."""
    decorators = [
        click.option(
            "--factor",
            type=int,
            **({"required": True} if default_factor is None else {"default": default_factor}),
            show_default=True,
            help="How many times as many output channels, and as many fewer positions.",
        ),
        click.option(
            "--axis",
            type=AxisType(),
            default="auto",
            show_default=True,
            help="Axis to fold: auto, batch, height, width, depth, or its index.",
        ),
        click.option(
            "--layout",
            type=click.Choice([str(v) for v in Layout]),
            default="nchw",
            show_default=True,
            help="Emitted form; nhwc for a runtime that computes channels-last.",
        ),
        click.option(
            "--ragged", is_flag=True, help="Extend and cut extents the factor leaves over."
        ),
        click.option(
            "--mix-samples",
            is_flag=True,
            help="Allow batch folds as one dense group, where a NaN of one sample reaches others.",
        ),
        click.option(
            "--ieee-strict",
            is_flag=True,
            help="No structural zeros: Inf and NaN reach just the outputs they reached.",
        ),
        click.option(
            "--max-channels",
            type=int,
            default=32,
            show_default=True,
            help="Leave layers alone that have this many channels on both sides.",
        ),
        click.option(
            "--max-flops-growth",
            type=float,
            default=32.0,
            show_default=True,
            help="Leave a layer alone if its multiply-adds would grow more than this many times.",
        ),
        click.option(
            "--max-bytes-growth",
            type=float,
            default=32.0,
            show_default=True,
            help="The same for the bytes of input, weight and output together.",
        ),
        click.option(
            "--nodes",
            multiple=True,
            metavar="GLOB",
            help="Only nodes whose name matches; may be given several times.",
        ),
        click.option(
            "--skip",
            multiple=True,
            metavar="GLOB",
            help="Not these nodes; may be given several times.",
        ),
        click.option(
            "--input-shape",
            "input_shapes",
            type=ShapeType(),
            multiple=True,
            help="Assume sizes for planning, e.g. x:1,3,224,224; the interface keeps its symbols.",
        ),
    ]
    names = [
        "factor",
        "axis",
        "layout",
        "ragged",
        "mix_samples",
        "ieee_strict",
        "max_channels",
        "max_flops_growth",
        "max_bytes_growth",
        "nodes",
        "skip",
        "input_shapes",
    ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def collect(**arguments: Any) -> Any:
            chosen = {name: arguments.pop(name) for name in names}
            chosen["layout"] = Layout(chosen["layout"])
            chosen["input_shapes"] = dict(chosen["input_shapes"])
            return command(fold=FoldOptions(**chosen), **arguments)

        for decorator in reversed(decorators):
            collect = decorator(collect)
        return collect

    return decorate


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn every error of a command into one line on standard error and its exit code."""

    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @functools.wraps(command)
    def run(*, debug: bool, **arguments: Any) -> None:
        for name in ("SIGTERM", "SIGHUP"):  # SIGHUP stays ignored under nohup
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _terminate)
        with _exit_codes(debug=debug), warnings.catch_warnings():
            if not debug:
                warnings.simplefilter("ignore")  # what a library thinks of a model is not ours
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
        leave("out of memory", INTERNAL)
    except Exception as error:  # the last door: anything else is a fault of ours
        if debug:
            traceback.print_exc()
        kind = type(error).__name__
        leave(f"internal error, please report it: {kind}: {printable(str(error))}", INTERNAL)


def leave(message: str, code: int) -> NoReturn:
    """Print one line and exit."""
    click.echo(f"widthfold: {printable(message, 1000)}", err=True)
    raise click.exceptions.Exit(code)


def typed_command() -> str:
    """The command line as it was typed, but without folders: a report names no absolute path."""
    words = click.get_current_context().find_root().obj or []
    return shlex.join(["widthfold", *map(_without_folder, words)])


def _without_folder(word: str) -> str:
    option, equals, value = word.rpartition("=")
    path = Path(value)
    with contextlib.suppress(OSError):  # no path but a name, too long to be one
        if path.is_absolute() and str(path.parent) != path.anchor and path.parent.is_dir():
            return f"{option}{equals}{path.name}"
    return word


def _terminate(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A status line on a terminal; nothing anywhere else."""
    if not sys.stderr.isatty():
        yield lambda line: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as status:
        yield lambda line: status.update(Text(printable(line, 100)))


def parse_pair(text: str) -> tuple[str | None, float]:
    """``1e-4`` -> (None, 1e-4); ``out:1e-4`` -> ("out", 1e-4).

    Raises:
        UsageError: no number, or a negative one.
    """
    name, colon, number = text.rpartition(":")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not (value >= 0 and math.isfinite(value)):
        raise UsageError(f"{printable(text)!r} is not a tolerance like 1e-4 or OUTPUT:1e-4")
    return (name if colon else None), value
