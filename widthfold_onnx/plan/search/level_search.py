"""Measure the layers of one model at one level of the runtime, and say what they promise it.

Layers are measured as they are first. Those that cannot move the model by more than noise are left
out; the others race in order of what they can gain, each with its most promising forms: those
predicted to be fastest alone, and the one in which it agrees with its neighbours at least cost.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from widthfold_onnx.plan.measure.bench import Bench
from widthfold_onnx.plan.measure.effort import Spending
from widthfold_onnx.plan.search.assign import foresee
from widthfold_onnx.plan.search.gains import Gains, pays
from widthfold_onnx.plan.workload.layers import Layers
from widthfold_onnx.plan.workload.workloads import Workload
from widthfold_onnx.progress import Progress
from widthfold_onnx.results.store import AS_IS

HOPE = 2.0
"""How much faster than predicted the best form of a layer may be: of 80 layers two exceeded it."""


@dataclass(frozen=True)
class LevelSearch:
    """The search at one level.

    Attributes:
        layers: the layers, whose forms are ordered for this level.
        bench: measures at this level.
        gains: what is known of their forms.
        spending: how much is measured.
        seconds: of one run of the original at this level; None if it was not timed.
    """

    layers: Layers
    bench: Bench
    gains: Gains
    spending: Spending
    seconds: float | None = None

    def measure(self, deadline: float, on_progress: Progress) -> None:
        """Measure the layers as they are, and race those that can move the model."""
        if self.seconds is not None:
            alone = [workload.cut_to(0) for workload in self.layers.workloads.values()]
            self.bench.measure(alone, deadline, on_progress)
        self.bench.measure(self.promising(), deadline, on_progress)

    @cached_property
    def _foreseen(self) -> Mapping[str, str]:
        """The forms of least predicted cost together: alone, forms of a region look slow."""
        return foresee(self.layers)

    def promising(self) -> list[Workload]:
        """Return the layers to race, those first that can gain most; those inside regions last."""
        slight = self.slight()
        kept = [s for s in reversed(self._least_first()) if s not in slight]
        return [
            every[subject].cut_to(self.spending.forms, self._foreseen.get(subject))
            for every in (self.layers.workloads, self.layers.inside)
            for subject in kept
            if subject in every
        ]

    def slight(self) -> set[str]:
        """Return the layers that together cannot move the model by more than noise."""
        if self.seconds is None:
            return set()
        known = self.bench.known
        subjects = [s for s in self._least_first() if known(s, AS_IS) is not None]
        saved = list(itertools.accumulate(map(self._limit, subjects)))
        count = bisect.bisect_left(saved, self.spending.least * self.seconds)
        return set(subjects[:count])

    def _least_first(self) -> list[str]:
        return sorted(self.layers.workloads, key=lambda subject: (self._limit(subject), subject))

    def chosen(self) -> Mapping[str, str]:
        """Return the best form of every layer that surely gains by it."""
        best = {subject: self.gains.best(subject) for subject in self.layers.workloads}
        return {s: b[0] for s, b in best.items() if b is not None and pays(b[1])}

    def estimate(self) -> float:
        """Return the seconds that one run of the model may take with these forms."""
        saved = sum(self.gains.saved(subject, key) for subject, key in self.chosen().items())
        return (self.seconds or 0.0) - saved

    def _limit(self, subject: str) -> float:
        """Return the most seconds of the model that a layer may save, judged by predictions."""
        workload, own = self.layers.workloads[subject], self.bench.known(subject, AS_IS)
        seconds = workload.predicted if own is None else own.seconds
        best = HOPE * workload.predicted / min(form.predicted for form in workload.forms)
        return self.layers.count(subject) * seconds * (1 - 1 / max(best, 1.0))
