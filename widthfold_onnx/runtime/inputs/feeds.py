"""Define a set of inputs, and draw random inputs of every element type.

Floats are of several distributions: each shows faults that the others hide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

import numpy as np

from widthfold_onnx.arrays import Array, integers_of_all_sizes
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.model.proto.indices import UNKNOWN_ROWS
from widthfold_onnx.options import Shapes
from widthfold_onnx.runtime.inputs.cases import MAX_SMALL
from widthfold_onnx.runtime.session import Port
from widthfold_onnx.text import printable

NARROW_DEVIATION = 1e-3
"""Standard deviation of nearly constant values, relative to their mean."""

DECADES = (-6.0, 4.0)
"""Powers of ten between which magnitudes lie: some are beyond limits such as 1,000."""

HALF_DECADES = (-6.0, 2.0)
"""The same for float16, which holds no large sums of more."""


FEW = (256, 1024)
"""Ends of the numbers of an input of a few integers that are data, such as a time step: they leave
a byte, and a Sin of more is the rounding of its operand."""


@dataclass(frozen=True)
class InputSet:
    """One set of inputs.

    Attributes:
        label: its name in messages: a file or folder name, escaped, or "seed 0, normal".
        feeds: array by input name.
        expected: outputs in graph order, () where none are stored.
        random: True if it is random, not stored.
    """

    label: str
    feeds: dict[str, Array]
    expected: tuple[Array, ...] = ()
    random: bool = False


def with_small_integers(item: InputSet) -> InputSet:
    """Return a set whose integers are 0 and 1, as indices may be; the set itself if they are."""
    integers = {name: x for name, x in item.feeds.items() if x.dtype.kind in "iu"}
    if all(np.isin(x, (0, 1)).all() for x in integers.values()):
        return item
    feeds = {**item.feeds, **{name: x & 1 for name, x in integers.items()}}
    return replace(item, label=f"{item.label}, integers 0 and 1", feeds=feeds)


class Distribution(StrEnum):
    """A distribution of values, by the name that reports use.

    NORMAL has both signs and hardly a zero; UNIFORM never averages out; BYTES are unscaled
    pixels; CONSTANT cancels in every difference; RANGE buries small values under large.
    `draw_whole` says what they are of whole numbers.
    SMOOTH is for times alone: NORMAL with neighbours alike, whose amplitudes fall as 1 / frequency,
    as amplitudes of photographs do (Field, 1987).
    """

    NORMAL = "normal"
    UNIFORM = "uniform 0 to 1"
    BYTES = "integers 0 to 255"
    CONSTANT = "nearly constant"
    RANGE = "many decades"
    SMOOTH = "smooth"


def distribution_of(seed: int) -> Distribution:
    """Return the distribution of a seed; five seeds in a row cover all but SMOOTH."""
    kinds = [kind for kind in Distribution if kind is not Distribution.SMOOTH]
    return kinds[seed % len(kinds)]


def draw(
    kind: Distribution,
    generator: np.random.Generator,
    shape: tuple[int, ...],
    decades: tuple[float, float] = HALF_DECADES,
) -> Array:
    """Draw float64 values of a distribution; with the default `decades` float16 holds them."""
    match kind:
        case Distribution.NORMAL:
            values = generator.standard_normal(shape)
        case Distribution.UNIFORM:
            values = generator.random(shape)
        case Distribution.BYTES:
            values = generator.integers(0, 255, shape, endpoint=True).astype(np.float64)
        case Distribution.CONSTANT:
            level = generator.uniform(0.5, 2.0) * generator.choice([-1.0, 1.0])
            values = level * (1 + NARROW_DEVIATION * generator.standard_normal(shape))
        case Distribution.RANGE:
            sign = generator.choice([-1.0, 1.0], shape)
            values = sign * 10.0 ** generator.uniform(*decades, shape)
        case Distribution.SMOOTH:
            values = _smooth(generator, shape)
        case _:
            assert_never(kind)
    return np.asarray(values)


def draw_whole(
    kind: Distribution, generator: np.random.Generator, shape: tuple[int, ...], dtype: str
) -> Array:
    """Draw whole numbers of a type that are data: samples, pixels, counts.

    UNIFORM has the whole range of the type, with its ends; RANGE has as many numbers of each
    binary magnitude, of both signs; CONSTANT is near a level that is small for the type. NORMAL,
    with which models are timed, is 0 and 1. NORMAL and BYTES of 8 bits have the whole range, too.
    """
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    bits = high.bit_length()
    signs = np.array([-1, 1] if low else [1])
    match kind:
        case Distribution.CONSTANT:
            level = generator.choice(signs) * int(2.0 ** generator.uniform(0, bits / 2))
            values = (level + generator.integers(-2, 3, shape)).clip(low, high)
        case Distribution.RANGE:
            values = integers_of_all_sizes(generator, shape, np.dtype(dtype))
        case Distribution.UNIFORM:
            values = np.asarray(generator.integers(low, high, shape, dtype, endpoint=True))
            values.flat[:1], values.flat[-1:] = low, high
        case _ if bits <= 8:
            values = generator.integers(low, high, shape, dtype, endpoint=True)
        case Distribution.BYTES:
            values = generator.integers(0, 256, shape)
        case _:
            values = generator.integers(0, 2, shape)
    return np.asarray(values).astype(dtype)


def _smooth(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw noise with amplitudes scaled by 1 / frequency, to a mean of 0 and a variance of 1.

    It is cut from extents that a fast Fourier transform takes: a prime one of 16 million elements
    needed 17 s and 2.9 GB.
    """
    if math.prod(shape) < 2:
        return generator.standard_normal(shape)
    from scipy.fft import irfftn, next_fast_len, rfftn  # most commands do not time

    extents = [next_fast_len(extent, real=True) for extent in shape]
    axes = [*map(np.fft.fftfreq, extents[:-1]), np.fft.rfftfreq(extents[-1])]
    frequencies = np.sqrt(sum(axis**2 for axis in np.ix_(*axes)))
    frequencies.flat[0] = np.inf
    values = irfftn(rfftn(generator.standard_normal(extents)) / frequencies, extents)
    values = values[tuple(map(slice, shape))]
    return np.asarray((values - values.mean()) / values.std())


_WORDS = ("fold", "width", "", "unicode \u00e9")


def random_feeds(
    inputs: Sequence[Port],
    seed: int,
    shapes: Shapes,
    kind: Distribution = Distribution.NORMAL,
) -> dict[str, Array]:
    """Return one array per input, the same for the same (seed, input name, kind).

    Floats are of that kind, by default normal: zeros would time faster and hide faults. Integers
    are data (`draw_whole`), or indices and sizes below the limit of the port. Normal indices are 0
    or 1, which are valid wherever two exist. At most `MAX_SMALL` integers are often rates or
    switches: they are 0 or 1, and in two sets of hundreds of both signs.

    An input that has a value gets that.

    Args:
        inputs: of the model; overridable initializers keep their own values.
        seed: of the set.
        shapes: the shape of every input, from `find_shapes`.
        kind: how floats are distributed.

    Raises:
        UnverifiedError: an element type that cannot be made up.
        UsageError: a value of another size than its input.
    """
    return {port.name: _random(port, seed, shapes[port.name], kind) for port in inputs}


def _random(port: Port, seed: int, shape: tuple[int, ...], kind: Distribution) -> Array:
    if port.value:
        elements = np.array(port.value)
        if "int" in port.dtype:
            limits = np.iinfo(port.dtype)
            elements = elements.clip(limits.min, limits.max)
        elements = elements.astype(port.dtype)
        if elements.size not in (1, math.prod(shape)):
            size = f"{elements.size} elements where its shape is {list(shape)}"
            raise UsageError(f"--value gives {printable(port.name)} {size}")
        return np.resize(elements, shape)
    generator = np.random.default_rng([seed, *port.name.encode()])
    if port.dtype == "bool":
        least = 1 if kind is Distribution.CONSTANT else 0
        return np.asarray(generator.integers(least, 2, shape, np.uint8).astype(np.bool_))
    if port.dtype == "string":
        words = np.array(_WORDS, dtype=object)
        return np.asarray(words[generator.integers(0, len(words), shape)], dtype=object)
    if port.dtype in ("float16", "float32", "float64"):
        decades = HALF_DECADES if port.dtype == "float16" else DECADES
        return draw(kind, generator, shape, decades).astype(port.dtype)
    if port.dtype.removeprefix("u") in ("int8", "int16", "int32", "int64"):
        return _integers(port, generator, shape, kind)
    raise UnverifiedError(
        f"input {printable(port.name)} is {printable(port.dtype)}: no random values are made "
        "for that type"
    )


def _integers(
    port: Port, generator: np.random.Generator, shape: tuple[int, ...], kind: Distribution
) -> Array:
    """Draw data, or indices; some are negative where the rows of a table are known."""
    if port.limit is None and (port.dtype.endswith("int8") or math.prod(shape) > MAX_SMALL):
        return draw_whole(kind, generator, shape, port.dtype)
    is_signed = not port.dtype.startswith("u")
    if port.limit is None:
        low, high = _few(kind, is_signed=is_signed)
    else:
        low, high = _rows(kind, min(port.limit, np.iinfo(port.dtype).max), is_signed=is_signed)
    return np.asarray(generator.integers(low, high, shape)).astype(port.dtype)


def _few(kind: Distribution, *, is_signed: bool) -> tuple[int, int]:
    """Return the least of a few integers that are data, and a number above them."""
    if kind is Distribution.UNIFORM:
        return FEW
    if kind is Distribution.RANGE and is_signed:
        return -FEW[1], 0
    return 0, UNKNOWN_ROWS


def _rows(kind: Distribution, count: int, *, is_signed: bool) -> tuple[int, int]:
    """Return the least index of a table with so many rows, and a number above all indices."""
    if count <= UNKNOWN_ROWS or kind is Distribution.NORMAL:
        return 0, max(min(count, UNKNOWN_ROWS), 1)
    return -count if kind is Distribution.RANGE and is_signed else 0, count
