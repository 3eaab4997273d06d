"""How well predictions order what was measured: Spearman's rank correlation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FEWEST = 3
"""Of fewer pairs nothing is said."""


def rank_correlation(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Spearman's rho: 1 where both give one order, -1 where they give opposite ones.

    Args:
        predicted: one number per form.
        measured: of the same forms; equal numbers share the mean of their ranks.

    Returns:
        None for fewer than FEWEST forms, or where one side has no order at all.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 15.0])
    0.5
    """
    one, other = _ranks(predicted), _ranks(measured)
    if len(predicted) < FEWEST or np.ptp(one) * np.ptp(other) == 0:
        return None
    return round(float(np.corrcoef(one, other)[0, 1]), 6)


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    _, places, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: npt.NDArray[np.float64] = (last - (counts - 1) / 2)[places]
    return means
