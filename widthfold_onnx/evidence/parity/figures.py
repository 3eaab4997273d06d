"""Measures how far two arrays are apart, by every figure that a report shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from widthfold_onnx.arrays import Array
from widthfold_onnx.results import WorstElement

BLOCK = 1 << 18
"""Elements that are compared at once."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The differences between two arrays; see `OutputParity`."""

    nonfinite_match: bool
    max_abs: float | None = None
    mean_abs: float | None = None
    max_rel: float | None = None
    ulp: int | None = None
    ulp_histogram: list[int] = field(default_factory=list)
    cosine: float | None = None
    psnr: float | None = None
    argmax_agreement: float | None = None
    worst: WorstElement | None = None


class Distance(NamedTuple):
    """The largest and the mean |difference| of two arrays, over elements finite in both."""

    largest: float = 0.0
    mean: float = 0.0

    def times(self, multiple: float) -> Distance:
        """Return a multiple of both."""
        return Distance(self.largest * multiple, self.mean * multiple)

    def joined(self, other: Distance) -> Distance:
        """Return the larger of each."""
        return Distance(max(self.largest, other.largest), max(self.mean, other.mean))


def distance(reference: Array, candidate: Array) -> Distance | None:
    """Return the distance; None for other types and extents, and for NaN or Inf elsewhere."""
    if reference.shape != candidate.shape or reference.dtype != candidate.dtype:
        return None
    parts = [_part(*pair) for pair in _blocks(*_numbers(reference, candidate))]
    return _distance(parts) if all(part.match for part in parts) else None


def measure(reference: Array, candidate: Array) -> tuple[Figures, float]:
    """Return all figures of two arrays of one dtype and shape, and the largest |reference|.

    Texts are 0 apart where they are equal, else 1.
    """
    a, b = _numbers(reference, candidate)
    parts = [_part(*pair) for pair in _blocks(a, b)]
    match = all(part.match for part in parts)
    scale = max((part.scale for part in parts), default=0.0)
    count = sum(part.compared for part in parts)
    if not count and a.size:
        return Figures(nonfinite_match=match), scale
    largest, mean = _distance(parts)
    if reference.dtype.kind in "OUS":
        return Figures(nonfinite_match=match, max_abs=largest, mean_abs=mean), scale
    relative = largest / scale if scale else (0.0 if largest == 0 else np.inf)
    ulps = [ulp_distance(x, y) for x, y in _blocks(*_finite(a, b))] if _is_floating(a) else []
    bins = zip_longest(*map(_histogram, ulps), fillvalue=0)
    figures = Figures(
        nonfinite_match=match,
        max_abs=_number(largest),
        mean_abs=_number(mean),
        max_rel=_number(relative),
        ulp=max((int(ulp.max()) for ulp in ulps), default=0) if _is_floating(a) else None,
        ulp_histogram=[sum(column) for column in bins],
        cosine=_cosine(a, b) if count == a.size else None,
        psnr=_psnr(a, b, count, largest, scale),
        argmax_agreement=_agreement(reference, candidate),
        worst=_worst_element(reference, a, b, parts, largest) if largest else None,
    )
    return figures, scale


class _Part(NamedTuple):
    """The figures of a block.

    Attributes:
        match: whether what is not finite is at the same places.
        scale: the largest finite |reference|.
        compared: elements that are finite in both arrays; the other figures are of those.
        largest: the largest distance.
        at: place of the first element at that distance.
        total: sum of the distances.
    """

    match: bool
    scale: float
    compared: int
    largest: float = 0.0
    at: int = 0
    total: float = 0.0


def _blocks(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """Yield both arrays block by block: in float64 a whole one would take several times as much."""
    a, b = a.reshape(-1), b.reshape(-1)
    for start in range(0, a.size, BLOCK):
        part = slice(start, start + BLOCK)
        yield a[part], b[part]


def _part(a: Array, b: Array) -> _Part:
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    both = finite_a & finite_b
    zero = a.dtype.type(0)
    others = np.where(finite_a, zero, a), np.where(finite_b, zero, b)
    match = np.array_equal(*others, equal_nan=True)
    scale = float(np.abs(_picked(a, finite_a).astype(np.float64, copy=False)).max(initial=0.0))
    if not both.any():
        return _Part(match, scale, 0)
    apart = _apart(_picked(a, both), _picked(b, both))
    worst = int(apart.argmax())
    with np.errstate(over="ignore"):
        total = float(apart.sum())
    at = int(np.flatnonzero(both)[worst])
    return _Part(match, scale, apart.size, float(apart[worst]), at, total)


def _distance(parts: Sequence[_Part]) -> Distance:
    count = sum(part.compared for part in parts)
    largest = max((part.largest for part in parts), default=0.0)
    return Distance(largest, sum(part.total for part in parts) / count if count else 0.0)


def _numbers(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Return what is compared: parts of complex numbers; of texts whether they differ."""
    if reference.dtype.kind in "OUS":
        differ = np.asarray(reference != candidate)
        return np.zeros_like(differ, dtype=np.bool_), differ.astype(np.bool_)
    return real_parts(reference), real_parts(candidate)


def _finite(a: Array, b: Array) -> tuple[Array, Array]:
    both = np.isfinite(a) & np.isfinite(b)
    return _picked(a, both), _picked(b, both)


def _is_floating(array: Array) -> bool:
    return array.dtype.kind not in "iub"


def ulp_distance(reference: Array, candidate: Array) -> npt.NDArray[np.uint64]:
    """Count the representable values between two arrays of one float dtype, elementwise.

    The bits of a float without its sign count its magnitude in units in the last place, from 0
    through the subnormals to infinity; both zeros have magnitude 0.
    """
    unsigned = np.dtype(f"u{reference.dtype.itemsize}")
    mask = unsigned.type(np.iinfo(unsigned).max >> 1)
    bits = [np.ascontiguousarray(side).view(unsigned) for side in (reference, candidate)]
    first, second = (side & mask for side in bits)
    same_sign = (bits[0] ^ bits[1]) <= mask
    apart = np.maximum(first, second) - np.minimum(first, second)
    # Two magnitudes have a bit less than the type, so their sum fits.
    return np.asarray(np.where(same_sign, apart, first + second), dtype=np.uint64)


def real_parts(array: Array) -> Array:
    """Return complex numbers as pairs, everything else as it is."""
    if array.dtype.kind != "c":
        return array
    return np.ascontiguousarray(array)[..., None].view(f"f{array.dtype.itemsize // 2}")


def _histogram(ulp: npt.NDArray[np.uint64]) -> tuple[int, ...]:
    """Count the distances with 0, 1, 2, ... binary digits, so bins 0, 1, 2-3, 4-7, ..."""
    # No float64 holds 64 digits; without the second digit none of them rounds up to 2**n.
    _, digits = np.frexp((ulp & ~(ulp >> np.uint64(1))).astype(np.float64))
    return tuple(int(count) for count in np.bincount(digits.ravel()))


def _psnr(a: Array, b: Array, count: int, largest: float, peak: float) -> float | None:
    if not peak or not 0 < largest < np.inf:
        return None
    squares = 0.0
    for x, y in _blocks(*_finite(a, b)):
        scaled = _apart(x, y) / largest
        squares += float(scaled @ scaled)
    return _number(
        float(20 * (np.log10(peak) - np.log10(largest)) - 10 * np.log10(squares / count))
    )


def _agreement(reference: Array, candidate: Array) -> float | None:
    if reference.dtype.kind == "c" or not reference.size or reference.shape[-1:] in ((), (1,)):
        return None
    return float(np.mean(reference.argmax(axis=-1) == candidate.argmax(axis=-1)))


def _worst_element(
    reference: Array, a: Array, b: Array, parts: Sequence[_Part], largest: float
) -> WorstElement:
    block = next(i for i, part in enumerate(parts) if part.largest == largest)
    at = block * BLOCK + parts[block].at
    index = np.unravel_index(at, a.shape)[: reference.ndim]  # of a complex number, not its parts
    return WorstElement(
        index=[int(i) for i in index], original=float(a.flat[at]), rewritten=float(b.flat[at])
    )


def _picked(array: Array, mask: npt.NDArray[np.bool_]) -> Array:
    """Return the masked elements; nothing is copied if that is all of them."""
    return array if bool(mask.all()) else np.asarray(array[mask])


def _apart(a: Array, b: Array) -> Array:
    if _is_floating(a):
        with np.errstate(over="ignore"):  # a distance past the largest float64 is reported as None
            return np.asarray(np.abs(a.astype(np.float64) - b.astype(np.float64)))
    if a.dtype.kind == "b":
        return np.asarray(a != b, dtype=np.float64)
    # The difference of two 64-bit integers fits an unsigned one of 64 bits, but no float.
    low, high = np.minimum(a, b), np.maximum(a, b)
    return np.asarray((high.astype(np.uint64) - low.astype(np.uint64)).astype(np.float64))


def _cosine(a: Array, b: Array) -> float | None:
    peaks = [_peak(side) for side in (a, b)]
    if not all(peaks):
        return None
    # Products of the largest and the smallest numbers leave float64; powers of two round nothing.
    shifts = [-int(np.frexp(peak)[1]) for peak in peaks]
    sums = np.zeros(3)
    for pair in _blocks(a, b):
        u, v = (np.ldexp(x.astype(np.float64), n) for x, n in zip(pair, shifts, strict=True))
        sums += u @ v, u @ u, v @ v
    return float(np.clip(sums[0] / np.sqrt(sums[1] * sums[2]), -1.0, 1.0))


def _peak(array: Array) -> float:
    blocks = (np.abs(x.astype(np.float64)).max() for x, _ in _blocks(array, array))
    return max(map(float, blocks), default=0.0)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
