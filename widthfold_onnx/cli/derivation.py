"""Derive options of commands from dataclasses: a field has the type and the default of its option.

Only the help is written by hand, by the option as `--help` shows it: `"--nodes GLOB": "Fold only"`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import click

from widthfold_onnx.options import AxisName, Sizes, Values
from widthfold_onnx.options.keywords import field_of
from widthfold_onnx.text import printable, quoted

Help = Mapping[str, str | Mapping[str, Any]]
"""By option its help, or what else click is told of it, such as another type."""

Command = Callable[..., Any]

LARGEST_EXTENT = 1 << 40


class Word(click.Choice):  # type: ignore[type-arg] # not generic in click 8.1
    """An option that takes a member of an enumeration, also a member that is not listed."""

    def __init__(self, words: type[StrEnum]) -> None:
        """Show the words that the enumeration lists."""
        super().__init__([word.value for word in words])
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the member; refuse another word, and list the words that are offered."""
        try:
            return self.words(value)
        except ValueError:
            return super().convert(value, param, ctx)


def axis(text: str) -> AxisName | int:
    """Read digits as an index into the Conv's input shape, anything else as a name."""
    if text.isascii() and text.isdigit() and len(text) < 4:
        return int(text)
    try:
        return AxisName(text)
    except ValueError:
        names = ", ".join(AxisName)
        raise click.BadParameter(f"{printable(text)!r} is none of {names}, 0, 2, 3, 4") from None


def shape(text: str) -> tuple[str, list[tuple[int, ...]]]:
    """Read NAME:1,3,224,224 as ("NAME", [(1, 3, 224, 224)]); the name may hold colons.

    An empty list of dimensions is a scalar. A range of extents, NAME:1,3,320..640,320..640, gives
    two shapes: with all lower ends, and with all upper ends.
    """
    name, _, dims = text.rpartition(":")
    try:
        ranges = [tuple(map(int, dim.split(".."))) for dim in dims.split(",")] if dims else []
    except ValueError:
        ranges = [(-1,)]
    is_valid = all(1 <= ends[0] <= ends[-1] <= LARGEST_EXTENT and len(ends) <= 2 for ends in ranges)
    if not name or not is_valid:
        raise click.BadParameter(
            f"{printable(text)!r} is not of the form NAME:1,3,224,224 or NAME:1,3,64..224,64..224, "
            "with sizes of at least 1, and the lower end of a range first"
        )
    shapes = [tuple(ends[end] for ends in ranges) for end in (0, -1)]
    return name, list(dict.fromkeys(shapes))


def sizes(pairs: Iterable[tuple[str, list[tuple[int, ...]]]]) -> Sizes:
    """Assign shapes to inputs: the first shapes of all inputs together, then the second ones.

    An input with a single shape has it in every assignment.
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


def number(text: str) -> tuple[str, tuple[float, ...]]:
    """Read NAME=0.1,0.9 as ("NAME", (0.1, 0.9)); the name may hold "="."""
    name, _, elements = text.rpartition("=")
    try:
        values = tuple(float(element) for element in elements.split(","))
    except ValueError:
        values = (math.nan,)
    if not name or not all(map(math.isfinite, values)):
        raise click.BadParameter(f"{printable(text)!r} is not of the form NAME=16000")
    return name, values


def assignment(text: str) -> tuple[str, str]:
    """Read NAME=VALUE; VALUE may hold "=" and may be empty."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{quoted(text)} is not of the form NAME=VALUE")
    return name, value


def mapping(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
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
    AxisName | int: axis,
}
"""Types of click by type of a field; words of any other enumeration are its members."""

COLLECTIONS: dict[Any, tuple[Callable[[str], Any], Callable[[Iterable[Any]], Any]]] = {
    Sizes: (shape, sizes),
    Values: (number, mapping),
    Mapping[str, str]: (assignment, mapping),
}
"""By type of a field, how one value of its option is read, and how all of them are joined."""


def options_of(
    argument: str, kind: type[Any], helps: Help, make: Callable[..., Any] | None = None
) -> Callable[[Command], Command]:
    """Add options to a command, which gets them as one argument.

    An option has the name of its field, with an "s" less if it may be given several times, or
    begins with "no-" if it switches off.

    Args:
        argument: name of the argument.
        kind: the dataclass.
        helps: help of the options, in the order of `--help`.
        make: makes the argument of the values by field, where that is not `kind` itself.
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
    """Return what click is told of an option, by the type and the default of its field."""
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
