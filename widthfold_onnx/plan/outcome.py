"""What a race says of a form, as it is kept: measured, skipped or lost, and how long it counts."""

from __future__ import annotations

import datetime

from widthfold_onnx.plan.race import Ran
from widthfold_onnx.plan.store import Measurement
from widthfold_onnx.results.store import NO_TIME

MORE_TIME = 2.0
"""What was skipped for want of time gets another chance where there is so many times as much."""

RETRY = datetime.timedelta(days=7)
"""What was lost gets another chance after so long: memory or time may have lacked for a while."""


def settled(found: Measurement | None, seconds: float) -> bool:
    """Whether what is known of a form is all that there is to know in so many seconds."""
    if found is None:
        return False
    if outdated(found) and seconds > 0:
        return False
    return found.reason != NO_TIME or seconds < MORE_TIME * found.seconds


def kept_of(ran: Ran, budget: float) -> Measurement:
    """As it is kept; what was skipped for want of time keeps how much there was."""
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
    """Whether it was lost so long ago that it should be tried again."""
    age = datetime.datetime.now(datetime.UTC) - found.time
    return found.status == "lost" and age > RETRY


def lost(reason: str) -> Measurement:
    """The measurement of what did not run."""
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
    """This moment, as ISO 8601 in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
