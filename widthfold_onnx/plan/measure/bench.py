"""Measure workloads in child processes, and keep the results.

A form that crashes the child, hangs or exhausts its memory has lost; the race goes on without it in
a new child. Forms that the store knows are not measured again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

import msgspec

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import FoldOptions, Provider, SearchOptions
from widthfold_onnx.plan.measure.effort import SPENDING
from widthfold_onnx.plan.measure.measurements import is_known, outdated
from widthfold_onnx.plan.measure.successive_halving import Began, Done, Ran, Setup, race
from widthfold_onnx.plan.store.identity import setting_identity
from widthfold_onnx.plan.store.store import Store
from widthfold_onnx.plan.workload.workloads import Workload
from widthfold_onnx.progress import Progress, Step
from widthfold_onnx.results import Key, Measurement
from widthfold_onnx.results.store import NO_TIME, lost
from widthfold_onnx.rules.forms.open_extents import EXTENTS
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.sessions.descriptions import described
from widthfold_onnx.runtime.sessions.session import Level

AS_IS = "as-is"
SILENCE = 60.0
"""Seconds that a form may take to load and run before it counts as hung."""

MEMORY_SHARE = 0.5
"""Share of the machine's memory that a child on the CPU may use."""

Keep = Callable[[str, str, Measurement], None]
"""Receives subject, candidate and measurement."""


class _BudgetSpentError(Exception):
    """The time for measuring is over."""


class Bench:
    """Measures for one setting on one machine.

    Args:
        setup: provider, threads and limits of forms.
        store: where measurements are kept.
        setting: `identity.setting_identity`.
        machine: `identity.machine_identity`.
    """

    def __init__(self, setup: Setup, store: Store, setting: str, machine: str) -> None:
        self.setup = setup
        self.machine = machine
        self.kept: set[tuple[str, str]] = set()
        self._store = store
        self._setting = setting

    @classmethod
    def of(
        cls,
        options: SearchOptions,
        fold: FoldOptions,
        store: Store,
        machine: str,
        level: Level = Level.ALL,
    ) -> Self:
        """Return a bench for a chosen provider.

        Args:
            options: provider, which must not be AUTO, with its options and those of sessions,
                threads, and effort.
            fold: limits of forms.
            store: where measurements are kept.
            machine: `identity.machine_identity`.
            level: at which layers run.

        Raises:
            InternalError: the provider is AUTO.
        """
        setup = Setup(options, fold, level, SPENDING[options.effort].rungs)
        return cls(setup, store, setting_identity(options, level), machine)

    @property
    def measured(self) -> int:
        """Number of measurements that were kept."""
        return len(self.kept)

    @property
    def read_only(self) -> bool:
        """True if the store may only be read, so that measurements are lost."""
        return self._store.read_only

    def known(self, subject: str, candidate: str) -> Measurement | None:
        """Return the measurement that the store holds, if any."""
        return self._store.get(self._key(subject, candidate))

    def keep(self, subject: str, candidate: str, measurement: Measurement) -> None:
        """Store a measurement."""
        self.kept.add((subject, candidate))
        self._store.put(self._key(subject, candidate), measurement)

    def measure(
        self, workloads: Sequence[Workload], deadline: float, on_progress: Progress
    ) -> None:
        """Race all forms that are not known yet, until all ran or the deadline has passed.

        Args:
            workloads: in the order in which they are measured.
            deadline: when to stop, on the clock `time.monotonic`.
            on_progress: gets a step per workload.
        """
        missing = self.missing(workloads, deadline - time.monotonic())
        measure(missing, self.setup, deadline, self.keep, on_progress)

    def missing(self, workloads: Sequence[Workload], seconds: float = 0.0) -> list[Workload]:
        """Return the workloads that are not known completely, each with its unknown forms.

        Args:
            workloads: to choose from.
            seconds: time to measure them in; if it is much more than an earlier run had, forms
                that were skipped then are missing as well.
        """
        return [
            left for workload in workloads if (left := self._missing(workload, seconds)) is not None
        ]

    def _missing(self, workload: Workload, seconds: float) -> Workload | None:
        own = self.known(workload.subject, AS_IS)
        if own is not None and own.status == "lost":
            return workload if outdated(own) and seconds > 0 else None
        pairs = self.setup.rungs[0].pairs
        known = {form: self.known(workload.subject, form.key) for form in workload.forms}
        forms = tuple(form for form, found in known.items() if not is_known(found, seconds, pairs))
        return replace(workload, forms=forms) if forms or own is None else None

    def _key(self, subject: str, candidate: str) -> Key:
        if self.setup.fold.guard_shapes and candidate != AS_IS:
            candidate = f"{candidate} guarded: {EXTENTS}"  # a guard costs time
        return Key(
            subject=subject,
            candidate=candidate,
            setting=self._setting,
            machine=self.machine,
        )


def measure(
    workloads: Sequence[Workload],
    setup: Setup,
    deadline: float,
    keep: Keep,
    on_progress: Progress,
    *,
    share: float = 1.0,
) -> None:
    """Race all forms of the workloads, until all ran or the deadline has passed.

    Args:
        workloads: in the order in which they are measured.
        setup: the settings.
        deadline: when to stop, on the clock `time.monotonic`.
        keep: gets every measurement at once.
        on_progress: gets a step per workload.
        share: fraction of the time until the deadline that these workloads should take.

    Raises:
        UnverifiedError: the runtime cannot be used.
    """
    course = _Progress(workloads, deadline, keep, on_progress)
    while course.left and time.monotonic() < deadline:
        try:
            isolated(
                race,
                list(course.left.values()),
                setup,
                (deadline - time.monotonic()) * share,
                silence=SILENCE,
                memory=_memory(setup.how.provider),
                on_progress=course.hear,
            )
        except _BudgetSpentError:
            return
        except UnverifiedError as error:
            if not course.is_running:
                raise  # nothing ran: the runtime cannot be used
            course.lose(str(error))


class _Progress:
    """The workloads left to measure, kept up to date by messages of the children.

    Args:
        workloads: to be measured.
        deadline: when to stop, on the clock `time.monotonic`.
        keep: gets every measurement at once.
        on_progress: gets a step per workload.
    """

    def __init__(
        self, workloads: Sequence[Workload], deadline: float, keep: Keep, on_progress: Progress
    ) -> None:
        self.left = {workload.subject: workload for workload in workloads}
        self._total = len(self.left)
        self._deadline = deadline
        self._budget = deadline - time.monotonic()
        self._keep = keep
        self._on_progress = on_progress
        self._told: set[tuple[str, str]] = set()
        self._running = Began("", "")

    @property
    def is_running(self) -> bool:
        """True if a form has begun and its workload is not done."""
        return self._running.subject in self.left

    def hear(self, message: Began | Ran | Done) -> None:
        """Handle a message of a child.

        Raises:
            _BudgetSpentError: a workload begins after the deadline.
        """
        if isinstance(message, Began):
            self._running = message
            if not message.key:
                self._begin()
        elif isinstance(message, Done):
            del self.left[message.subject]
        else:
            found = message.found
            if found.reason == NO_TIME:  # so that it counts only where there is no more time
                found = msgspec.structs.replace(found, seconds=self._budget)
            self._tell(message.subject, message.key, found)

    def lose(self, reason: str) -> None:
        """Mark the running form as lost; if it is the layer as it is, drop the workload's forms."""
        subject, key = self._running.subject, self._running.key
        self._tell(subject, key, lost(reason))
        workload = self.left.pop(subject)
        forms = tuple(form for form in workload.forms if (subject, form.key) not in self._told)
        if key and forms:
            self.left = {subject: replace(workload, forms=forms), **self.left}
        self._running = Began("", "")

    def _begin(self) -> None:
        spare = self._deadline - time.monotonic()
        if spare < 0:
            raise _BudgetSpentError
        done = self._total - len(self.left)
        step = f"measuring layer {done + 1} of {self._total}"
        self._on_progress(Step(step, done, self._total, spare))

    def _tell(self, subject: str, key: str, measurement: Measurement) -> None:
        self._told.add((subject, key))
        self._keep(subject, key or AS_IS, measurement)


def _memory(provider: Provider) -> int | None:
    """Return the bytes that a child may use; CUDA reserves far more address space than it uses."""
    if described(provider).device != "cpu":
        return None
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_SHARE)
