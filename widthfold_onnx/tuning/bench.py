"""Measure workloads in child processes of this machine, and save the results.

A form that crashes the child, hangs or exhausts its memory has lost; the race goes on without it in
a new child. A measurement in the store is not repeated, unless it was lost long ago or for want of
time.
"""

from __future__ import annotations

import datetime
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.progress import Step, progress, progress_to
from widthfold_onnx.runtime.child import Child, isolated
from widthfold_onnx.runtime.provider_traits import Level, traits_of
from widthfold_onnx.system import memory_bytes
from widthfold_onnx.tuning.effort import RaceOptions
from widthfold_onnx.tuning.identity import setting_identity
from widthfold_onnx.tuning.measurement import (
    AS_IS,
    NO_TIME,
    Candidate,
    CandidateResult,
    Measurement,
)
from widthfold_onnx.tuning.store import Key, Store
from widthfold_onnx.tuning.successive_halving import Start, race
from widthfold_onnx.tuning.workloads import Workload


@dataclass
class Budget:
    """Seconds for measuring; they pass only while something runs.

    Attributes:
        total: the seconds at the beginning.
    """

    total: float
    _spent: float = 0.0
    _since: float | None = None

    @property
    def left(self) -> float:
        """Seconds that are left; below 0 if more were spent."""
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return self.total - self._spent - running

    def start(self) -> None:
        """Let the seconds pass, unless they do already."""
        if self._since is None:
            self._since = time.monotonic()

    def stop(self) -> None:
        """Let no more seconds pass."""
        self._spent, self._since = self.total - self.left, None


SILENCE_SECONDS = 60.0
"""Seconds that a form may take to load and run before it counts as hung."""

MEMORY_SHARE = 0.5
"""Share of the machine's memory that a child on the CPU may use."""

Save = Callable[[CandidateResult], None]


def race_in_children(
    workloads: Sequence[Workload],
    options: RaceOptions,
    budget: Budget,
    save: Save,
    *,
    share: float = 1.0,
    child: Child | None = None,
) -> None:
    """Race all forms of the workloads, until all ran or the budget is spent; the first always runs.

    Args:
        workloads: in the order in which they are measured.
        options: how forms run.
        budget: the seconds to spend; seconds in which a child starts do not count.
        save: gets every measurement at once.
        share: fraction of the seconds that are left which these workloads should take.
        child: runs the races; None starts a process for each attempt.

    Raises:
        UnverifiedError: the runtime cannot be used.
    """
    by_subject = {workload.subject: workload for workload in workloads}
    remaining = _Remaining(by_subject, len(by_subject), budget, save)
    on_cpu = traits_of(options.provider).device == "cpu"
    while remaining.workloads and (budget.left > 0 or not remaining.done):
        try:
            isolated(
                race,
                list(remaining.workloads.values()),
                options,
                budget.left * share,
                child=child,
                silence=SILENCE_SECONDS,
                # CUDA reserves far more address space than it uses.
                memory=int(memory_bytes() * MEMORY_SHARE) if on_cpu else None,
                on_message=remaining.hear,
            )
        except UnverifiedError as error:
            if remaining.running is None:
                raise  # nothing ran: the runtime cannot be used
            remaining.lose(remaining.running, str(error))
        else:
            return  # all ran, or the time is over
        finally:
            budget.stop()


@dataclass
class _Remaining:
    """The workloads left to measure, kept up to date by messages of the children.

    Attributes:
        workloads: by subject, each with the forms that are left.
        total: number of workloads at the beginning.
        budget: the seconds to spend.
        save: gets every measurement at once.
        running: the form that has begun; None between two layers.
    """

    workloads: dict[str, Workload]
    total: int
    budget: Budget
    save: Save
    running: Start | None = None

    def hear(self, message: Start | CandidateResult) -> None:
        """Handle a message of a child."""
        self.budget.start()
        if isinstance(message, CandidateResult):
            self._record(message)
            return
        if message.candidate == AS_IS:
            text = f"measuring layer {self.done + 1} of {self.total}"
            progress(Step(text, self.done, self.total, self.budget.left))
        self.running = message

    @property
    def done(self) -> int:
        """Number of workloads that were measured, or lost."""
        return self.total - len(self.workloads)

    def lose(self, form: Start, reason: str) -> None:
        """Mark the form that was running as lost; without the layer as it is, none can race."""
        self._record(CandidateResult(form.subject, form.candidate, Measurement.lost(reason)))
        if form.candidate == AS_IS:
            self.workloads.pop(form.subject, None)
        self.running = None

    def _record(self, result: CandidateResult) -> None:
        """Save a result; a layer is done when every form has a measurement."""
        subject, candidate, measurement = result
        measurement = msgspec.structs.replace(measurement, budget=self.budget.total)
        self.save(CandidateResult(subject, candidate, measurement))
        workload = self.workloads[subject]
        forms = tuple(form for form in workload.forms if form.spec != candidate)
        self.workloads[subject] = replace(workload, forms=forms)
        if not forms:
            del self.workloads[subject]
            self.running = None


MIN_GAIN = 1.03
"""A layer takes another form only if the low end of the form's speed-up exceeds this.

It is more than `intervals.MIN_DIFFERENCE`: many forms race, and the best may be so by chance.
"""

MORE_TIME = 2.0
"""A measurement is repeated if the budget is at least this many times the earlier budget, and the
measurement was skipped for lack of time or left undecided by a wide interval."""

RETRY = datetime.timedelta(days=7)
"""Age at which a lost form is tried again: memory or time may have been short at that moment."""


@dataclass(frozen=True)
class Bench:
    """Measures layers and models on one machine, at one setting.

    What the store holds is read once, as a search asks for a measurement dozens of times.

    Attributes:
        options: how forms race; their provider is not AUTO.
        store: where measurements are kept.
        machine: `identity.machine_identity`.
        child: runs the measurements; None starts processes for each call.
        new_measurements: subject and candidate of each measurement that this bench has kept.
    """

    options: RaceOptions
    store: Store
    machine: str
    child: Child | None = None
    new_measurements: set[tuple[str, Candidate]] = field(default_factory=set)
    _measurements: dict[Key, Measurement | None] = field(default_factory=dict, init=False)

    @cached_property
    def _setting(self) -> str:
        setting = self.options.setting
        return setting_identity(setting.options, setting.level)

    def at(self, level: Level) -> Bench:
        """Return a bench of its own for another level."""
        setting = replace(self.options.setting, level=level)
        options = replace(self.options, setting=setting)
        return Bench(options, self.store, self.machine, self.child)

    def measurement(self, subject: str, candidate: Candidate) -> Measurement | None:
        """Return the measurement that the store holds, if any."""
        key = self._key(subject, candidate)
        if key not in self._measurements:
            self._measurements[key] = self.store.get(key)
        return self._measurements[key]

    def save(self, result: CandidateResult) -> None:
        """Store a measurement."""
        subject, candidate, measurement = result
        self.new_measurements.add((subject, candidate))
        key = self._key(subject, candidate)
        self._measurements[key] = measurement
        self.store.put(key, measurement)

    def measure(self, workloads: Sequence[Workload], budget: Budget) -> None:
        """Race all forms without a measurement, until all ran or the budget is spent.

        Args:
            workloads: in the order in which they are measured.
            budget: the seconds to spend.
        """
        pending = self.pending(workloads, budget.total)
        race_in_children(pending, self.options, budget, self.save, child=self.child)

    def pending(
        self, workloads: Sequence[Workload], seconds: float | None = None
    ) -> list[Workload]:
        """Return the workloads that lack measurements, each with the forms that lack one.

        Args:
            workloads: to choose from.
            seconds: time to measure them in. Forms that were lost long ago lack a measurement as
                well. So do forms that an earlier run skipped or left undecided, if it had much
                less time. None: neither of these lacks one.
        """
        return [reduced for w in workloads if (reduced := self._without_measured(w, seconds))]

    def _without_measured(self, workload: Workload, seconds: float | None) -> Workload | None:
        as_is = self.measurement(workload.subject, AS_IS)
        if as_is is not None and as_is.status == "lost":
            return None if is_complete(as_is, seconds) else workload
        pairs = self.options.spending.pairs
        measurements = {f: self.measurement(workload.subject, f.spec) for f in workload.forms}
        forms = tuple(
            f for f, m in measurements.items() if m is None or not is_complete(m, seconds, pairs)
        )
        return replace(workload, forms=forms) if forms or as_is is None else None

    def _key(self, subject: str, candidate: Candidate) -> Key:
        text = candidate if isinstance(candidate, str) else candidate.text
        return Key(subject, text, self._setting, self.machine)


def is_complete(
    measurement: Measurement, seconds: float | None, pairs: int = 0, bar: float = MIN_GAIN
) -> bool:
    """Check whether a candidate needs no new measurement.

    Args:
        measurement: its measurement.
        seconds: time to measure in; None: nothing lost or undecided is to be measured again.
        pairs: how often every form runs, unless it is hopeless.
        bar: the ratio that its interval should lie above or below.
    """
    is_short = measurement.pairs < pairs and not measurement.is_hopeless
    if measurement.status == "ok" and is_short:
        return False
    if seconds is None:
        return True
    age = datetime.datetime.now(datetime.UTC) - measurement.time
    if measurement.status == "lost" and age > RETRY:
        return False
    is_open = measurement.reason == NO_TIME or measurement.low <= bar < measurement.high
    return not is_open or seconds < MORE_TIME * measurement.budget


class _StoppedError(Exception):
    """Measuring was stopped, so the rest is not needed."""


class LocalPool:
    """The processes of this machine that measure at a time.

    They are no workers of Dask, although a cluster could run here. Processes of Dask print
    tracebacks on Ctrl-C, import the script of the caller, and answer when a whole layer is done.
    An interrupt after 8 seconds kept none of the 550 measurements that these processes had given.

    Attributes:
        provider: the provider on which models are tried to find the shapes of their inputs.
        benches: this bench alone.
    """

    def __init__(self, bench: Bench, jobs: int) -> None:
        self.provider = bench.options.provider
        self.benches = [bench]
        self._jobs = jobs

    def measure(self, workloads: Sequence[Workload], budget: Budget) -> None:
        """Measure all pending candidates; several processes get the workloads in turn.

        On an interrupt, all measurements taken so far are kept.

        Args:
            workloads: in the order in which they are measured.
            budget: the seconds to spend, by each process.

        Raises:
            UnverifiedError: the runtime cannot be used.
        """
        (bench,) = self.benches
        if self._jobs == 1:
            bench.measure(workloads, budget)
            return
        pending = bench.pending(workloads, budget.total)
        parts = [pending[start :: self._jobs] for start in range(self._jobs)]
        done = [0] * len(parts)
        messages: queue.SimpleQueue[tuple[int, CandidateResult | Step | Exception | None]] = (
            queue.SimpleQueue()
        )
        stopped = threading.Event()

        def measure_part(number: int) -> None:
            """Report a measurement to the caller's thread: the store belongs to that one."""

            def send(message: CandidateResult | Step) -> None:
                if stopped.is_set():
                    raise _StoppedError
                messages.put((number, message))

            try:
                with progress_to(send):
                    race_in_children(parts[number], bench.options, Budget(budget.total), send)
            except Exception as error:
                messages.put((number, error))
            messages.put((number, None))

        running = set(range(len(parts)))
        try:
            for number in running:
                # A daemon thread does not delay the end of the program; its child ends with us.
                threading.Thread(target=measure_part, args=(number,), daemon=True).start()
            while running:
                number, message = messages.get()
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, CandidateResult):
                    bench.save(message)
                elif isinstance(message, Step):
                    done[number] = message.done
                    text = f"measuring layer {sum(done) + 1} of {len(pending)}"
                    progress(Step(text, sum(done), len(pending), message.seconds_left))
                else:
                    running.remove(number)
        finally:
            stopped.set()
