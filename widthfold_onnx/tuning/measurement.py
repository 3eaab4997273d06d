"""Define candidates, and their measurements as a run takes them and the store keeps them.

`optimize` imports the store before it reads a model, so this module imports no library that takes
long.
"""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, TypeAlias

import msgspec

from widthfold_onnx.results import Gain

if TYPE_CHECKING:
    from widthfold_onnx.rules.form import FormSpec
    from widthfold_onnx.runtime.clock import Times

Candidate: TypeAlias = "FormSpec | str"
"""A form of a layer; or, as text, the layer as it is or the models of a trial."""

AS_IS = "as-is"
"""The candidate that is a layer as it is, in no other form."""

NO_TIME = "no time was left"
OUT_OF_REACH = "its multiply-adds alone would take longer"
SKIPPED = frozenset({NO_TIME, OUT_OF_REACH})
"""Reasons of forms that were never run; every other lost form was run, and failed."""


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The comparison of a candidate with the original.

    Attributes:
        status: "lost" where there is no time: the candidate crashed, hung, ran out of memory, is
            not supported, or was skipped.
        ratio: time of the original / time of the candidate; 0.0 if lost. In a trial of two plans
            the first one is the original.
        low: lower end of the 95 % interval of `ratio`.
        high: its upper end.
        seconds: median time of the candidate.
        pairs: how many were timed; "rounds" in JSON.
        reason: why it is lost, "" otherwise.
        timestamp: of the measurement in UTC, as ISO 8601 writes it.
        control: deviation from 1 of the sessions of the original against each other; 0.0 where
            it had only one.
        note: another observation of the run.
        original_setting: of the runtime, such as its level, at which the original is fastest; ""
            where it was not chosen.
        setting: the same for the candidate.
        budget: seconds that there were for all that was measured with it.
        is_hopeless: it was so slow that it is not run again, however many pairs others get.

    Raises:
        ValueError: a number that is not finite, below 0 or too large; an interval whose ends are
            swapped; a status that ratio and reason do not fit; a time that is not in UTC.
    """

    status: Literal["ok", "lost"]
    ratio: float
    low: float
    high: float
    seconds: float
    pairs: int = msgspec.field(name="rounds")
    reason: str
    timestamp: str = msgspec.field(name="taken")
    control: float = 0.0
    note: str = ""
    original_setting: str = ""
    setting: str = ""
    budget: float = 0.0
    is_hopeless: bool = False

    def __post_init__(self) -> None:
        numbers = (self.ratio, self.low, self.high, self.seconds, self.control, self.budget)
        fit = all(math.isfinite(number) and number >= 0 for number in numbers)
        if not fit or not 0 <= self.pairs <= sys.maxsize:
            raise ValueError("a number is not finite, below 0 or too large")
        if self.low > self.high:
            raise ValueError("low is above high")
        is_lost = self.status == "lost"
        if not is_lost == (self.ratio == 0) == (self.low == 0) == bool(self.reason):
            raise ValueError("a lost measurement has ratio 0 and a reason, any other has neither")
        if self.time.utcoffset() != timedelta(0):
            raise ValueError("taken is not a time in UTC")

    @classmethod
    def of_ratio(cls, ratio: float, low: float, high: float, seconds: float, pairs: int) -> Self:
        """Return the measurement of what ran."""
        return cls("ok", ratio, low, high, seconds, pairs, reason="", timestamp=now())

    @classmethod
    def of_times(cls, numerator: Times, denominator: Times) -> Self:
        """Return the measurement of numerator / denominator, of one session each, [pair]."""
        import numpy as np

        from widthfold_onnx.runtime.intervals import one_session

        ratio, low, high = map(math.exp, one_session(np.log(numerator / denominator)))
        return cls.of_ratio(ratio, low, high, float(np.median(denominator)), len(denominator))

    @classmethod
    def lost(cls, reason: str) -> Self:
        """Return the measurement of what did not run."""
        return cls("lost", 0.0, 0.0, 0.0, 0.0, 0, reason, timestamp=now())

    @property
    def gain(self) -> Gain:
        """The gain of the candidate over the original; lost, it is surely slower."""
        return Gain(ratio=self.ratio, low=self.low, high=self.high, pairs=self.pairs)

    @property
    def skipped(self) -> bool:
        """True if the candidate was not run at all."""
        return self.reason in SKIPPED

    @property
    def time(self) -> datetime:
        """The time of the measurement."""
        return datetime.fromisoformat(self.timestamp)


class CandidateResult(NamedTuple):
    """A candidate and its measurement.

    Attributes:
        subject: a layer, or a whole model.
        candidate: one of its forms, or as it is; of a model two plans that were compared.
        measurement: how fast it is, or why it is lost.
    """

    subject: str
    candidate: Candidate
    measurement: Measurement


def now() -> str:
    """Return the current time, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
