"""Name what was measured, and say how long measurements count."""

from __future__ import annotations

import datetime
from typing import NamedTuple

from widthfold_onnx.results import Measurement
from widthfold_onnx.results.store import NO_TIME
from widthfold_onnx.rules.forms.spec import FormSpec

SMALLEST_GAIN = 1.03
"""A layer takes another form only if the low end of the form's speed-up exceeds this.

It is more than `intervals.SMALLEST_DIFFERENCE`: many forms race, and the best may be so by chance.
"""

MORE_TIME = 2.0
"""What was skipped for lack of time, or left undecided by a wide interval, is measured again with
this many times as much time."""

RETRY = datetime.timedelta(days=7)
"""Age at which a lost form is tried again: memory or time may have been short at that moment."""


Candidate = FormSpec | str
"""A form of a layer; or, as text, the layer as it is or the models of a trial."""


class Outcome(NamedTuple):
    """Name a candidate and its measurement.

    Attributes:
        subject: a layer, or a whole model.
        candidate: one of its forms, or as it is; of a model two plans that were compared.
        measurement: how fast it is, or why it is lost.
    """

    subject: str
    candidate: Candidate
    measurement: Measurement


def is_known(
    found: Measurement | None, seconds: float, pairs: int = 0, bar: float = SMALLEST_GAIN
) -> bool:
    """Check whether a candidate needs no new measurement.

    Args:
        found: the measurement, if there is one.
        seconds: time to measure in.
        pairs: how often every form runs, unless it is hopeless.
        bar: the ratio that its interval should lie above or below.
    """
    if found is None:
        return False
    if found.status == "ok" and 1 < found.rounds < pairs:
        return False
    if outdated(found) and seconds > 0:
        return False
    is_open = found.reason == NO_TIME or found.low <= bar < found.high
    return not is_open or seconds < MORE_TIME * found.budget


def outdated(found: Measurement) -> bool:
    """Check whether a form was lost so long ago that it should be tried again."""
    age = datetime.datetime.now(datetime.UTC) - found.time
    return found.status == "lost" and age > RETRY
