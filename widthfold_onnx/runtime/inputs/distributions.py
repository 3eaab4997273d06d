"""Draws random floats of several distributions: each shows faults that the others hide."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import assert_never

import numpy as np

from widthfold_onnx.arrays import Array

SPREAD = 1e-3
"""Standard deviation of nearly constant values, relative to their mean."""

DECADES = (-6.0, 2.0)
"""Powers of ten between which magnitudes lie; float16 holds both ends."""


class Distribution(StrEnum):
    """A distribution of values, by the name that reports use.

    NORMAL has both signs and hardly a zero; UNIFORM never averages out; BYTES are unscaled
    pixels; CONSTANT cancels in every difference; RANGE buries small values under large.
    SMOOTH is for times alone: NORMAL with neighbours alike, whose amplitudes fall as 1 / frequency,
    as those of photographs do (Field, 1987).
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
            values = level * (1 + SPREAD * generator.standard_normal(shape))
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
