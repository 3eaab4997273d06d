"""Measures how far two arrays of one type and shape are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.results import WorstElement

BLOCK = 1 << 18
"""Elements that are compared at once: a whole array in float64 would take several times as much."""


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


@dataclass(frozen=True)
class Figures:
    """The differences between two arrays.

    Attributes:
        nonfinite_match: whether what is not finite is at the same places.
        distance: of elements that are finite in both; None where there are none.
        scale: the largest finite |reference|.
        worst: the element that differs most, None where none differs.
    """

    nonfinite_match: bool
    distance: Distance | None = None
    scale: float = 0.0
    worst: WorstElement | None = None


def distance(reference: Array, candidate: Array) -> Distance | None:
    """Return the distance; None for other types and extents, and for NaN or Inf elsewhere."""
    if reference.shape != candidate.shape or reference.dtype != candidate.dtype:
        return None
    figures = measure(reference, candidate)
    return (figures.distance or Distance()) if figures.nonfinite_match else None


def measure(reference: Array, candidate: Array) -> Figures:
    """Compare two arrays of one type and shape; texts are 0 apart where they are equal, else 1."""
    one, other = _numbers(reference, candidate)
    a, b = one.reshape(-1), other.reshape(-1)
    match, count, scale, largest, total, at = True, 0, 0.0, 0.0, 0.0, -1
    for start in range(0, a.size, BLOCK):
        x, y = a[start : start + BLOCK], b[start : start + BLOCK]
        finite = np.isfinite(x), np.isfinite(y)
        both = finite[0] & finite[1]
        if not both.all():
            zero = x.dtype.type(0)
            rest = np.where(finite[0], zero, x), np.where(finite[1], zero, y)
            match &= np.array_equal(*rest, equal_nan=True)
        numbers = x[finite[0]].astype(np.float64)
        scale = max(scale, float(np.abs(numbers).max(initial=0.0)))
        apart = _apart(x[both], y[both])
        count += apart.size
        with np.errstate(over="ignore"):
            total += float(apart.sum())
        if apart.max(initial=0.0) > largest:
            here = int(apart.argmax())
            largest, at = float(apart[here]), start + int(np.flatnonzero(both)[here])
    found = Distance(largest, total / count) if count else None if a.size else Distance()
    if at < 0 or reference.dtype.kind in "OUS":
        return Figures(match, found, scale)
    index = np.unravel_index(at, one.shape)[: reference.ndim]  # of a complex number, not its parts
    places = [int(i) for i in index]
    worst = WorstElement(index=places, original=float(a[at]), rewritten=float(b[at]))
    return Figures(match, found, scale, worst)


def real_parts(array: Array) -> Array:
    """Return complex numbers as pairs, everything else as it is."""
    if array.dtype.kind != "c":
        return array
    return np.ascontiguousarray(array)[..., None].view(f"f{array.dtype.itemsize // 2}")


def _numbers(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Return what is compared: parts of complex numbers; of texts whether they differ."""
    if reference.dtype.kind in "OUS":
        differ = np.asarray(reference != candidate)
        return np.zeros_like(differ, dtype=np.bool_), differ.astype(np.bool_)
    return real_parts(reference), real_parts(candidate)


def _apart(a: Array, b: Array) -> Array:
    if a.dtype.kind == "b":
        return np.asarray(a != b, dtype=np.float64)
    if a.dtype.kind in "iu":
        # The difference of two 64-bit integers fits an unsigned one of 64 bits, but no float.
        low, high = np.minimum(a, b).astype(np.uint64), np.maximum(a, b).astype(np.uint64)
        return np.asarray((high - low).astype(np.float64))
    with np.errstate(over="ignore"):  # a distance past the largest float64 is reported as None
        return np.asarray(np.abs(a.astype(np.float64) - b.astype(np.float64)))
