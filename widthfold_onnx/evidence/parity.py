"""Compare two arrays of one output: how far apart, in which sense, and whether that is allowed.

Non-finite values are compared by position and sign and never waved through: a fold can spread
a NaN, and finite data alone cannot show it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from widthfold_onnx.options import Tolerance
from widthfold_onnx.results import OutputParity, WorstElement

Array = npt.NDArray[Any]
LevelName = Literal["disabled", "all"]
Number = TypeVar("Number", int, float)

DEFAULT_RTOL = {
    "float64": 1e-12,
    "complex128": 1e-12,
    "float32": 1e-5,
    "complex64": 1e-5,
    "float16": 2e-3,
    "bfloat16": 2e-2,
}
"""Largest error relative to the largest finite |reference|; a dtype not listed must be equal.

The values are some tens of roundings (2**-53, 2**-24, 2**-11, 2**-8) of a value of full size.
"""

SQUARES = (1e-60, 1e60)
"""Magnitudes that need no scaling before products of them are summed and multiplied."""

NOT_MEANINGFUL = "not a meaningful check: "


@dataclass(frozen=True, kw_only=True)
class _Figures:
    """What two arrays have to do with each other; see `OutputParity`."""

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


def compare(
    name: str,
    reference: Array,
    candidate: Array,
    tolerance: Tolerance,
    level: LevelName = "disabled",
    truth: Array | None = None,
) -> OutputParity:
    """Judge one output on one input set.

    `max_rel` of the result is also the smallest rtol that would pass.

    Args:
        name: of the output.
        reference: what the original computed, any shape.
        candidate: what the rewritten model computed.
        tolerance: |a - b| <= atol + rtol * max |reference|.
        level: the runtime's optimization level, for the row.
        truth: the same in float64, None where it is not known.
    """
    dtype = _dtype_name(reference)
    rtol = _rtol(name, dtype, tolerance)
    other = _dtype_name(candidate)
    if other != dtype or candidate.shape != reference.shape:
        note = f"{other}{list(candidate.shape)} instead of {dtype}{list(reference.shape)}"
        figures, passed = _Figures(nonfinite_match=False), False
        truth = None
    elif reference.dtype.kind in "OUS":
        passed = bool(np.array_equal(reference, candidate))
        note = "" if passed else "texts differ"
        figures = _Figures(nonfinite_match=True)
    else:
        figures, scale = _measure(reference, candidate)
        close = figures.max_abs is not None and figures.max_abs <= tolerance.atol + rtol * scale
        nothing_finite = not bool(np.isfinite(_real(reference)).any())
        passed = figures.nonfinite_match and (close or nothing_finite)
        note = _meaning(reference)
        if not figures.nonfinite_match:
            note = "NaN or Inf at other places"
    return OutputParity(
        name=name,
        dtype=dtype,
        level=level,
        max_abs=figures.max_abs,
        mean_abs=figures.mean_abs,
        max_rel=figures.max_rel,
        ulp=figures.ulp,
        ulp_histogram=figures.ulp_histogram,
        cosine=figures.cosine,
        psnr=figures.psnr,
        argmax_agreement=figures.argmax_agreement,
        nonfinite_match=figures.nonfinite_match,
        worst=figures.worst,
        truth_original=None if truth is None else relative_error(truth, reference),
        truth_rewritten=None if truth is None else relative_error(truth, candidate),
        tolerance=rtol,
        passed=passed,
        note=note,
    )


def worst(first: OutputParity, second: OutputParity) -> OutputParity:
    """Two comparisons of one output as one: the worse of each figure, the sum of histograms.

    Note and tolerance are those of the side that failed, else of the one with more tolerance;
    "not a meaningful check" stays only where it holds for both.
    """
    failed = [side for side in (first, second) if not side.passed]
    sides = sorted(failed or (first, second), key=lambda side: -side.tolerance)
    notes = [side.note for side in sides if side.note]
    if not failed and first.note != second.note:
        notes = [note for note in notes if not note.startswith(NOT_MEANINGFUL)]
    bins = zip_longest(first.ulp_histogram, second.ulp_histogram, fillvalue=0)
    farther = max(first, second, key=lambda side: -1.0 if side.max_abs is None else side.max_abs)
    return msgspec.structs.replace(
        first,
        max_abs=_pick(max, first.max_abs, second.max_abs),
        mean_abs=_pick(max, first.mean_abs, second.mean_abs),
        max_rel=_pick(max, first.max_rel, second.max_rel),
        ulp=_pick(max, first.ulp, second.ulp),
        ulp_histogram=[a + b for a, b in bins],
        cosine=_pick(min, first.cosine, second.cosine),
        psnr=_pick(min, first.psnr, second.psnr),
        argmax_agreement=_pick(min, first.argmax_agreement, second.argmax_agreement),
        nonfinite_match=first.nonfinite_match and second.nonfinite_match,
        worst=farther.worst,
        truth_original=_pick(max, first.truth_original, second.truth_original),
        truth_rewritten=_pick(max, first.truth_rewritten, second.truth_rewritten),
        tolerance=sides[0].tolerance,
        passed=first.passed and second.passed,
        note=notes[0] if notes else "",
    )


def relative_error(reference: Array, candidate: Array) -> float | None:
    """Largest |candidate - reference| over the largest |reference|, where both are finite.

    None where that says nothing: another shape, no floats, nothing finite, or a reference of
    zeros. The element types may differ.
    """
    if not reference.dtype.kind == candidate.dtype.kind in "fc":
        return None
    if reference.shape != candidate.shape:
        return None
    a, b = _real(reference), _real(candidate)
    both = np.isfinite(a) & np.isfinite(b)
    a, b = _picked(a, both), _picked(b, both)
    scale = float(np.abs(a).max(initial=0.0))
    if not scale:
        return None
    return _number(float(_distance(a, b, floating=True).max()) / scale)


def ulp_distance(reference: Array, candidate: Array) -> npt.NDArray[np.uint64]:
    """How many representable values lie between two arrays of one float dtype, elementwise.

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


def _rtol(name: str, dtype: str, tolerance: Tolerance) -> float:
    if name in tolerance.per_output:
        return tolerance.per_output[name]
    if dtype not in DEFAULT_RTOL:
        return 0.0
    return DEFAULT_RTOL[dtype] if tolerance.rtol is None else tolerance.rtol


def _measure(reference: Array, candidate: Array) -> tuple[_Figures, float]:
    """All figures of two arrays of the same dtype and shape, and the largest |reference|."""
    a, b = _real(reference), _real(candidate)
    floating = a.dtype.kind not in "iub"
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    both = finite_a & finite_b
    match = bool(
        np.array_equal(finite_a, finite_b)
        and np.array_equal(np.isnan(a), np.isnan(b))
        and np.array_equal(a == np.inf, b == np.inf)
    )
    scale = float(np.abs(_picked(a, finite_a).astype(np.float64, copy=False)).max(initial=0.0))
    if not both.any() and a.size:
        return _Figures(nonfinite_match=match), scale
    x, y = _picked(a, both), _picked(b, both)
    distance = _distance(x, y, floating=floating)
    largest = float(distance.max(initial=0.0))
    relative = largest / scale if scale else (0.0 if largest == 0 else np.inf)
    ulp = ulp_distance(x, y) if floating else None
    figures = _Figures(
        nonfinite_match=match,
        max_abs=_number(largest),
        mean_abs=_mean(distance),
        max_rel=_number(relative),
        ulp=None if ulp is None else int(ulp.max(initial=0)),
        ulp_histogram=[] if ulp is None else _histogram(ulp),
        cosine=_cosine(a, b) if bool(both.all()) else None,
        psnr=_psnr(distance, largest, scale),
        argmax_agreement=_agreement(reference, candidate),
        worst=_worst_element(reference, a, b, both, distance) if largest else None,
    )
    return figures, scale


def _mean(distance: Array) -> float | None:
    with np.errstate(over="ignore"):
        return _number(float(distance.mean())) if distance.size else 0.0


def _histogram(ulp: npt.NDArray[np.uint64]) -> list[int]:
    """How many distances have 0, 1, 2, ... binary digits, so bins 0, 1, 2-3, 4-7, ..."""
    # No float64 holds 64 digits; without the second digit none of them rounds up to 2**n.
    _, digits = np.frexp((ulp & ~(ulp >> np.uint64(1))).astype(np.float64))
    return [int(count) for count in np.bincount(digits.ravel())]


def _psnr(distance: Array, largest: float, peak: float) -> float | None:
    if not peak or not 0 < largest < np.inf:
        return None
    scaled = (distance / largest).ravel()
    rms = np.sqrt(scaled @ scaled / scaled.size)
    return _number(float(20 * (np.log10(peak) - np.log10(largest) - np.log10(rms))))


def _agreement(reference: Array, candidate: Array) -> float | None:
    if reference.dtype.kind == "c" or not reference.size or reference.shape[-1:] in ((), (1,)):
        return None
    return float(np.mean(reference.argmax(axis=-1) == candidate.argmax(axis=-1)))


def _worst_element(
    reference: Array, a: Array, b: Array, both: npt.NDArray[np.bool_], distance: Array
) -> WorstElement:
    at = int(np.flatnonzero(both)[distance.argmax()])
    index = np.unravel_index(at, a.shape)[: reference.ndim]  # of a complex number, not of its part
    return WorstElement(
        index=[int(i) for i in index], original=float(a.flat[at]), rewritten=float(b.flat[at])
    )


def _picked(array: Array, mask: npt.NDArray[np.bool_]) -> Array:
    """The masked elements; nothing is copied where that is all of them."""
    return array if bool(mask.all()) else np.asarray(array[mask])


def _distance(a: Array, b: Array, *, floating: bool) -> Array:
    if floating:
        with np.errstate(over="ignore"):  # a distance past the largest float64 is reported as None
            return np.asarray(np.abs(a.astype(np.float64) - b.astype(np.float64)))
    if a.dtype.kind == "b":
        return np.asarray(a != b, dtype=np.float64)
    # The difference of two 64-bit integers fits 64 bits without a sign, but no float.
    low, high = np.minimum(a, b), np.maximum(a, b)
    return np.asarray((high.astype(np.uint64) - low.astype(np.uint64)).astype(np.float64))


def _cosine(a: Array, b: Array) -> float | None:
    sides = [side.astype(np.float64).ravel() for side in (a, b)]
    peaks = [float(np.abs(side).max(initial=0.0)) for side in sides]
    if not all(peaks):
        return None
    if not all(SQUARES[0] < peak < SQUARES[1] for peak in peaks):
        sides = [side / peak for side, peak in zip(sides, peaks, strict=True)]
    u, v = sides
    return float(np.clip(u @ v / np.sqrt((u @ u) * (v @ v)), -1.0, 1.0))


def _meaning(reference: Array) -> str:
    values = _real(reference)
    if not values.size:
        return f"{NOT_MEANINGFUL}the output is empty"
    if not bool(np.isfinite(values).any()):
        return f"{NOT_MEANINGFUL}no value is finite"
    if values.size > 1 and bool((values == values.flat[0]).all()):
        return f"{NOT_MEANINGFUL}all values are equal"
    return ""


def _real(array: Array) -> Array:
    """Complex numbers as pairs; everything else as it is."""
    if array.dtype.kind != "c":
        return array
    return np.ascontiguousarray(array)[..., None].view(f"f{array.dtype.itemsize // 2}")


def _dtype_name(array: Array) -> str:
    return "string" if array.dtype.kind in "OUS" else array.dtype.name


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _pick(
    choose: Callable[[Number, Number], Number], first: Number | None, second: Number | None
) -> Number | None:
    """The worse figure; None only where both sides have none."""
    if first is None or second is None:
        return second if first is None else first
    return choose(first, second)
