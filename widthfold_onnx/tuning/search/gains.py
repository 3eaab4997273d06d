"""Judge measured and predicted gains: large enough to use, and beyond the noise."""

from __future__ import annotations

from widthfold_onnx.results import Gain, Measurement
from widthfold_onnx.runtime.intervals import judge
from widthfold_onnx.tuning.search.assign import SMALLEST_GAIN

PREDICTED_GAIN = 1.25
"""A form that was not measured is chosen if its predicted ratio is above this."""


def pays(gain: Gain) -> bool:
    """Check whether a gain is large enough to use the form."""
    return gain.low > (PREDICTED_GAIN if gain.predicted else SMALLEST_GAIN)


def gain_of(measured: Measurement) -> Gain:
    """Return a measurement as a gain for reports."""
    return Gain(ratio=measured.ratio, low=measured.low, high=measured.high, pairs=measured.rounds)


def is_faster(trial: Measurement) -> bool:
    """Check whether a trial shows a gain beyond the noise."""
    return judge(trial.low, trial.high, trial.control) == "faster"
