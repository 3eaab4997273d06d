"""Name the options as keywords of the Python API: as on the command line, with "_" for "-".

The types below say what a call takes. Everything else follows from the dataclasses of options: a
keyword has the name of a field, without its "s" where the command line gives values one by one, or
with "no_" before it where it switches off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from enum import EnumType
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from widthfold_onnx.errors import UsageError
from widthfold_onnx.options.folding import AxisName, Companion, FoldOptions, Form, Layout, NonFinite
from widthfold_onnx.options.running import Effort, Provider, Tolerance
from widthfold_onnx.text import printable

Options = TypeVar("Options")


class RuntimeKeywords(TypedDict, total=False):
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
    guard_shapes: bool
    max_channels: int
    max_flops_growth: float
    max_bytes_growth: float
    nodes: Sequence[str]
    skip: Sequence[str]
    input_shape: Mapping[str, Sequence[int]]


class FoldKeywords(LimitKeywords, total=False):
    """Keywords of calls that decide forms (`FoldOptions`)."""

    factor: int | Literal["auto"]
    form: Form | str
    companion: Sequence[Companion | str]
    freeze_weights: bool


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
    """Keywords of calls that verify what they write (`VerifyOptions`)."""

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
    input_shape: Mapping[str, Sequence[int]]
    truth_budget: float
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
    """Return the options that keywords set; keywords of other options are left out.

    Args:
        kind: the dataclass of the options.
        keywords: the given ones.
        defaults: values of fields that no keyword sets.

    Raises:
        UsageError: a value that does not fit.
    """
    values = dict(defaults)
    types = get_type_hints(kind)
    for name, value in keywords.items():
        field = field_of(name, kind)
        if field is not None:
            values[field] = _value(name, field, value, types[field])
    if "tolerance" in types:
        values["tolerance"] = _tolerance(keywords.get("rtol"), keywords.get("atol", 0.0))
    if kind is FoldOptions and values.get("form") == Form.STRIDES and "factor" not in keywords:
        values["factor"] = None
    return kind(**values)


def _value(name: str, field: str, value: Any, type_: Any) -> Any:
    """Return the value of a field for the value of a keyword."""
    if name == f"no_{field}":
        return not _typed(name, value, bool)
    if name == "factor" and value == "auto":
        return None
    if field == "inputs":
        paths = [value] if isinstance(value, str | PathLike) else value
        return tuple(map(str, _typed(name, paths, tuple[Path, ...])))
    is_list = get_origin(type_) is tuple
    if is_list and not isinstance(value, str):
        return _typed(name, value, tuple[str, ...])
    # Options judge words and lists of them, and name those that there are.
    is_word = any(isinstance(each, EnumType) for each in (type_, *get_args(type_)))
    return value if is_list or is_word else _typed(name, value, type_)


def _typed(name: str, value: Any, type_: Any) -> Any:
    """Return a value of a type, made of one that JSON or an iterable may hold.

    Raises:
        UsageError: the value is of another type.
    """
    try:
        return msgspec.convert(value, type_, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name} is {printable(repr(value), 100)}: {error}") from error


def _path(_: type[Path], value: Any) -> Path:
    return Path(value)


def _tolerance(rtol: Any, atol: Any) -> Tolerance:
    bounds = _typed("rtol", rtol, float | None | dict[str, float])
    atol = _typed("atol", atol, float)
    if isinstance(bounds, dict):
        return Tolerance(atol=atol, per_output=bounds)
    return Tolerance(rtol=bounds, atol=atol)
