"""Measure how well predictions rank the measurements: Spearman's rank correlation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from widthfold_onnx.tuning.measurement import AS_IS, Measurement
from widthfold_onnx.tuning.workloads import Workload

FEWEST = 3
"""Fewest pairs for which a correlation is given."""


@dataclass(frozen=True)
class Compared:
    """Predicted and measured speed-ups of one layer.

    Attributes:
        subject: the layer (`tuning.workloads`).
        scale: measured / predicted seconds of the layer as it is.
        predicted: predicted speed-up of every form that was measured.
        measured: measured speed-ups of the same forms.
    """

    subject: str
    scale: float
    predicted: list[float]
    measured: list[float]


def compare(
    workloads: Iterable[Workload], measurement: Callable[[str, str], Measurement | None]
) -> Iterator[Compared]:
    """Yield predictions beside measurements, for every layer that was measured.

    Args:
        workloads: layers with their forms.
        measurement: returns the measurement of a subject in a form, if there is one.
    """
    for workload in workloads:
        own = measurement(workload.subject, AS_IS)
        pairs = [(form, measurement(workload.subject, form.spec.text)) for form in workload.forms]
        ran = [(form, it) for form, it in pairs if it is not None and it.status == "ok"]
        if own is not None and own.status == "ok":
            yield Compared(
                workload.subject,
                own.seconds / workload.predicted_seconds,
                [workload.predicted_seconds / form.predicted_seconds for form, _ in ran],
                [measured.ratio for _, measured in ran],
            )


def rank_correlation(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Return Spearman's rho: 1 where both give one order, -1 where they give opposite ones.

    Args:
        predicted: one number per form.
        measured: one number for each of the same forms; ties share the mean of their ranks.

    Returns:
        None for fewer than FEWEST forms, or where one side has no order at all.
    """
    ranks, other_ranks = rankdata(predicted), rankdata(measured)
    if len(predicted) < FEWEST or np.ptp(ranks) * np.ptp(other_ranks) == 0:
        return None
    return round(float(np.corrcoef(ranks, other_ranks)[0, 1]), 6)
