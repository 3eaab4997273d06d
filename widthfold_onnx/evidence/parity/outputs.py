"""Compare two outputs: how far apart they are, whether that is allowed, and whether they show much.

NaN and Inf must be at the same positions, and Inf of the same sign: a fold may spread a NaN, which
no difference of finite values shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.options import Tolerance
from widthfold_onnx.results import Caveat, LevelName, OutputParity, WorstElement

Outputs = dict[str, Array]
"""Outputs of one run by name."""

DEFAULT_RTOL = {
    **dict.fromkeys(("float64", "complex128"), 1e-12),
    **dict.fromkeys(("float32", "complex64"), 1e-5),
    "float16": 2e-3,
    "bfloat16": 2e-2,
}
"""Largest error relative to the largest finite |reference|; a dtype not listed must be equal."""

BEYOND_NOTE = "beyond the tolerance: rounding moves the original, too"

SATURATED_NOTE = "a weak check: every value is one of two"

MIN_SATURATED = 4
"""Fewest elements of an output that `is_saturated`: two numbers are always two values, and of three
numbers two may be near each other by chance."""

COMPARED_ELEMENTS = 1 << 18
"""Elements that are compared at once: a whole array in float64 would take much memory."""

SLACK = 2.0
"""Allowed distance of the rewritten model / distance of the original, both from stored outputs, or
both from exact results where 8-bit integers saturate."""

MULTIPLE_IF_PROVED = 10.0
"""Allowed distance of a model that is proved equal, as a multiple of the original's movement."""

MULTIPLE_IF_UNPROVED = 4.0
"""The same for a model that is not proved equal; 2.9 is the largest that was measured
(docs/verification.md#parity)."""

GRAINS = 4
"""Allowed difference of a model that is proved equal, in grains of the output (`grain_of`)."""


def pairs(reference: Outputs, tested: Outputs) -> dict[str, tuple[Array, Array]]:
    """Pair two runs by name; an output that a side lacks (sequences differ in length) is empty."""
    values = {**reference, **tested, **reference}  # the reference's order and its values
    fills = {name: np.empty((0, *array.shape), array.dtype) for name, array in values.items()}
    return {
        name: (reference.get(name, fill), tested.get(name, fill)) for name, fill in fills.items()
    }


def why_meaningless(values: Array) -> str:
    """Return why values show nothing, "" where they show something."""
    if values.dtype.kind in "OUS":
        return ""
    if not values.size:
        return "the output is empty"
    if not bool(np.isfinite(values).any()):
        return "no value is finite"
    if values.size > 1 and bool((values == values.flat[0]).all()):
        return "all values are equal"
    return ""


def is_saturated(values: Array) -> bool:
    """Check whether every float is, within the default tolerance, one of two numbers.

    Example: a softmax that returns only 0 and 1 does not show that its input moved.
    """
    rtol = DEFAULT_RTOL.get(values.dtype.name)
    if rtol is None or values.dtype.kind == "c" or values.size < MIN_SATURATED:
        return False
    low, high = values.min(), values.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        return False
    near = values.dtype.type(rtol * max(abs(float(low)), abs(float(high))))
    with np.errstate(over="ignore"):
        return bool(((values - low <= near) | (high - values <= near)).all())


class Distance(NamedTuple):
    """The largest and the mean |difference| of two arrays, over elements finite in both."""

    largest: float = 0.0
    mean: float = 0.0

    def times(self, multiple: float, dtype: str) -> Distance:
        """Multiply; of integers and texts only the mean, as these differ by whole steps."""
        largest = self.largest * multiple if dtype in DEFAULT_RTOL else self.largest
        return Distance(largest, self.mean * multiple)

    def joined(self, other: Distance) -> Distance:
        """Return the larger of each."""
        return Distance(*map(max, self, other))


Movements = list[dict[str, Distance]]
"""How far each output moves, by input set and name."""


@dataclass(frozen=True)
class Figures:
    """The differences between two arrays.

    Attributes:
        match: True if type, shape and the positions of Inf and NaN are the same.
        distance: of elements that are finite in both; None where there are none.
        scale: the largest finite |reference|.
        worst: the element that differs most, None where none differs.
    """

    match: bool
    distance: Distance | None = None
    scale: float = 0.0
    worst: WorstElement | None = None


def distance(reference: Array, tested: Array) -> Distance | None:
    """Return the distance; None if types, shapes, or the positions of NaN and Inf differ."""
    figures = measure(reference, tested)
    return (figures.distance or Distance()) if figures.match else None


def measure(reference: Array, tested: Array) -> Figures:
    """Compare two arrays; the distance of two texts is 0 if they are equal, else 1."""
    if _type_text(reference) != _type_text(tested):
        return Figures(match=False)
    numbers = _real_parts(reference), _real_parts(tested)
    is_text = dtype_of(reference) == "string"
    if is_text:
        numbers = np.zeros(reference.shape, np.bool_), np.asarray(reference != tested, np.bool_)
    a, b = (array.reshape(-1) for array in numbers)
    match, count, scale, largest, total, offset = True, 0, 0.0, 0.0, 0.0, -1
    for start in range(0, a.size, COMPARED_ELEMENTS):
        x, y = a[start : start + COMPARED_ELEMENTS], b[start : start + COMPARED_ELEMENTS]
        finite = np.isfinite(x), np.isfinite(y)
        is_finite = finite[0] & finite[1]
        if not is_finite.all():
            zero = x.dtype.type(0)
            nonfinite = np.where(finite[0], zero, x), np.where(finite[1], zero, y)
            match &= np.array_equal(*nonfinite, equal_nan=True)
        scale = max(scale, float(np.abs(x[finite[0]].astype(np.float64)).max(initial=0.0)))
        with np.errstate(over="ignore", invalid="ignore"):
            gaps = np.where(is_finite, _gaps(x, y), 0.0)
            total += float(gaps.sum())
        count += int(is_finite.sum())
        furthest = int(gaps.argmax())
        if gaps[furthest] > largest:
            largest, offset = float(gaps[furthest]), start + furthest
    gap = Distance(largest, total / count) if count else None if a.size else Distance()
    if offset < 0 or is_text:
        return Figures(match, gap, scale)
    # The index of a complex number, not of its parts.
    position = np.unravel_index(offset, numbers[0].shape)[: reference.ndim]
    index = [*map(int, position)]
    worst = WorstElement(index=index, original=float(a[offset]), rewritten=float(b[offset]))
    return Figures(match, gap, scale, worst)


def _real_parts(array: Array) -> Array:
    """Return complex numbers as pairs, and other arrays unchanged."""
    if array.dtype.kind != "c":
        return array
    return np.ascontiguousarray(array)[..., None].view(f"f{array.dtype.itemsize // 2}")


def _gaps(a: Array, b: Array) -> Array:
    if a.dtype.kind == "b":
        return np.not_equal(a, b)
    if a.dtype.kind in "iu":
        # The difference of two 64-bit integers fits an unsigned one of 64 bits, but no float.
        low, high = np.minimum(a, b).astype(np.uint64), np.maximum(a, b).astype(np.uint64)
        return (high - low).astype(np.float64)
    return np.abs(a.astype(np.float64) - b.astype(np.float64))


def grain_of(*arrays: Array) -> float:
    """Return the power of two of which all finite values are whole multiples.

    Example: a Sigmoid that is computed as 0.5 + s returns multiples of 2^-25, even where it is near
    0. Shaken copies may return the same multiple, and then do not show how coarse it is.

    Returns:
        At most half the distance of 1 to the next float of the type; 0 for other types than floats.
    """
    limit = math.inf
    for array in arrays:
        if array.dtype.kind != "f":
            return 0.0
        limit = min(limit, float(np.finfo(array.dtype).eps) / 2)
        for start in range(0, array.size, COMPARED_ELEMENTS):
            values = array.reshape(-1)[start : start + COMPARED_ELEMENTS].astype(np.float64)
            fractions, exponents = np.frexp(values[np.isfinite(values) & (values != 0)])
            integers = np.abs(np.ldexp(fractions, 53)).astype(np.int64)
            lowest_bits = np.ldexp((integers & -integers).astype(np.float64), exponents - 53)
            limit = min(limit, float(lowest_bits.min(initial=math.inf)))
    return limit


class Allowance(NamedTuple):
    """The difference that an output may have, if the caller did not choose its tolerance.

    Floats may be `multiple` times as far off as rounding moves the original. For other types no
    element may be further off than in a shaken copy, but `multiple` times as many elements may
    differ.

    Attributes:
        movement: how far rounding moves the original; None where that is not known.
        multiple: the multiple of the movement.
        defaults: rtol by dtype.
        grain: of the output where both models are proved equal, else 0; `GRAINS` are allowed.
    """

    movement: Distance | None = None
    multiple: float = 1.0
    defaults: Mapping[str, float] = DEFAULT_RTOL
    grain: float = 0.0

    def distance(self, dtype: str) -> Distance:
        """Return the difference that movement and grain allow, without any tolerance."""
        grains = GRAINS * self.grain
        moved = (self.movement or Distance()).times(self.multiple, dtype)
        return moved.joined(Distance(grains, grains))


DEFAULT_ALLOWANCE = Allowance()


def compare(
    name: str,
    reference: Array,
    tested: Array,
    tolerance: Tolerance,
    allowance: Allowance = DEFAULT_ALLOWANCE,
    level: LevelName = "disabled",
) -> OutputParity:
    """Judge an output of a model that ran at some level, on one input set.

    It passes if |a - b| <= atol + rtol * max |reference|, or within the allowance.
    """
    dtype, types = dtype_of(reference), (_type_text(reference), _type_text(tested))
    figures = measure(reference, tested)
    movement = allowance.movement if types[0] == types[1] else None
    largest, mean = figures.distance or Distance()
    unit = figures.scale or 1.0
    rtol = tolerance.rtol_of(name, allowance.defaults.get(dtype, 0.0))
    bound = tolerance.atol + rtol * figures.scale
    rtol += tolerance.atol / unit  # as it is reported: relative to the largest |reference|
    allowed = Distance(bound, bound)
    if not tolerance.is_chosen(name):
        allowed = allowed.joined(allowance._replace(movement=movement).distance(dtype))
        rtol = max(rtol, allowed.largest / unit)
    is_near = largest <= allowed.largest and math.isfinite(largest)
    passed = figures.match and is_near and mean <= allowed.mean
    note = ""
    caveat: Caveat = ""
    if types[0] != types[1]:
        note = f"{types[1]} instead of {types[0]}"
    elif not figures.match:
        note = "NaN or Inf at other places"
    elif is_near and not passed:
        note = f"the mean distance is {mean:.3g}, allowed {allowed.mean:.3g}"
    elif dtype == "string" and not passed:
        note = "texts differ"
    elif passed and (why := why_meaningless(reference)):
        note, caveat = f"not a meaningful check: {why}", "meaningless"
    elif passed and largest > bound:
        note, caveat = BEYOND_NOTE, "ill-conditioned"
    elif passed and is_saturated(reference):
        note, caveat = SATURATED_NOTE, "saturated"
    gap = figures.distance or Distance(math.inf, math.inf)
    relative = gap.largest / unit if figures.scale or not gap.largest else math.inf
    return OutputParity(
        name=name,
        dtype=dtype,
        level=level,
        max_abs=_number(gap.largest),
        mean_abs=_number(gap.mean),
        max_rel=None if dtype == "string" else _number(relative),
        nonfinite_match=figures.match,
        worst=figures.worst,
        movement=None if movement is None else movement.largest / unit,
        tolerance=rtol,
        passed=passed,
        note=note,
        caveat=caveat,
    )


def dtype_of(array: Array) -> str:
    """Return the name of the element type; texts have several in numpy."""
    return "string" if array.dtype.kind in "OUS" else array.dtype.name


def _type_text(array: Array) -> str:
    return f"{dtype_of(array)}{list(array.shape)}"


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
