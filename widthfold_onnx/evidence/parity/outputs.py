"""Compares two arrays of one output: how far they are apart, and whether that is allowed.

Non-finite values are compared by position and sign and never ignored: a fold can spread
a NaN, and finite data alone cannot show it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Literal

import msgspec
import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.parity.figures import Figures, measure, real_parts, relative_error
from widthfold_onnx.options import Tolerance
from widthfold_onnx.results import OutputParity
from widthfold_onnx.results.evidence import Caveat

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


WORSE: Mapping[str, Callable[..., float | None]] = {
    **dict.fromkeys(("max_abs", "mean_abs", "max_rel", "ulp"), max),
    **dict.fromkeys(("truth_original", "truth_rewritten"), max),
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
    truth: Array | None = None,
) -> OutputParity:
    """Judge one output on one input set.

    `max_rel` of the result is also the smallest rtol that would pass.

    Args:
        name: of the output.
        reference: the output of the original, of any shape.
        candidate: the output of the rewritten model.
        tolerance: |a - b| <= atol + rtol * max |reference|.
        level: the runtime's optimization level, for the row.
        truth: the same in float64, None where it is not known.
    """
    dtype = _dtype_name(reference)
    rtol = _rtol(name, dtype, tolerance)
    other = _dtype_name(candidate)
    caveat: Caveat = ""
    if other != dtype or candidate.shape != reference.shape:
        note = f"{other}{list(candidate.shape)} instead of {dtype}{list(reference.shape)}"
        figures, passed = Figures(nonfinite_match=False), False
        truth = None
    elif reference.dtype.kind in "OUS":
        passed = bool(np.array_equal(reference, candidate))
        note = "" if passed else "texts differ"
        figures = Figures(nonfinite_match=True)
    else:
        figures, scale = measure(reference, candidate)
        close = figures.max_abs is not None and figures.max_abs <= tolerance.atol + rtol * scale
        nothing_finite = not bool(np.isfinite(real_parts(reference)).any())
        passed = figures.nonfinite_match and (close or nothing_finite)
        note = ""
        if not figures.nonfinite_match:
            note = "NaN or Inf at other places"
        elif nothing := _says_nothing(reference):
            note, caveat = f"not a meaningful check: {nothing}", "meaningless"
    return OutputParity(
        name=name,
        dtype=dtype,
        level=level,
        **vars(figures),
        truth_original=None if truth is None else relative_error(truth, reference),
        truth_rewritten=None if truth is None else relative_error(truth, candidate),
        tolerance=rtol,
        passed=passed,
        note=note,
        caveat=caveat,
    )


def worst(first: OutputParity, second: OutputParity) -> OutputParity:
    """Merge two comparisons of one output: the worse of each figure, the sum of histograms.

    Note and tolerance are those of the side that failed, else of the one with more tolerance;
    "meaningless" stays only where it holds for both.
    """
    failed = [side for side in (first, second) if not side.passed]
    sides = sorted(failed or (first, second), key=lambda side: -side.tolerance)
    noted = [side for side in sides if side.note]
    if not failed and first.note != second.note:
        noted = [side for side in noted if side.caveat != "meaningless"]
    figures = {}
    for name, worse in WORSE.items():
        known = [n for n in (getattr(first, name), getattr(second, name)) if n is not None]
        figures[name] = worse(known, default=None)
    bins = zip_longest(first.ulp_histogram, second.ulp_histogram, fillvalue=0)
    farther = max(first, second, key=lambda side: -1.0 if side.max_abs is None else side.max_abs)
    return msgspec.structs.replace(
        first,
        **figures,
        ulp_histogram=[a + b for a, b in bins],
        nonfinite_match=first.nonfinite_match and second.nonfinite_match,
        worst=farther.worst,
        tolerance=sides[0].tolerance,
        passed=first.passed and second.passed,
        note=noted[0].note if noted else "",
        caveat=noted[0].caveat if noted else "",
    )


def _rtol(name: str, dtype: str, tolerance: Tolerance) -> float:
    if name in tolerance.per_output:
        return tolerance.per_output[name]
    if dtype not in DEFAULT_RTOL:
        return 0.0
    return DEFAULT_RTOL[dtype] if tolerance.rtol is None else tolerance.rtol


def _says_nothing(reference: Array) -> str:
    """Return why values show nothing, "" where they show something."""
    values = real_parts(reference)
    if not values.size:
        return "the output is empty"
    if not bool(np.isfinite(values).any()):
        return "no value is finite"
    if values.size > 1 and bool((values == values.flat[0]).all()):
        return "all values are equal"
    return ""


def _dtype_name(array: Array) -> str:
    return "string" if array.dtype.kind in "OUS" else array.dtype.name
