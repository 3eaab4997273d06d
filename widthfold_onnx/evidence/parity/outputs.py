"""Compare two arrays of one output: how far they are apart, and whether that is allowed.

One rule: an output passes within the default tolerance, or within a small multiple of the distance
by which rounding moves the original (`shaken`). Distances are from the reference. Non-finite values
are compared by position and sign and never ignored: a fold can spread a NaN, which finite data
cannot show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.options import Tolerance
from widthfold_onnx.results import OutputParity, WorstElement
from widthfold_onnx.results.evidence import Caveat
from widthfold_onnx.text import printable

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
        nonfinite_match: whether elements that are not finite are at the same places.
        distance: of elements that are finite in both; None where there are none.
        scale: the largest finite |reference|.
        worst: the element that differs most, None where none differs.
    """

    nonfinite_match: bool
    distance: Distance | None = None
    scale: float = 0.0
    worst: WorstElement | None = None

    @property
    def relative(self) -> float | None:
        """The largest difference / `scale`; None where nothing is compared, or it is infinite."""
        if self.distance is None:
            return None
        largest = self.distance.largest
        return _number(largest / self.scale if self.scale else math.inf if largest else 0.0)


def distance(reference: Array, candidate: Array) -> Distance | None:
    """Return the distance; None for other types and extents, and for NaN or Inf elsewhere."""
    if reference.shape != candidate.shape or reference.dtype != candidate.dtype:
        return None
    figures = measure(reference, candidate)
    return (figures.distance or Distance()) if figures.nonfinite_match else None


def measure(reference: Array, candidate: Array) -> Figures:
    """Compare two arrays of one type and shape; texts are 0 apart where they are equal, else 1."""
    expected, other = _numbers(reference, candidate)
    a, b = expected.reshape(-1), other.reshape(-1)
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
    figure = Distance(largest, total / count) if count else None if a.size else Distance()
    if at < 0 or reference.dtype.kind in "OUS":
        return Figures(match, figure, scale)
    # The index of a complex number, not of its parts.
    index = np.unravel_index(at, expected.shape)[: reference.ndim]
    places = [int(i) for i in index]
    worst = WorstElement(index=places, original=float(a[at]), rewritten=float(b[at]))
    return Figures(match, figure, scale, worst)


def real_parts(array: Array) -> Array:
    """Return complex numbers as pairs, everything else as it is."""
    if array.dtype.kind != "c":
        return array
    return np.ascontiguousarray(array)[..., None].view(f"f{array.dtype.itemsize // 2}")


def _numbers(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Return the compared elements: parts of complex numbers; of texts whether they differ."""
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


LevelName = Literal["disabled", "all"]

DEFAULT_RTOL = {
    **dict.fromkeys(("float64", "complex128"), 1e-12),
    **dict.fromkeys(("float32", "complex64"), 1e-5),
    "float16": 2e-3,
    "bfloat16": 2e-2,
}
"""Largest error relative to the largest finite |reference|; a dtype not listed must be equal.

The values are some tens of roundings (2**-53, 2**-24, 2**-11, 2**-8) of a value of full size.
"""

EXACT_RTOL = {
    **DEFAULT_RTOL,
    **dict.fromkeys(("float64", "complex128"), 2.0**-50),
    **dict.fromkeys(("float32", "complex64"), 2.0**-21),
}
"""The same where nothing is proved and the reference does not round: four units in the last place,
as the original may be right by luck. What rounding moves decides beyond that."""

BEYOND = "beyond the tolerance: rounding moves the original, too"

SLACK = 2.0
"""The rewritten model may be this many times as far from stored outputs, or from its definition
where integers saturate, as the original is."""


def compare(
    name: str,
    reference: Array,
    candidate: Array,
    tolerance: Tolerance,
    level: LevelName = "disabled",
    movement: Distance | None = None,
    multiple: float = 1.0,
    defaults: Mapping[str, float] = DEFAULT_RTOL,
) -> OutputParity:
    """Judge one output on one input set.

    Floats may be `multiple` times as far off as rounding moves the original. Where all else is
    exact, no element may be further off than in a copy, but so many times as many may be.

    Args:
        name: of the output.
        reference: the expected value, of any shape.
        candidate: the output of the rewritten model.
        tolerance: |a - b| <= atol + rtol * max |reference|.
        level: the runtime's optimization level, for the row.
        movement: how far rounding moves it, None where that was not measured.
        multiple: of the movement that is allowed, except where the caller chose a tolerance.
        defaults: rtol by dtype, where the caller chose none.
    """
    dtype, other = _dtype_name(reference), _dtype_name(candidate)
    comparable = other == dtype and candidate.shape == reference.shape
    figures = measure(reference, candidate) if comparable else Figures(nonfinite_match=False)
    movement, unit = movement if comparable else None, figures.scale or 1.0
    rtol = _rtol(name, dtype, tolerance, defaults)
    bound = tolerance.atol + rtol * figures.scale
    allowed = Distance(bound, bound)
    if movement is not None and not is_chosen(name, tolerance):
        allowed = allowed.joined(_multiplied(movement, multiple, dtype))
        rtol = max(rtol, allowed.largest / unit)
    types = f"{other}{list(candidate.shape)} instead of {dtype}{list(reference.shape)}"
    note = _mismatch(figures, allowed, dtype) if comparable else types
    largest = (figures.distance or Distance()).largest
    passed = not note and _is_near(largest, allowed)
    caveat: Caveat = ""
    if not note and (nothing := says_nothing(reference)):
        note, caveat = f"not a meaningful check: {nothing}", "meaningless"
    elif passed and largest > bound:
        note, caveat = BEYOND, "ill-conditioned"
    return OutputParity(
        name=name,
        dtype=dtype,
        level=level,
        max_abs=None if figures.distance is None else _number(largest),
        mean_abs=None if figures.distance is None else _number(figures.distance.mean),
        max_rel=None if dtype == "string" else figures.relative,
        nonfinite_match=figures.nonfinite_match,
        worst=figures.worst,
        movement=None if movement is None else movement.largest / unit,
        tolerance=rtol,
        passed=passed,
        note=note,
        caveat=caveat,
    )


def _mismatch(figures: Figures, allowed: Distance, dtype: str) -> str:
    """Name a difference that the figures of a row do not show."""
    largest, mean = figures.distance or Distance()
    if not figures.nonfinite_match:
        return "NaN or Inf at other places"
    if not _is_near(largest, allowed):
        return "texts differ" if dtype == "string" else ""
    if mean > allowed.mean:
        return f"the mean distance is {mean:.3g}, allowed {allowed.mean:.3g}"
    return ""


def _is_near(largest: float, allowed: Distance) -> bool:
    return largest <= allowed.largest and math.isfinite(largest)


def _rtol(name: str, dtype: str, tolerance: Tolerance, defaults: Mapping[str, float]) -> float:
    general = defaults.get(dtype, 0.0) if tolerance.rtol is None else tolerance.rtol
    return tolerance.per_output.get(name, general if dtype in defaults else 0.0)


def _multiplied(movement: Distance, multiple: float, dtype: str) -> Distance:
    part = movement.times(multiple)
    return part if dtype in DEFAULT_RTOL else part._replace(largest=movement.largest)


def is_chosen(name: str, tolerance: Tolerance) -> bool:
    """Check whether the caller chose the tolerance of an output."""
    return tolerance.rtol is not None or bool(tolerance.atol) or name in tolerance.per_output


def says_nothing(reference: Array) -> str:
    """Return why values show nothing, "" where they show something."""
    values = real_parts(reference)
    if values.dtype.kind in "OUS":
        return ""
    if not values.size:
        return "the output is empty"
    if not bool(np.isfinite(values).any()):
        return "no value is finite"
    if values.size > 1 and bool((values == values.flat[0]).all()):
        return "all values are equal"
    return ""


def difference(row: OutputParity, label: str = "") -> str:
    """Describe a comparison that failed, and on which inputs if `label` says so."""
    if row.max_rel is not None and row.nonfinite_match and row.max_rel > row.tolerance:
        detail = f"max_rel {figure(row.max_rel)}, allowed {figure(row.tolerance)}"
    else:
        detail = row.note or "values differ"
    return f"output {printable(row.name)}: {detail}" + (f" ({label})" if label else "")


def figure(value: float | None) -> str:
    """Format a relative error in three digits."""
    return "an unknown amount" if value is None else f"{value:.3g}"


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _dtype_name(array: Array) -> str:
    return "string" if array.dtype.kind in "OUS" else array.dtype.name
