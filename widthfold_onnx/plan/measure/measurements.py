"""Turn the result of a race into a measurement: ok, skipped or lost; say how long it counts."""

from __future__ import annotations

import datetime

from widthfold_onnx.plan.measure.successive_halving import Ran
from widthfold_onnx.plan.store.store import Measurement
from widthfold_onnx.results.store import NO_TIME

MORE_TIME = 2.0
"""A form skipped for lack of time is tried again with this many times as much time."""

RETRY = datetime.timedelta(days=7)
"""Age at which a lost form is tried again: memory or time may have been short at that moment."""


def is_known(found: Measurement | None, seconds: float, pairs: int) -> bool:
    """Check whether a form needs no new measurement.

    Args:
        found: what is known.
        seconds: time to measure in.
        pairs: how often every form runs, unless it is hopeless.
    """
    if found is None:
        return False
    if found.status == "ok" and 1 < found.rounds < pairs:
        return False
    if outdated(found) and seconds > 0:
        return False
    return found.reason != NO_TIME or seconds < MORE_TIME * found.seconds


def measurement_of(ran: Ran, budget: float) -> Measurement:
    """Return the measurement to keep; one skipped for lack of time records how much there was."""
    return Measurement(
        status="ok" if ran.pairs else "lost",
        ratio=ran.ratio,
        low=ran.low,
        high=ran.high,
        seconds=budget if ran.reason == NO_TIME else ran.seconds,
        rounds=ran.pairs,
        reason=ran.reason,
        taken=now(),
    )


def outdated(found: Measurement) -> bool:
    """Check whether a form was lost so long ago that it should be tried again."""
    age = datetime.datetime.now(datetime.UTC) - found.time
    return found.status == "lost" and age > RETRY


def lost(reason: str) -> Measurement:
    """Return the measurement of a form that did not run."""
    return Measurement(
        status="lost",
        ratio=0.0,
        low=0.0,
        high=0.0,
        seconds=0.0,
        rounds=0,
        reason=reason,
        taken=now(),
    )


def now() -> str:
    """Return the current time, as ISO 8601 in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
