"""Define a set of inputs, and draw random inputs of every element type.

Floats come from several distributions, because each shows faults that the others hide.
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
"""Range of log10 of magnitudes; some exceed limits in models, such as a Clip at 1,000."""

HALF_DECADES = (-6.0, 2.0)
"""The same for float16, where sums of larger numbers would overflow."""

FEW = (256, 1024)
"""Range, end excluded, of an input of a few integers that are data, such as a time step: too large
for a byte, but small enough that a Sin of them is more than the rounding of its operand."""


@dataclass(frozen=True)
class InputSet:
    """One set of inputs.

    Attributes:
        label: its name in messages: an escaped file or folder name, or e.g. "seed 0, normal".
        feeds: array by input name.
        expected: stored outputs in the order of the graph; () if there are none.
        random: True if it was drawn, False if it was stored.
    """

    label: str
    feeds: dict[str, Array]
    expected: tuple[Array, ...] = ()
    random: bool = False


def with_small_integers(item: InputSet) -> InputSet:
    """Reduce the integers of a set to 0 and 1, which are valid indices nearly everywhere.

    Returns:
        A new set, or the set itself if its integers are 0 and 1 already.
    """
    integers = {name: x for name, x in item.feeds.items() if x.dtype.kind in "iu"}
    if all(np.isin(x, (0, 1)).all() for x in integers.values()):
        return item
    feeds = {**item.feeds, **{name: x & 1 for name, x in integers.items()}}
    return replace(item, label=f"{item.label}, integers 0 and 1", feeds=feeds)


class Distribution(StrEnum):
    """A distribution of values, by its name in reports; `draw_whole` has those of integers.

    Attributes:
        NORMAL: both signs, and hardly a zero.
        UNIFORM: from 0 to 1, so that sums do not average out.
        BYTES: whole numbers from 0 to 255, as unscaled pixels are.
        CONSTANT: nearly constant, so that differences cancel.
        RANGE: magnitudes over many decades, so that large values bury small ones.
        SMOOTH: NORMAL whose neighbours are alike: amplitudes fall as 1 / frequency, as those of
            photographs do (Field, 1987). Only for timing.
    """

    NORMAL = "normal"
    UNIFORM = "uniform 0 to 1"
    BYTES = "integers 0 to 255"
    CONSTANT = "nearly constant"
    RANGE = "many decades"
    SMOOTH = "smooth"


def distribution_of(seed: int) -> Distribution:
    """Return the distribution of a seed; any five seeds in a row cover all but SMOOTH."""
    kinds = [kind for kind in Distribution if kind is not Distribution.SMOOTH]
    return kinds[seed % len(kinds)]


def draw(
    kind: Distribution,
    generator: np.random.Generator,
    shape: tuple[int, ...],
    decades: tuple[float, float] = HALF_DECADES,
) -> Array:
    """Draw float64 values of a distribution; with the default `decades` they fit float16."""
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
    """Draw integers that are data, not indices: samples, pixels, counts.

    UNIFORM covers the range of the type, both ends included. RANGE covers it with magnitudes that
    are uniform in log2, of both signs. CONSTANT is within 2 of a level that is small for the type.
    BYTES are 0 to 255. NORMAL, with which models are timed, is 0 and 1. In types of 8 bits BYTES
    and NORMAL cover the range, too.
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
    """Draw noise with amplitudes scaled by 1 / frequency, with mean 0 and variance 1.

    It is cut from a slightly larger array: a Fourier transform of prime extents is slow.
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

    - An input with a value gets that value.
    - Floats have the distribution `kind`. Zeros would be faster and hide faults.
    - Integers are data (`draw_whole`), or indices and sizes below the limit of the port. NORMAL
      indices are 0 or 1, which are valid in any table of two rows.
    - At most `MAX_SMALL` integers that are data are often rates or switches: they are 0 or 1; for
      UNIFORM in the range `FEW`, and for RANGE, in signed types, negative as far.

    Args:
        inputs: of the model; overridable initializers keep their own values.
        seed: of the set.
        shapes: the shape of every input, from `find_shapes`.
        kind: distribution of the values.

    Raises:
        UnverifiedError: no values can be drawn for an element type.
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
    """Draw data (`draw_whole`, `_few`), or indices (`_rows`)."""
    if port.limit is None and (port.dtype.endswith("int8") or math.prod(shape) > MAX_SMALL):
        return draw_whole(kind, generator, shape, port.dtype)
    is_signed = not port.dtype.startswith("u")
    if port.limit is None:
        low, high = _few(kind, is_signed=is_signed)
    else:
        low, high = _rows(kind, min(port.limit, np.iinfo(port.dtype).max), is_signed=is_signed)
    return np.asarray(generator.integers(low, high, shape)).astype(port.dtype)


def _few(kind: Distribution, *, is_signed: bool) -> tuple[int, int]:
    """Return the range, end excluded, of an input of a few integers that are data."""
    if kind is Distribution.UNIFORM:
        return FEW
    if kind is Distribution.RANGE and is_signed:
        return -FEW[1], 0
    return 0, UNKNOWN_ROWS


def _rows(kind: Distribution, count: int, *, is_signed: bool) -> tuple[int, int]:
    """Return the range, end excluded, of indices into a table of `count` rows.

    Negative ones are drawn for RANGE: -1 is the last row.
    """
    if count <= UNKNOWN_ROWS or kind is Distribution.NORMAL:
        return 0, max(min(count, UNKNOWN_ROWS), 1)
    return -count if kind is Distribution.RANGE and is_signed else 0, count
