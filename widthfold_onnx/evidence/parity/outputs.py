"""Compares two arrays of one output: how far they are apart, and whether that is allowed.

One rule: an output passes if it is no further from the reference than a small multiple of the
distance by which rounding moves the original (`shaken`), or than the default tolerance. Non-finite
values are compared by position and sign and never ignored: a fold can spread a NaN, and finite
data alone cannot show it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Literal

import msgspec
import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.parity.figures import (
    Distance,
    Figures,
    measure,
    real_parts,
)
from widthfold_onnx.options import Tolerance
from widthfold_onnx.results import OutputParity
from widthfold_onnx.results.evidence import Caveat
from widthfold_onnx.text import printable

LevelName = Literal["disabled", "all"]

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

WORSE: Mapping[str, Callable[..., float | None]] = {
    **dict.fromkeys(("max_abs", "mean_abs", "ulp"), max),
    **dict.fromkeys(("cosine", "psnr", "argmax_agreement"), min),
}
"""Which of two figures is the worse one."""


def meaningless(rows: Sequence[OutputParity]) -> bool:
    """Check whether outputs were compared and none of them is meaningful."""
    return bool(rows) and all(row.caveat == "meaningless" for row in rows)


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
        reference: what it should be, of any shape.
        candidate: the output of the rewritten model.
        tolerance: |a - b| <= atol + rtol * max |reference|.
        level: the runtime's optimization level, for the row.
        movement: how far rounding moves it, None where that was not measured.
        multiple: of the movement that is allowed; a tolerance that the caller chose is never
            exceeded.
        defaults: rtol by dtype, where the caller chose none.
    """
    dtype, other = _dtype_name(reference), _dtype_name(candidate)
    rtol = _rtol(name, dtype, tolerance, defaults)
    moved = None
    caveat: Caveat = ""
    if other != dtype or candidate.shape != reference.shape:
        note = f"{other}{list(candidate.shape)} instead of {dtype}{list(reference.shape)}"
        figures, passed = Figures(nonfinite_match=False), False
    else:
        figures, scale = measure(reference, candidate)
        bound, unit = tolerance.atol + rtol * scale, scale or 1.0
        allowed = Distance(bound, bound)
        if movement is not None:
            moved = movement.largest / unit
            if not is_chosen(name, tolerance):
                part = movement.times(multiple)
                exact = part._replace(largest=movement.largest)
                allowed = allowed.joined(part if dtype in DEFAULT_RTOL else exact)
                rtol = max(rtol, allowed.largest / unit)
        far = figures.max_abs is None or figures.max_abs > allowed.largest
        many = not far and (figures.mean_abs or 0.0) > allowed.mean
        nothing_finite = reference.dtype.kind in "fc" and not np.isfinite(reference).any()
        passed = figures.nonfinite_match and (nothing_finite or not (far or many))
        note = ""
        if not figures.nonfinite_match:
            note = "NaN or Inf at other places"
        elif dtype == "string" and far:
            note = "texts differ"
        elif many:
            note = f"the mean distance is {figures.mean_abs:.3g}, allowed {allowed.mean:.3g}"
        elif nothing := says_nothing(reference):
            note, caveat = f"not a meaningful check: {nothing}", "meaningless"
        elif passed and (figures.max_abs or 0.0) > bound:
            note, caveat = BEYOND, "ill-conditioned"
    return OutputParity(
        name=name,
        dtype=dtype,
        level=level,
        **vars(figures),
        movement=moved,
        tolerance=rtol,
        passed=passed,
        note=note,
        caveat=caveat,
    )


def worst(first: OutputParity, second: OutputParity) -> OutputParity:
    """Merge two comparisons of one output: the worse of each figure, the sum of histograms.

    Distance, movement and tolerance are those of the side that failed, else of the one that was
    nearer to failing; "meaningless" stays only where it holds for both.
    """
    sides = sorted((first, second), key=_nearness, reverse=True)
    noted = [side for side in sides if side.note and side.passed == sides[0].passed]
    if first.passed and second.passed and first.caveat != second.caveat:
        noted = [side for side in noted if side.caveat != "meaningless"]
    noted.sort(key=lambda side: side.nonfinite_match)
    figures = {}
    for name, worse in WORSE.items():
        known = [n for n in (getattr(first, name), getattr(second, name)) if n is not None]
        figures[name] = worse(known, default=None)
    bins = zip_longest(first.ulp_histogram, second.ulp_histogram, fillvalue=0)
    farther = max(first, second, key=lambda side: -1.0 if side.max_abs is None else side.max_abs)
    return msgspec.structs.replace(
        sides[0],
        **figures,
        ulp_histogram=[a + b for a, b in bins],
        nonfinite_match=first.nonfinite_match and second.nonfinite_match,
        worst=farther.worst,
        note=noted[0].note if noted else "",
        caveat=noted[0].caveat if noted else "",
    )


def _nearness(row: OutputParity) -> tuple[bool, float]:
    """Say how near a row is to failing, or how far beyond."""
    if row.max_rel is None or row.max_rel == 0:
        return not row.passed, 0.0
    return not row.passed, row.max_rel / row.tolerance if row.tolerance else math.inf


def is_chosen(name: str, tolerance: Tolerance) -> bool:
    """Check whether the caller chose the tolerance of an output."""
    return tolerance.rtol is not None or bool(tolerance.atol) or name in tolerance.per_output


def says_nothing(reference: Array) -> str:
    """Return why values show nothing, "" where they show something."""
    if reference.dtype.kind in "OUS":
        return ""
    values = real_parts(reference)
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


def _rtol(name: str, dtype: str, tolerance: Tolerance, defaults: Mapping[str, float]) -> float:
    if name in tolerance.per_output:
        return tolerance.per_output[name]
    if dtype not in defaults:
        return 0.0
    return defaults[dtype] if tolerance.rtol is None else tolerance.rtol


def _dtype_name(array: Array) -> str:
    return "string" if array.dtype.kind in "OUS" else array.dtype.name
