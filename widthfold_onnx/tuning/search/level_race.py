"""Race the layers of one model at one level of the runtime, and estimate the model's time.

Where the whole model was timed, its layers are measured as they are first. Layers that cannot move
the model by more than noise are left out. The others race, the largest possible gain first, each
with its most promising forms. These are the forms predicted to be fastest alone, and the form that
agrees with the neighbours at least cost.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from widthfold_onnx.results import Gain
from widthfold_onnx.rules.form import FormSpec
from widthfold_onnx.tuning.bench import MIN_GAIN, Bench, Budget
from widthfold_onnx.tuning.effort import Spending
from widthfold_onnx.tuning.layers import Layers
from widthfold_onnx.tuning.measurement import AS_IS
from widthfold_onnx.tuning.search.agreement import forms_by_prediction
from widthfold_onnx.tuning.workloads import Workload

PREDICTED_GAIN = 1.25
"""A form that was not measured is chosen if its predicted ratio is above this."""

MAX_PREDICTION_ERROR = 2.0
"""How much faster than predicted the best form of a layer may be: of 80 layers two exceeded it."""


@dataclass(frozen=True)
class LevelRace:
    """The layers of a model at one level, with their times in the store.

    Attributes:
        layers: the layers, whose forms are ordered for this level.
        bench: measures at this level, as much as the effort of its options spends.
        seconds: of one run of the model at this level; None if it was not timed.
        predicts: whether layers without a measurement are predicted, as none is to be taken.
    """

    layers: Layers
    bench: Bench
    seconds: float | None = None
    predicts: bool = False

    @property
    def spending(self) -> Spending:
        """The forms and runs of each layer, and which layers are left out."""
        return self.bench.options.spending

    def measure(self, budget: Budget) -> None:
        """Measure the layers as they are, and race the layers that can move the model."""
        if self.seconds is not None:
            as_is = [replace(workload, forms=()) for workload in self.layers.workloads.values()]
            self.bench.measure(as_is, budget)
        self.bench.measure(self.promising(), budget)

    @cached_property
    def _predicted_forms(self) -> Mapping[str, FormSpec]:
        """The forms of least predicted cost together: alone, forms of a region look slow."""
        return forms_by_prediction(self.layers)

    def promising(self) -> list[Workload]:
        """Return the layers to race by possible gain, largest first; layers inside regions last."""
        negligible = self.negligible()
        subjects = [s for s in reversed(self._least_first()) if s not in negligible]
        return workloads_to_race(self.layers, subjects, self.spending.forms, self._predicted_forms)

    def negligible(self) -> set[str]:
        """Return the layers that together cannot move the model by more than noise."""
        if self.seconds is None:
            return set()
        measurement_of = self.bench.measurement
        subjects = [s for s in self._least_first() if measurement_of(s, AS_IS) is not None]
        saved = list(itertools.accumulate(map(self._most_saved, subjects)))
        count = bisect.bisect_left(saved, self.spending.negligible_share * self.seconds)
        return set(subjects[:count])

    def gain(self, subject: str, spec: FormSpec) -> Gain | None:
        """Return the gain of a form of a layer; None where it is not known or the form was lost."""
        result = self.bench.measurement(subject, spec)
        if result is not None:
            return result.gain if result.status == "ok" else None
        is_measured = self.bench.measurement(subject, AS_IS) is not None
        if is_measured or not self.predicts:
            return None
        workload = self.layers.workloads[subject]
        form = next(form for form in workload.forms if form.spec == spec)
        ratio = round(workload.predicted_seconds / form.predicted_seconds, 4)
        return Gain(ratio=ratio, low=ratio, high=ratio, pairs=0, predicted=True)

    def best(self, subject: str) -> tuple[FormSpec, Gain] | None:
        """Return the form of a layer with the largest low end of its gain, and that gain."""
        gains = [
            (form.spec, gain)
            for form in self.layers.workloads[subject].forms
            if (gain := self.gain(subject, form.spec)) is not None
        ]
        return max(gains, key=lambda item: (item[1].low, item[0].text), default=None)

    def chosen(self) -> Mapping[str, FormSpec]:
        """Return the best form of every layer that surely gains by it."""
        best = {subject: self.best(subject) for subject in self.layers.workloads}
        return {s: b[0] for s, b in best.items() if b is not None and pays(b[1])}

    def estimate(self) -> float:
        """Return the seconds that one run of the model may take with these forms."""
        saved = sum(self.saved(subject, spec) for subject, spec in self.chosen().items())
        return (self.seconds or 0.0) - saved

    def saved(self, subject: str, spec: FormSpec) -> float:
        """Return the seconds that a form saves in all layers of a subject; 0 if not known."""
        gain = self.gain(subject, spec)
        return 0.0 if gain is None else self._seconds(subject) * (1 - 1 / gain.ratio)

    def _least_first(self) -> list[str]:
        return sorted(self.layers.workloads, key=lambda s: (self._most_saved(s), s))

    def _most_saved(self, subject: str) -> float:
        """Return the most seconds of the model that a layer may save, judged by predictions."""
        workload = self.layers.workloads[subject]
        fastest = min(form.predicted_seconds for form in workload.forms)
        ratio = MAX_PREDICTION_ERROR * workload.predicted_seconds / fastest
        return self._seconds(subject) * (1 - 1 / max(ratio, 1.0))

    def _seconds(self, subject: str) -> float:
        """Return the seconds of all layers of a subject as they are, predicted if not measured."""
        as_is = self.bench.measurement(subject, AS_IS)
        workload = self.layers.workloads[subject]
        seconds = workload.predicted_seconds if as_is is None else as_is.seconds
        return self.layers.layer_count(subject) * seconds


def workloads_to_race(
    layers: Layers, subjects: Collection[str], forms: int | None, first: Mapping[str, FormSpec]
) -> list[Workload]:
    """Return layers with the forms that race, and behind them those inside regions.

    Args:
        layers: the layers of a model.
        subjects: subjects of the layers that race.
        forms: the most forms of each; None: all.
        first: the form of each that comes first, as `forms_by_prediction` returns it.
    """
    return [
        workloads[subject].with_most_promising(forms, first.get(subject))
        for workloads in (layers.workloads, layers.workloads_inside)
        for subject in subjects
        if subject in workloads
    ]


def pays(gain: Gain) -> bool:
    """Check whether a gain is large enough to use the form."""
    return gain.low > (PREDICTED_GAIN if gain.predicted else MIN_GAIN)
