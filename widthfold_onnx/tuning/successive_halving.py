"""Race the forms of one layer against the layer as it is, in a child process.

Successive halving: every form runs a few times in turn with the layer as it is, the better ones
run more often. Pairs of neighbouring runs are compared (`runtime.intervals.one_session`), so that a
machine that slows down for a while slows both sides. A form does not run if its multiply-adds alone
take longer than the layer as it is. They are counted at a rate that no layer reaches on this
machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec
import numpy as np

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.runtime.clock import Run, Times, clock_of, in_turn
from widthfold_onnx.runtime.kernels import peak_speed
from widthfold_onnx.runtime.session import resolved
from widthfold_onnx.runtime.settings import fixed_feeds, random_run
from widthfold_onnx.tuning.effort import RaceOptions
from widthfold_onnx.tuning.measurement import (
    AS_IS,
    NO_TIME,
    OUT_OF_REACH,
    Candidate,
    CandidateResult,
    Measurement,
)
from widthfold_onnx.tuning.workloads import PredictedForm, Workload, model_in_form

HOPELESS_RATIO = 2.0
"""A form is not run again if it is this many times slower in its first pairs than the layer as it
is, or than the best form so far."""

WARMUP_RUNS = 2
"""Runs of a form before it is timed; the layer as it is runs with the last one.

The second run of the first form of a process was seen to take twice as long as later runs (30 -> 10
channels of 502 x 108 positions, 11 ms, AVX-512). The layer as it is rests while a form is opened:
without that run, forms of the short layers of silero_vad_v6 showed 1.3x to 2.0x instead of 0.9x to
1.4x."""

FIRST_PAIRS = 2
"""One pair does not tell: what else the machine did at that moment made the fastest form of a layer
three times as slow."""

FORM_SECONDS = 10.0
"""Seconds after which a form gets no more than `MIN_PAIRS`."""

MIN_PAIRS = 4
"""Pairs that a form gets however long they take, if it gets more than the first ones."""

PEAK_MARGIN = 1.5
"""How much faster than the best matrix product measured here a layer might compute."""

MAX_PART_RATIO = 2.0
"""A layer may take this many times its part of the time left: most take less."""

OPENING_SECONDS = 0.005
"""Seconds that opening a form takes, by run of its first pairs."""

FIRST_SHARE = 0.7
"""Share of a layer's time after which no further form starts; the first one always does."""


@dataclass(frozen=True)
class Start:
    """A layer as it is, or one of its forms, is about to run."""

    subject: str
    candidate: Candidate


Send = Callable[[Start | CandidateResult], None]


def race(
    workloads: Sequence[Workload], options: RaceOptions, seconds: float, *, send: Send
) -> None:
    """Race all forms of all workloads, and report as they run.

    Args:
        workloads: in the order in which they are raced.
        options: how forms run.
        seconds: time that all of them together should take; when it is over, no layer but the first
            starts.
        send: gets every start, and one result for every form and every layer as it is.

    Raises:
        UnverifiedError: the runtime cannot be used, or does not run a layer as it is.
    """
    resolved(options.setting.options)  # else the first layer would seem not to run
    peak = peak_speed(options.setting) if any(w.forms for w in workloads) else math.inf
    end = time.perf_counter() + seconds
    for index, workload in enumerate(workloads):
        if index and time.perf_counter() > end:
            break
        # The workload counts twice, so that the last one gets all the time left, and no more.
        part = MAX_PART_RATIO * _need(workload) / sum(map(_need, [workload, *workloads[index:]]))
        send(Start(workload.subject, AS_IS))
        original = random_run(workload.model, options.setting)
        _Race(workload, options, send, original).run(peak, part * (end - time.perf_counter()))
    fixed_feeds.cache_clear()  # the process may go on with other tasks


def _need(workload: Workload) -> float:
    """Return the time that a race needs, in seconds for one run of every form."""
    return (len(workload.forms) + 1) * (workload.predicted_seconds + OPENING_SECONDS)


@dataclass
class _Race:
    """The race of one layer.

    Attributes:
        workload: the layer.
        options: how forms run.
        send: gets every start and every result.
        original: runs the layer as it is.
        times: seconds of each form in the last round in which it ran, [side, pair]; side 0 is the
            layer as it is.
        hopeless: the forms that are not run again.
    """

    workload: Workload
    options: RaceOptions
    send: Send
    original: Run
    times: dict[PredictedForm, Times] = field(default_factory=dict)
    hopeless: set[PredictedForm] = field(default_factory=set)

    def run(self, peak: float, seconds: float) -> None:
        """Run every form, and the better ones again.

        Args:
            peak: floating-point operations per second of the best matrix product.
            seconds: time that this should take.
        """
        start = time.perf_counter()
        spending = self.options.spending
        _, as_is_times = self._pairs(self._turns(self.original), spending.pairs)
        as_is_seconds = float(np.median(as_is_times))
        self._tell(AS_IS, Measurement.of_ratio(1.0, 1.0, 1.0, as_is_seconds, len(as_is_times)))
        for form in self.workload.forms:
            if out_of_reach(form.macs, as_is_seconds, peak):
                reason = OUT_OF_REACH
            elif self.times and time.perf_counter() - start > FIRST_SHARE * seconds:
                reason = NO_TIME
            else:
                reason = self._run(form, spending.pairs)
            if reason:
                self._tell(form.spec, Measurement.lost(reason))
        for rung in spending.rungs:
            running = [form for form in self.times if form not in self.hopeless]
            best_first = sorted(running, key=lambda form: -_ratio(self.times[form]))
            for form in best_first[: rung.forms]:
                if time.perf_counter() - start > seconds:
                    continue
                if reason := self._run(form, rung.pairs):  # such as a lack of memory
                    del self.times[form]
                    self._tell(form.spec, Measurement.lost(reason))
        for form, pairs in self.times.items():
            is_hopeless = form in self.hopeless
            measurement = Measurement.of_times(*pairs)
            self._tell(form.spec, msgspec.structs.replace(measurement, is_hopeless=is_hopeless))

    def _tell(self, candidate: Candidate, measurement: Measurement) -> None:
        self.send(CandidateResult(self.workload.subject, candidate, measurement))

    def _run(self, form: PredictedForm, pairs: int) -> str:
        """Run a form; return why there is no result, "" if there is one."""
        self.send(Start(self.workload.subject, form.spec))
        model = model_in_form(self.workload, form.form)
        try:
            run = random_run(model, self.options.setting)
            if form in self.times:
                self.times[form] = self._pairs(self._turns(run), pairs)
            else:
                self.times[form] = self._first_times(form, self._turns(run), pairs)
        except UnverifiedError as error:
            return str(error)
        return ""

    def _first_times(self, form: PredictedForm, turns: Iterator[list[float]], pairs: int) -> Times:
        """Run a form for the first time: a hopeless one in the first pairs only."""
        times = self._pairs(turns, FIRST_PAIRS)
        best = max(map(_ratio, self.times.values()), default=1.0)
        if HOPELESS_RATIO * _ratio(times) < max(best, 1.0):
            self.hopeless.add(form)
        elif pairs > FIRST_PAIRS:
            further_times = self._pairs(turns, pairs - FIRST_PAIRS)
            times = np.concatenate([times, further_times], axis=1)
        return times

    def _turns(self, form: Run) -> Iterator[list[float]]:
        """Warm both sides up, and return their seconds, pair by pair.

        One iterator takes turns as long as a form runs: a second one would begin the order anew.
        """
        for count in range(WARMUP_RUNS - 1):
            form(count)
        turns = in_turn((self.original, form), clock_of(self.options.setting.options))
        next(turns)
        return turns

    def _pairs(self, turns: Iterator[list[float]], count: int) -> Times:
        """Return seconds [side, pair], of fewer pairs where they take long."""
        start = time.perf_counter()
        times: list[list[float]] = []
        for pair in islice(turns, count):
            times.append(pair)
            if len(times) >= MIN_PAIRS and time.perf_counter() - start > FORM_SECONDS:
                break
        return np.array(times).T


def out_of_reach(macs: float, as_is_seconds: float, peak: float) -> bool:
    """Check whether a form cannot win: its multiply-adds alone take longer than the layer as it is.

    Args:
        macs: multiply-adds of one run of the form.
        as_is_seconds: seconds of the layer as it is.
        peak: floating-point operations per second of the best matrix product.
    """
    return 2 * macs > as_is_seconds * peak * PEAK_MARGIN


def _ratio(times: Times) -> float:
    """Divide the shortest seconds of side 0 by the shortest of side 1.

    What disturbs one of a few runs prolongs it.
    """
    base, form = times.min(axis=1)
    return float(base / form)
