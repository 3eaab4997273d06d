"""Measures how far two arrays are apart, by every figure that a report shows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from widthfold_onnx.arrays import Array
from widthfold_onnx.results import WorstElement

SQUARES = (1e-60, 1e60)
"""Magnitudes that need no scaling before products of them are summed and multiplied."""


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


def measure(reference: Array, candidate: Array) -> tuple[Figures, float]:
    """Return all figures of two arrays of the same dtype and shape, and the largest |reference|."""
    a, b = real_parts(reference), real_parts(candidate)
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
        return Figures(nonfinite_match=match), scale
    x, y = _picked(a, both), _picked(b, both)
    distance = _distance(x, y, floating=floating)
    largest = float(distance.max(initial=0.0))
    relative = largest / scale if scale else (0.0 if largest == 0 else np.inf)
    ulp = ulp_distance(x, y) if floating else None
    figures = Figures(
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


def relative_error(reference: Array, candidate: Array) -> float | None:
    """Return the largest |candidate - reference| / the largest |reference|, where both are finite.

    None if that is meaningless: another shape, no floats, nothing finite, or a reference of
    zeros. The element types may differ.
    """
    if not reference.dtype.kind == candidate.dtype.kind in "fc":
        return None
    if reference.shape != candidate.shape:
        return None
    a, b = real_parts(reference), real_parts(candidate)
    both = np.isfinite(a) & np.isfinite(b)
    a, b = _picked(a, both), _picked(b, both)
    scale = float(np.abs(a).max(initial=0.0))
    if not scale:
        return None
    return _number(float(_distance(a, b, floating=True).max()) / scale)


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


def _mean(distance: Array) -> float | None:
    with np.errstate(over="ignore"):
        return _number(float(distance.mean())) if distance.size else 0.0


def _histogram(ulp: npt.NDArray[np.uint64]) -> list[int]:
    """Count the distances with 0, 1, 2, ... binary digits, so bins 0, 1, 2-3, 4-7, ..."""
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
    index = np.unravel_index(at, a.shape)[: reference.ndim]  # of a complex number, not its parts
    return WorstElement(
        index=[int(i) for i in index], original=float(a.flat[at]), rewritten=float(b.flat[at])
    )


def _picked(array: Array, mask: npt.NDArray[np.bool_]) -> Array:
    """Return the masked elements; nothing is copied if that is all of them."""
    return array if bool(mask.all()) else np.asarray(array[mask])


def _distance(a: Array, b: Array, *, floating: bool) -> Array:
    if floating:
        with np.errstate(over="ignore"):  # a distance past the largest float64 is reported as None
            return np.asarray(np.abs(a.astype(np.float64) - b.astype(np.float64)))
    if a.dtype.kind == "b":
        return np.asarray(a != b, dtype=np.float64)
    # The difference of two 64-bit integers fits an unsigned one of 64 bits, but no float.
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


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
