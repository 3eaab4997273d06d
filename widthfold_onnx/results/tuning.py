"""Results of measuring layers: measurements as the store keeps them, the search, and `tune`."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from widthfold_onnx.results.base import Gain, Report, Result, SizeGain

TUNE_SCHEMA = "widthfold.tune/3"

AS_IS = "as-is"
"""The candidate that is no other form: a layer as it is."""

NO_TIME = "no time was left"
OUT_OF_REACH = "its multiply-adds alone would take longer"
NO_SUCH_FORM = "it does not exist at these extents"
SKIPPED = frozenset({NO_TIME, OUT_OF_REACH, NO_SUCH_FORM})
"""Reasons of forms that were never run; every other lost form was run, and failed."""


class Key(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """Everything that can change the answer.

    Attributes:
        subject: canonical JSON of the measured operator, or ``model:<sha256>``.
        candidate: canonical JSON of the reformulation, or ``as-is`` for the original.
        setting: canonical JSON of provider, its options, level and threads.
        machine: canonical JSON of device, runtime, driver and package versions.
    """

    subject: str
    candidate: str
    setting: str
    machine: str


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The comparison of a candidate with the original.

    Attributes:
        status: "lost" where there is no time: the candidate crashed, hung, ran out of memory, is
            not supported, or was skipped.
        ratio: time of the original / time of the candidate; 0.0 if lost.
        low: lower end of the 95 % interval of `ratio`.
        high: its upper end.
        seconds: median time of the candidate.
        rounds: pairs that were timed.
        reason: why it is lost, "" otherwise.
        taken: when, in UTC, as ISO 8601 writes it.
        control: deviation from 1 of the sessions of the original against each other; 0.0 where
            it had only one.
        note: another observation of the run.
        original_setting: of the runtime, such as its level, at which the original is fastest; ""
            where it was not chosen.
        setting: the same for the candidate.
        budget: seconds that there were for all that was measured with it.

    Raises:
        ValueError: a number that is not finite, below 0 or too large; an interval whose ends are
            swapped; a status that ratio and reason do not fit; a time that is not in UTC.
    """

    status: Literal["ok", "lost"]
    ratio: float
    low: float
    high: float
    seconds: float
    rounds: int
    reason: str
    taken: str
    control: float = 0.0
    note: str = ""
    original_setting: str = ""
    setting: str = ""
    budget: float = 0.0

    def __post_init__(self) -> None:
        numbers = (self.ratio, self.low, self.high, self.seconds, self.control, self.budget)
        fit = all(math.isfinite(number) and number >= 0 for number in numbers)
        if not fit or not 0 <= self.rounds <= sys.maxsize:
            raise ValueError("a number is not finite, below 0 or too large")
        if self.low > self.high:
            raise ValueError("low is above high")
        lost = self.status == "lost"
        if not lost == (self.ratio == 0) == (self.low == 0) == bool(self.reason):
            raise ValueError("a lost measurement has ratio 0 and a reason, any other has neither")
        if self.time.utcoffset() != timedelta(0):
            raise ValueError("taken is not a time in UTC")

    @property
    def skipped(self) -> bool:
        """True if the candidate was not run at all."""
        return self.reason in SKIPPED

    @property
    def time(self) -> datetime:
        """The time of the measurement."""
        return datetime.fromisoformat(self.taken)


def timed(ratio: float, low: float, high: float, seconds: float, rounds: int) -> Measurement:
    """Return the measurement of what ran."""
    return Measurement("ok", ratio, low, high, seconds, rounds, reason="", taken=now())


def lost(reason: str) -> Measurement:
    """Return the measurement of what did not run."""
    return Measurement("lost", 0.0, 0.0, 0.0, 0.0, 0, reason, taken=now())


def now() -> str:
    """Return the current time, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class SearchReport(Result, kw_only=True, frozen=True):
    """The search that chose the forms.

    Attributes:
        provider: where everything ran.
        threads: intra-op threads.
        target: the device of the predictions, also if they only order the best forms first.
        sizes: the whole model at each size; layers were measured at the first.
        layers: different layers that can be reformulated.
        forms: reformulations of all of them together.
        measured: how many measurements this run took; the others were in the store.
        left: planned layers with pending measurements.
        predicted: how many of the layers were judged by prediction, for want of measurements.
        interrupted: whether measuring was ended by hand.
        store_read_only: whether the store may only be read, so that nothing measured is kept.
        whole: the whole model, folded where that pays, against the original at its strongest
            setting, at the first size; None where no layer gained, or nothing was to be measured.
        control: deviation from 1 of the sessions of the original against each other in that trial.
        bar: ratio that the low end of `whole` must exceed, as noise counts up to it.
        failure: the model that did not run in that trial, and why; "" where both did.
        note: what else was seen of the original at its settings.
        original_setting: of the runtime, such as its level, at which the original is fastest; ""
            where that was not timed.
        folded_setting: the same for the folded model.
        accepted: whether that is faster beyond the noise at one size and slower at none, or was
            not timed; if not, nothing is folded.
    """

    provider: str
    threads: int
    target: str
    sizes: list[SizeGain]
    layers: int
    forms: int
    measured: int
    left: int
    predicted: int
    interrupted: bool
    store_read_only: bool
    whole: Gain | None
    accepted: bool
    control: float = 0.0
    bar: float = 0.0
    failure: str = ""
    note: str = ""
    original_setting: str = ""
    folded_setting: str = ""


class TunedModel(Result, kw_only=True, frozen=True):
    """One model: counts of layers as they are and of their forms, on all machines.

    Attributes:
        model: name of the file.
        layers: different layers that can be reformulated.
        forms: reformulations of all of them together, alone and between packed tensors.
        measured: how many this run added to the store; a layer that several models have counts for
            each of them.
        known: how many were in the store before.
        skipped: how many of both were not run: out of reach, or no time remained.
        failed: how many of both were run and gave no time: it crashed, hung, ran out of
            memory, or the runtime has no kernel for it.
        left: layers with pending measurements on some machine.
        reason: why the model was not tuned, "" where it was.
        code: exit code of the error that is the reason, 0 where there is none.
    """

    model: str
    layers: int = 0
    forms: int = 0
    measured: int = 0
    known: int = 0
    skipped: int = 0
    failed: int = 0
    left: int = 0
    reason: str = ""
    code: int = 0


class TunedMachine(Result, kw_only=True, frozen=True):
    """A machine that measured: its `identity.machine_identity`, and how much it did."""

    provider: str
    machine: str
    measured: int


class TuneReport(Report, kw_only=True, frozen=True):
    """Result of `tune`.

    Attributes:
        schema: name and version of the JSON report.
        threads: intra-op threads.
        machines: where it was measured; several kinds are possible on a cluster.
        models: in the order in which they were named.
        interrupted: whether measuring was ended by hand.
        store_read_only: whether the store may only be read, so that nothing measured is kept.
    """

    schema: str = TUNE_SCHEMA
    threads: int
    machines: list[TunedMachine]
    models: list[TunedModel]
    interrupted: bool
    store_read_only: bool
