"""Define a set of inputs, and draw random inputs of every element type.

Floats are of several distributions: each shows faults that the others hide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import Shapes
from widthfold_onnx.runtime.session import Port
from widthfold_onnx.text import printable

NARROW_DEVIATION = 1e-3
"""Standard deviation of nearly constant values, relative to their mean."""

DECADES = (-6.0, 2.0)
"""Powers of ten between which magnitudes lie; float16 holds both ends."""


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


class Distribution(StrEnum):
    """A distribution of values, by the name that reports use.

    NORMAL has both signs and hardly a zero; UNIFORM never averages out; BYTES are unscaled
    pixels; CONSTANT cancels in every difference; RANGE buries small values under large.
    SMOOTH is for times alone: NORMAL with neighbours alike, whose amplitudes fall as 1 / frequency,
    as amplitudes of photographs do (Field, 1987).
    """

    NORMAL = "normal"
    UNIFORM = "uniform 0 to 1"
    BYTES = "integers 0 to 255"
    CONSTANT = "nearly constant"
    RANGE = "8 decades"
    SMOOTH = "smooth"


def distribution_of(seed: int) -> Distribution:
    """Return the distribution of a seed; five seeds in a row cover all but SMOOTH."""
    kinds = [kind for kind in Distribution if kind is not Distribution.SMOOTH]
    return kinds[seed % len(kinds)]


def draw(kind: Distribution, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw finite float64 values of a distribution; they stay finite in float16."""
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
            values = sign * 10.0 ** generator.uniform(*DECADES, shape)
        case Distribution.SMOOTH:
            values = _smooth(generator, shape)
        case _:
            assert_never(kind)
    return np.asarray(values)


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
    are 0 or 1, which is a valid index wherever two exist; integers of 8 bits, which are no indices
    in ONNX, are over their range.

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
        return np.asarray(generator.integers(0, 2, shape, np.uint8).astype(np.bool_))
    if port.dtype == "string":
        words = np.array(_WORDS, dtype=object)
        return np.asarray(words[generator.integers(0, len(words), shape)], dtype=object)
    if port.dtype in ("float16", "float32", "float64"):
        return draw(kind, generator, shape).astype(port.dtype)
    if port.dtype in ("int8", "uint8"):
        limits = np.iinfo(port.dtype)
        return np.asarray(generator.integers(limits.min, limits.max, shape, port.dtype, True))
    if port.dtype.removeprefix("u") in ("int16", "int32", "int64"):
        return np.asarray(generator.integers(0, 2, shape)).astype(port.dtype)
    raise UnverifiedError(
        f"input {printable(port.name)} is {printable(port.dtype)}: no random values are made "
        "for that type"
    )
