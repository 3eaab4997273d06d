"""Define options that commands share, and derive options from dataclasses.

An option has the type and the default of its field. Only its help is written by hand, under the
option as `--help` shows it: `{"--threads": "Threads of one operator."}`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from widthfold_onnx.keywords import field_of
from widthfold_onnx.options import (
    AxisName,
    FoldOptions,
    FormName,
    Provider,
    Sizes,
    Tolerance,
    Values,
    VerifyOptions,
)
from widthfold_onnx.reports.formats import Destinations
from widthfold_onnx.text import printable, quoted

Help = Mapping[str, str | Mapping[str, Any]]
"""Option -> its help, or arguments of `click.option`, such as another type."""

Command = Callable[..., Any]

Number = TypeVar("Number", int, float)

MAX_EXTENT = 1 << 40


class Word(click.Choice):  # type: ignore[type-arg] # not generic in click 8.1
    """A member of an enumeration, also an unlisted one such as FooExecutionProvider."""

    def __init__(self, words: type[StrEnum]) -> None:
        """Let `--help` show the listed words."""
        super().__init__([word.value for word in words])
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the member of a word; refuse any other word, and list those that are offered."""
        try:
            return self.words(value)
        except ValueError:
            return super().convert(value, param, ctx)


def parse_axis(text: str) -> AxisName | int:
    """Read digits as an index into the Conv's input shape, anything else as a name."""
    if text.isascii() and text.isdigit() and len(text) < 4:
        return int(text)
    try:
        return AxisName(text)
    except ValueError:
        names = ", ".join(AxisName)
        raise click.BadParameter(f"{printable(text)!r} is none of {names}, 0, 2, 3, 4") from None


def _numbers(text: str, separator: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """Split a text into numbers; return () if one part is no number."""
    try:
        return tuple(map(kind, text.split(separator)))
    except ValueError:
        return ()


def parse_shape(text: str) -> tuple[str, list[tuple[int, ...]]]:
    """Read NAME:1,3,224,224 as ("NAME", [(1, 3, 224, 224)]); the name may hold colons.

    An empty list of dimensions is a scalar. A range of extents, NAME:1,3,320..640,320..640, gives
    two shapes: with all lower ends, and with all upper ends.
    """
    name, _, dims = text.rpartition(":")
    ranges = [_numbers(dim, "..", int) for dim in dims.split(",")] if dims else []
    is_valid = all(
        len(ends) in (1, 2) and 1 <= ends[0] <= ends[-1] <= MAX_EXTENT for ends in ranges
    )
    if not name or not is_valid:
        raise click.BadParameter(
            f"{printable(text)!r} is not of the form NAME:1,3,224,224 or NAME:1,3,64..224,64..224, "
            "with sizes of at least 1, and the lower end of a range first"
        )
    shapes = [tuple(ends[end] for ends in ranges) for end in (0, -1)]
    return name, list(dict.fromkeys(shapes))


def paired_sizes(pairs: Iterable[tuple[str, list[tuple[int, ...]]]]) -> Sizes:
    """Combine the shapes of inputs: the first shapes of all of them, then the second ones, ...

    An input with a single shape has that one in every assignment.
    """
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for name, choices in pairs:
        shapes.setdefault(name, []).extend(choices)
    counts = {len(choices) for choices in shapes.values()} - {1}
    if len(counts) > 1:
        times = ", ".join(f"{printable(name)} {len(s)} times" for name, s in shapes.items())
        raise click.BadParameter(f"it names {times}: equally many, or once")
    count = max(counts, default=1)
    return tuple(
        {name: choices[min(i, len(choices) - 1)] for name, choices in shapes.items()}
        for i in range(count)
    )


def parse_value(text: str) -> tuple[str, tuple[float, ...]]:
    """Read NAME=0.1,0.9 as ("NAME", (0.1, 0.9)); the name may hold "="."""
    name, _, elements = text.rpartition("=")
    values = _numbers(elements, ",", float)
    if not (name and values and all(map(math.isfinite, values))):
        raise click.BadParameter(f"{printable(text)!r} is not of the form NAME=16000")
    return name, values


def parse_assignment(text: str) -> tuple[str, str]:
    """Read NAME=VALUE; VALUE may hold "=" and may be empty."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{quoted(text)} is not of the form NAME=VALUE")
    return name, value


def unique_values(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values by name; refuse two values of one name."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if values.setdefault(name, value) != value:
            raise click.BadParameter(f"{quoted(name)} has two values")
    return values


TYPES: dict[Any, Any] = {
    int: click.INT,
    float: click.FLOAT,
    str: click.STRING,
    Path: click.Path(path_type=Path),
    AxisName | int: parse_axis,
}
"""Type of a field -> type of click. Other types are enumerations, of which an option is a
`Word`."""

COLLECTIONS: dict[Any, tuple[Callable[[str], Any], Callable[[Iterable[Any]], Any]]] = {
    Sizes: (parse_shape, paired_sizes),
    Values: (parse_value, unique_values),
    Mapping[str, str]: (parse_assignment, unique_values),
}
"""Type of a field -> functions that parse one value of its option, and that join all values."""


def options_of(
    argument: str, kind: type[Any], helps: Help, make: Callable[..., Any] | None = None
) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command, which gets them as one argument.

    An option has the name of its field: in the singular if it may be given several times
    (`--provider-option`), and with "no-" in front if it switches something off (`--no-timing`).

    Args:
        argument: name of the argument.
        kind: the dataclass.
        helps: help of the options, in the order of `--help`.
        make: called with the values by field to make the argument; None calls `kind`.
    """
    hints = get_type_hints(kind)
    defaults = {field.name: field.default for field in fields(kind)}
    options: dict[str, Callable[[Command], Command]] = {}
    for words, help_of_option in helps.items():
        flag, _, metavar = words.partition(" ")
        name = flag.removeprefix("--").replace("-", "_")
        field = field_of(name, kind) or name
        about = _derived(hints[field], defaults[field]) if field in hints else {}
        about |= {"metavar": metavar or None}
        about |= {"help": help_of_option} if isinstance(help_of_option, str) else help_of_option
        options[field] = click.option(flag, field, **about)

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def collect(**arguments: Any) -> Any:
            values = {field: arguments.pop(field) for field in options}
            return command(**{argument: (make or kind)(**values)}, **arguments)

        for option in reversed(options.values()):
            option(collect)
        return collect

    return decorate


def _derived(hint: Any, default: Any) -> dict[str, Any]:
    """Return arguments of `click.option` that follow from type and default of a field."""
    if hint is bool:
        return {"is_flag": True, "flag_value": not default, "default": default}
    if hint in COLLECTIONS:
        parse, join = COLLECTIONS[hint]
        return {"multiple": True, "type": parse, "callback": lambda ctx, param, pairs: join(pairs)}
    value_type = TYPES.get(hint)
    if value_type is None:  # a tuple of words or paths, an optional value, or an enumeration
        item_type = next(iter(get_args(hint)), hint)
        value_type = TYPES.get(item_type) or Word(item_type)
    if get_origin(hint) is tuple:
        return {"multiple": True, "type": value_type}
    default_value = default.value if isinstance(default, Enum) else default
    return {"type": value_type, "default": default_value, "show_default": default_value is not None}


def factor_or_auto(text: str) -> int | None:
    """Read auto as None, anything else as a whole number."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        message = f"{printable(text)!r} is neither auto nor a whole number"
        raise click.BadParameter(message) from None


FORM: Help = {
    "--form": "fold: as --factor says. strides: fold the strides of every layer and nothing else, "
    "without measuring: a ConvTranspose becomes a Conv and a pixel shuffle, any other Conv a pixel "
    "unshuffle and a Conv of stride 1.",
    "--companion": "Exchange ops for equal ones that run faster: prelu (PRelu), scalar (arithmetic "
    "with one number), split (a Conv whose channels are split), crop (a Slice or Pad beside a "
    "Conv), or none. May be given several times. Default: --factor auto measures all of them; a "
    "number and --form strides exchange none.",
    "--pad-channels N": "Pad the channels of whole chains of layers with zeros to multiples of "
    "N; 0: of none. Default: --factor auto measures 4, 8 and 16; a number and --form strides pad "
    "none.",
    "--freeze-weights": "Take weights out of the inputs of the model, where callers could replace "
    "them and the runtime neither packs nor fuses them.",
}
"""Options of the commands that show or write one model."""

LIMITS: Help = {
    "--axis AXIS": "Axis to fold: auto, batch, height, width, depth, or its index.",
    "--layout": "Form of the moves: nhwc suits a runtime that computes channels-last and can "
    "remove their Transposes. auto measures both; at a fixed factor it is the layout of the "
    "provider, nhwc with prefer_nhwc=1.",
    "--ragged": "Fold extents that the factor does not divide, too: pad the data, cut the result.",
    "--mix-samples": "Allow folds whose weight joins samples of a batch: a NaN of one can reach "
    "others.",
    "--nonfinite": "spread: Inf and NaN may reach more outputs of the same sample. refuse: no fold "
    "with structural zeros, so that Inf and NaN stay where they were.",
    "--fixed-shapes": "OUT runs at the sizes of --input-shape only, and declares them in its "
    "inputs. Without this it runs at every size, and open sizes are tested where a fold needs it.",
    "--max-channels": "Leave a layer alone if its input and its output have at least this many "
    "channels in every group.",
    "--max-flops-growth": "Refuse a fold that multiplies the multiply-adds of a layer by more than "
    "this.",
    "--max-bytes-growth": "Refuse a fold that multiplies the bytes of input, weight and output by "
    "more than this.",
    "--nodes GLOB": "Fold only nodes whose name matches; may be given several times.",
    "--skip GLOB": "Leave alone nodes whose name matches; may be given several times.",
    "--input-shape NAME:DIMS": "Sizes where the model leaves them open, e.g. x:1,3,224,224; the "
    "model keeps its symbols. May be given several times, also for one input, or as a range "
    "x:1,3,320..640,320..640: a changed model gains at one of these sizes and loses at none.",
}
"""Options of all commands that plan a fold."""


def planning_options(default_factor: str | None) -> Callable[[Command], Command]:
    """Add the options of a fold; the command gets one `fold_options` argument.

    Args:
        default_factor: with "auto", `--factor` takes auto or a number; None leaves out `--factor`
            and `FORM`.
    """
    if default_factor is None:
        return options_of("fold_options", FoldOptions, LIMITS)
    auto = default_factor == "auto"
    factor = {
        "type": factor_or_auto,
        "default": default_factor,
        "show_default": True,
        "help": "Turn N positions of an axis into N times as many channels"
        + ("; auto: the forms that were measured to be faster." if auto else "."),
    }
    helps: Help = {f"--factor {'N|auto' if auto else 'N'}": factor, **FORM, **LIMITS}
    return options_of("fold_options", FoldOptions, helps, _make_fold_options)


def _make_fold_options(**values: Any) -> FoldOptions:
    """Make the options; the default factor does not apply if only strides are folded."""
    source = click.get_current_context().get_parameter_source("factor")
    if values["form"] == FormName.STRIDES and source is ParameterSource.DEFAULT:
        values["factor"] = None
    return FoldOptions(**values)


def parse_tolerance(text: str) -> tuple[str, float]:
    """Read out:1e-4 as ("out", 1e-4), and 1e-4, a tolerance of all outputs, as ("", 1e-4)."""
    name, _, digits = text.rpartition(":")
    bounds = _numbers(digits, ":", float)
    if not (bounds and 0 <= bounds[0] < math.inf):
        raise click.BadParameter(f"{printable(text)!r} is not a tolerance like 1e-4 or OUTPUT:1e-4")
    return name, bounds[0]


VALUE: Help = {
    "--value NAME=VALUE": "Value of an input that is no signal, such as a rate, e.g. sr=16000, or "
    "limits=0.1,0.9. Default for small inputs: what the model compares them with, else random.",
}
PROVIDER: Help = {
    "--provider NAME": f"Execution provider: {', '.join(Provider)}, or any other one as the "
    "runtime names it, ...ExecutionProvider; exit 4 if it cannot be used. auto: CUDA where that "
    "works, else the CPU. Single nodes that run on another provider are named.",
    "--provider-option NAME=VALUE": "Option of the execution provider, as ONNX Runtime names it, "
    "e.g. prefer_nhwc=1.",
    **VALUE,
    "--session-option NAME=VALUE": "Session config entry that you deploy with, as ONNX Runtime "
    "names it, e.g. session.x64quantprecision=1.",
}
RUNNING: Help = {
    **PROVIDER,
    "--inputs PATH": "Stored inputs to use as well: a test_data_set_* folder, .npz or .npy.",
}
"""Options of `RuntimeOptions` for the commands that run whole models."""

COMPARING: Help = {
    "--seeds": "Number of random input sets to compare.",
    "--rtol [OUT:]TOL": {
        "multiple": True,
        "type": parse_tolerance,
        "help": "Tolerance relative to the largest magnitude of an output, for all outputs or for "
        "OUT. Default: by dtype.",
    },
    "--atol": {
        "type": click.FLOAT,
        "default": Tolerance.atol,
        "show_default": True,
        "help": "Absolute tolerance.",
    },
}
"""Options of `VerifyOptions` for the commands that compare outputs."""

SEARCHING: Help = {
    "--threads": "Threads of one operator (intra-op); the fastest forms depend on it.",
    "--effort": "quick: time the forms that are predicted to be fastest, once, in about 20 s. "
    "default: time more of them, in under a minute. thorough: time every form of every layer, for "
    "minutes.",
    "--store": "File that keeps measurements. Default: $WIDTHFOLD_STORE, else a file in the user's "
    "cache.",
}
"""Options of `SearchOptions` for both commands that measure layers."""


def verify_fields(
    *, seeds: int, rtol: tuple[tuple[str, float], ...], atol: float
) -> dict[str, Any]:
    """Return the fields of `VerifyOptions` for `COMPARING`.

    Raises:
        UsageError: a tolerance below 0.
    """
    bounds = dict(rtol)
    default_rtol = bounds.pop("", None)
    tolerance = Tolerance(rtol=default_rtol, atol=atol, per_output=bounds)
    return {"seeds": seeds, "tolerance": tolerance}


comparison_options = options_of("comparison", VerifyOptions, COMPARING, verify_fields)
"""Adds the options with which a model is compared before it is written, as `comparison`: fields of
`VerifyOptions`."""

FILES: Help = {
    "--report FILE": {
        "type": click.Path(path_type=Path, dir_okay=False),
        "help": "Write a report, too; the suffix chooses its format: .json, .md, .html, or "
        "of verify .xml.",
    },
    "--format": "Print this format instead of tables.",
}
DETAILS: Help = {
    "--details": "Print everything: all layers and forms, regions, times of nodes, the proof. "
    "Reports hold it anyway.",
}

file_arguments = options_of("destinations", Destinations, FILES)
"""Adds the options of report files and format, as `destinations`."""

report_arguments = options_of("destinations", Destinations, {**DETAILS, **FILES})
"""Adds these options and `--details`, as `destinations`: for a result with a brief description."""
