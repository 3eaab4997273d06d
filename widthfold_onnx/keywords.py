"""Name the options as keywords of the Python API: as on the command line, with "_" for "-".

The types below list the keywords of each call; their values go into the dataclasses of `options`.
A keyword has the name of its field. It is singular where the option of the command line is
(`companion` sets `companions`), and starts with "no_" where it switches something off (`no_measure`
sets `measure`). `rtol` and `atol` make the `tolerance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

import msgspec

from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import (
    AxisName,
    Companion,
    Effort,
    FormName,
    Layout,
    NonFinite,
    Provider,
    Shapes,
    Sizes,
    Tolerance,
    Values,
)

Options = TypeVar("Options")

CHECKED = (bool, int, float, float | None, str | None, Mapping[str, str], Sizes, Values)
"""Types of fields that are checked here; a dataclass of options checks the others itself."""

FROM_SEQUENCE = (tuple[str, ...], tuple[Companion, ...])
"""Types of fields that take any sequence of words."""


class ValueKeywords(TypedDict, total=False):
    """Keywords of values of inputs (`RuntimeOptions`)."""

    value: Mapping[str, float | Sequence[float]]


class RuntimeKeywords(ValueKeywords, total=False):
    """Keywords of calls that run models (`RuntimeOptions`)."""

    provider: Provider | str
    provider_option: Mapping[str, str]
    session_option: Mapping[str, str]


class LimitKeywords(TypedDict, total=False):
    """Keywords that limit layers and forms (`FoldOptions`)."""

    axis: AxisName | str | int
    layout: Layout | str
    ragged: bool
    mix_samples: bool
    nonfinite: NonFinite | str
    fixed_shapes: bool
    max_channels: int
    max_flops_growth: float
    max_bytes_growth: float
    nodes: Sequence[str]
    skip: Sequence[str]
    input_shape: Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]]


class FoldKeywords(LimitKeywords, total=False):
    """Keywords of calls that decide forms (`FoldOptions`)."""

    factor: int | Literal["auto"]
    form: FormName | str
    companion: Sequence[Companion | str]
    pad_channels: int
    freeze_weights: bool


class InspectKeywords(FoldKeywords, ValueKeywords, total=False):
    """Keywords of `inspect`."""


class MeasureKeywords(RuntimeKeywords, total=False):
    """Keywords of calls that measure layers (`SearchOptions`)."""

    threads: int
    effort: Effort | str
    time_budget: float
    store: str | PathLike[str]


class SearchKeywords(MeasureKeywords, total=False):
    """Keywords of calls that search forms (`SearchOptions`)."""

    target: str
    no_measure: bool
    inputs: Sequence[str | PathLike[str]]


class PlanKeywords(FoldKeywords, SearchKeywords, total=False):
    """Keywords of `plan`."""


class CheckKeywords(RuntimeKeywords, total=False):
    """Keywords of calls that verify the model that they write (`VerifyOptions`)."""

    seeds: int
    inputs: Sequence[str | PathLike[str]]
    rtol: float | Mapping[str, float]
    atol: float


class OptimizeKeywords(PlanKeywords, CheckKeywords, total=False):
    """Keywords of `optimize`."""


class TuneKeywords(LimitKeywords, MeasureKeywords, total=False):
    """Keywords of `tune`."""

    jobs: int
    dask: str


class VerifyKeywords(CheckKeywords, total=False):
    """Keywords of `verify`."""

    threads: int
    input_shape: Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]]
    truth_work: float
    time_budget: float
    no_timing: bool
    baseline: str | PathLike[str]
    fail_under: float
    freeze_weights: bool


def field_of(name: str, kind: type) -> str | None:
    """Return the field of a dataclass that a keyword or an option sets; None if there is none.

    Args:
        name: the keyword, or the option without "--" and with "_" for "-".
        kind: the dataclass.

    >>> field_of("no_measure", __import__("widthfold_onnx.options").options.SearchOptions)
    'measure'
    """
    names = {field.name for field in fields(kind)}
    return next((n for n in (name, f"{name}s", name.removeprefix("no_")) if n in names), None)


def check_keywords(call: str, keywords: Iterable[str], allowed: type) -> None:
    """Check the keywords of a call.

    Args:
        call: name of the function.
        keywords: the given ones.
        allowed: the TypedDict of the keywords that the call takes.

    Raises:
        TypeError: a keyword that the call does not take.
    """
    names = list(allowed.__annotations__)
    for name in keywords:
        if name not in names:
            close = get_close_matches(name, names, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}{hint}")


def options_from(kind: type[Options], keywords: Mapping[str, Any], **defaults: Any) -> Options:
    """Make options of one kind; keywords that set none of its fields are ignored.

    Args:
        kind: the dataclass of the options.
        keywords: the given ones.
        defaults: values of fields; a keyword overrides them.

    Raises:
        UsageError: a value that does not fit.
    """
    values, hints = dict(defaults), get_type_hints(kind)
    for name, value in keywords.items():
        field = field_of(name, kind)
        if field is not None:
            values[field] = _value(name, field, value, hints[field])
    if "tolerance" in hints:
        values["tolerance"] = _tolerance(keywords.get("rtol"), keywords.get("atol", 0.0))
    return kind(**values)


def _value(name: str, field: str, value: Any, hint: Any) -> Any:
    """Convert the value of a keyword to the value of its field.

    Raises:
        UsageError: the value is of another type.
    """
    if name == f"no_{field}":
        return not _of_type(name, value, bool)
    if name == "factor":
        return None if value == "auto" else value
    if field == "inputs" and isinstance(value, str | PathLike):
        return (str(value),)
    if hint == Path | None:
        if not isinstance(value, str | PathLike | None):
            raise UsageError(f"{name} is {value!r}, no path")
        return None if value is None else Path(value)
    if hint == Sizes and isinstance(value, Mapping):
        return _of_type(name, value, Shapes)
    if hint == Values and isinstance(value, Mapping):
        value = {n: (v,) if isinstance(v, int | float) else v for n, v in value.items()}
    if hint in CHECKED:
        return _of_type(name, value, hint)
    if hint in FROM_SEQUENCE and not isinstance(value, str):
        if not isinstance(value, Iterable):
            raise UsageError(f"{name} is {value!r}, no sequence")
        return tuple(map(str, value))
    return value


def _of_type(name: str, value: Any, hint: Any) -> Any:
    """Convert a value to the type of its field, e.g. a list to a tuple.

    Raises:
        UsageError: it is of another type.
    """
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        reason = str(error)
        raise UsageError(f"{name} is {value!r}: {reason[0].lower()}{reason[1:]}") from None


def _tolerance(rtol: float | Mapping[str, float] | None, atol: float) -> Tolerance:
    atol = _of_type("atol", atol, float)
    if isinstance(rtol, Mapping):
        return Tolerance(atol=atol, per_output=_of_type("rtol", rtol, Mapping[str, float]))
    return Tolerance(rtol=_of_type("rtol", rtol, float | None), atol=atol)
