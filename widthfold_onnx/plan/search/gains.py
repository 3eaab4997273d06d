"""Look up what the forms of layers gain: measured, or predicted where nothing is to be measured."""

from __future__ import annotations

from collections import Counter

from widthfold_onnx.plan.measure.bench import Bench
from widthfold_onnx.plan.search.assign import SMALLEST_GAIN
from widthfold_onnx.plan.workload.layers import Layers
from widthfold_onnx.plan.workload.workloads import Form, Workload
from widthfold_onnx.results import Gain, Measurement
from widthfold_onnx.results.store import AS_IS
from widthfold_onnx.runtime.clock import judge

PREDICTED_GAIN = 1.25
"""A form that was not measured is chosen if its predicted ratio is above this."""


class Gains:
    """The known gains of the layers of one model.

    Args:
        layers: the layers of the model.
        bench: holds the measurements.
        predict: whether to predict layers that have no measurement.
    """

    def __init__(self, layers: Layers, bench: Bench, *, predict: bool) -> None:
        self._layers = layers
        self._bench = bench
        self._predict = predict

    def of(self, subject: str, key: str) -> Gain | None:
        """Return the gain of a form of a layer; None where it is not known or the form was lost."""
        measured = self._bench.known(subject, key)
        if measured is not None:
            return gain_of(measured) if measured.status == "ok" else None
        if not self._predict or self._bench.known(subject, AS_IS) is not None:
            return None
        workload = self._layers.workloads[subject]
        return _foreseen(workload, next(form for form in workload.forms if form.key == key))

    def best(self, subject: str) -> tuple[str, Gain] | None:
        """Return the form of a layer with the largest low end of its gain, and that gain."""
        known = [
            (form.key, gain)
            for form in self._layers.workloads[subject].forms
            if (gain := self.of(subject, form.key)) is not None
        ]
        return max(known, key=lambda item: (item[1].low, item[0]), default=None)

    def unknown(self, subject: str) -> str:
        """Return why no gain of a layer's forms is known, as words that follow "none of them".

        The reason is the most common one among the lost measurements of the layer and its forms.
        """
        keys = (AS_IS, *(form.key for form in self._layers.workloads[subject].forms))
        found = (self._bench.known(subject, key) for key in keys)
        reasons = Counter(known.reason for known in found if known is not None and known.reason)
        return f"ran: {reasons.most_common(1)[0][0]}" if reasons else "was measured"

    def saved(self, subject: str, key: str) -> float:
        """Return the seconds that a form of known gain saves in all layers of a subject."""
        own, gain = self._bench.known(subject, AS_IS), self.of(subject, key)
        assert gain is not None
        seconds = self._layers.workloads[subject].predicted if own is None else own.seconds
        return self._layers.count(subject) * seconds * (1 - 1 / gain.ratio)


def pays(gain: Gain) -> bool:
    """Check whether a gain is large enough to use the form."""
    return gain.low > (PREDICTED_GAIN if gain.predicted else SMALLEST_GAIN)


def gain_of(measured: Measurement) -> Gain:
    """Return a measurement as a gain for reports."""
    return Gain(ratio=measured.ratio, low=measured.low, high=measured.high, pairs=measured.rounds)


def is_faster(trial: Measurement) -> bool:
    """Check whether a trial shows a gain beyond the noise."""
    return judge(trial.low, trial.high, trial.control) == "faster"


def _foreseen(workload: Workload, form: Form) -> Gain:
    ratio = round(workload.predicted / form.predicted, 4)
    return Gain(ratio=ratio, low=ratio, high=ratio, pairs=0, predicted=True)
