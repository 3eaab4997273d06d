"""A measurement holds numbers that fit each other; others are refused, whoever stored them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from widthfold_onnx.tuning.measurement import NO_TIME, OUT_OF_REACH, Measurement


def measurement(**changes: object) -> Measurement:
    """A measurement of these fields; `msgspec.structs.replace` of old releases checks nothing."""
    fields = msgspec.structs.asdict(Measurement.of_ratio(1.5, 1.4, 1.6, 2e-3, 8))
    return Measurement(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ratio": math.nan}, "not finite, below 0 or too large"),
        ({"high": math.inf}, "not finite, below 0 or too large"),
        ({"seconds": -1e-9}, "not finite, below 0 or too large"),
        ({"control": -0.1}, "not finite, below 0 or too large"),
        ({"budget": math.nan}, "not finite, below 0 or too large"),
        ({"pairs": -1}, "not finite, below 0 or too large"),
        ({"pairs": 1 << 63}, "not finite, below 0 or too large"),
        ({"low": 1.7}, "low is above high"),
        ({"ratio": 0.0}, "a lost measurement has ratio 0 and a reason, any other has neither"),
        ({"reason": "no"}, "a lost measurement has ratio 0 and a reason, any other has neither"),
        ({"status": "lost"}, "a lost measurement has ratio 0 and a reason, any other has neither"),
        ({"timestamp": "2026-01-01T00:00:00"}, "taken is not a time in UTC"),
        ({"timestamp": "2026-01-01T00:00:00+01:00"}, "taken is not a time in UTC"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measurement(**changes)


@pytest.mark.parametrize("timestamp", ["yesterday", ""])
def test_a_time_that_is_none_is_refused(timestamp: str) -> None:
    with pytest.raises(ValueError, match="Invalid isoformat string"):
        measurement(timestamp=timestamp)


def test_earlier_stores_call_pairs_rounds() -> None:
    assert b'"rounds":8' in msgspec.json.encode(Measurement.of_ratio(1.5, 1.4, 1.6, 2e-3, 8))


def test_stored_numbers_are_checked_as_well() -> None:
    text = msgspec.json.encode(Measurement.of_ratio(1.5, 1.4, 1.6, 2e-3, 8)).replace(b"1.4", b"1.7")
    with pytest.raises(msgspec.ValidationError, match="low is above high"):
        msgspec.json.decode(text, type=Measurement)


@pytest.mark.parametrize("reason", [NO_TIME, OUT_OF_REACH])
def test_a_form_that_never_ran_is_skipped_and_a_form_that_failed_is_not(reason: str) -> None:
    assert Measurement.lost(reason).skipped
    assert not Measurement.lost(f"{reason}, it crashed").skipped
    assert not Measurement.of_ratio(1.0, 1.0, 1.0, 1.0, 1).skipped


def test_the_time_of_a_measurement_is_now_in_utc() -> None:
    age = datetime.now(UTC) - Measurement.lost("it crashed").time
    assert timedelta(0) <= age < timedelta(minutes=5)
