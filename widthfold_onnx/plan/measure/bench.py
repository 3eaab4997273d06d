"""Measure workloads in child processes, and keep the results.

A form that crashes the child, hangs or exhausts its memory has lost; the race goes on without it in
a new child. Forms that the store knows are not measured again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider
from widthfold_onnx.plan.measure.measurements import Outcome, is_known, outdated
from widthfold_onnx.plan.measure.successive_halving import Began, Setup, race
from widthfold_onnx.plan.store.identity import setting_identity
from widthfold_onnx.plan.store.store import Store
from widthfold_onnx.plan.workload.workloads import Workload
from widthfold_onnx.progress import Progress, Step
from widthfold_onnx.results import Key, Measurement
from widthfold_onnx.results.store import AS_IS, NO_TIME, lost
from widthfold_onnx.rules.forms.open_extents import EXTENTS
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.sessions.descriptions import described

SILENCE = 60.0
"""Seconds that a form may take to load and run before it counts as hung."""

MEMORY_SHARE = 0.5
"""Share of the machine's memory that a child on the CPU may use."""

Keep = Callable[[Outcome], None]


class _BudgetSpentError(Exception):
    """The time for measuring is over."""


class Bench:
    """Measures for one setting on one machine.

    Args:
        setup: how forms run; its provider is not AUTO.
        store: where measurements are kept.
        machine: `identity.machine_identity`.

    Raises:
        InternalError: the provider is AUTO.
    """

    def __init__(self, setup: Setup, store: Store, machine: str) -> None:
        self.setup = setup
        self.machine = machine
        self.kept: set[tuple[str, str]] = set()
        self._store = store
        self._setting = setting_identity(setup.how, setup.level)

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

    def keep(self, outcome: Outcome) -> None:
        """Store a measurement."""
        subject, candidate, measurement = outcome
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
        pairs = self.setup.spending.rungs[0].pairs
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
    left = _Left(workloads, deadline, keep, on_progress)
    while left.workloads and time.monotonic() < deadline:
        try:
            isolated(
                race,
                list(left.workloads.values()),
                setup,
                (deadline - time.monotonic()) * share,
                silence=SILENCE,
                memory=_memory(setup.how.provider),
                on_progress=left.hear,
            )
        except _BudgetSpentError:
            return
        except UnverifiedError as error:
            if left.running is None:
                raise  # nothing ran: the runtime cannot be used
            left.lose(left.running, str(error))


class _Left:
    """The workloads left to measure, kept up to date by messages of the children.

    Args:
        workloads: to be measured.
        deadline: when to stop, on the clock `time.monotonic`.
        keep: gets every measurement at once.
        on_progress: gets a step per workload.

    Attributes:
        workloads: by subject, each with the forms that are left.
        running: the form that has begun; None between two layers.
    """

    def __init__(
        self, workloads: Sequence[Workload], deadline: float, keep: Keep, on_progress: Progress
    ) -> None:
        self.workloads = {workload.subject: workload for workload in workloads}
        self.running: Began | None = None
        self._total = len(self.workloads)
        self._deadline = deadline
        self._budget = deadline - time.monotonic()
        self._keep = keep
        self._on_progress = on_progress

    def hear(self, message: Began | Outcome) -> None:
        """Handle a message of a child.

        Raises:
            _BudgetSpentError: a workload begins after the deadline.
        """
        if isinstance(message, Outcome):
            self._settle(message)
            return
        if message.candidate == AS_IS:
            self._begin_layer()
        self.running = message

    def lose(self, form: Began, reason: str) -> None:
        """Mark the form that was running as lost; without the layer as it is, none can race."""
        self._settle(Outcome(form.subject, form.candidate, lost(reason)))
        if form.candidate == AS_IS:
            self.workloads.pop(form.subject, None)
        self.running = None

    def _begin_layer(self) -> None:
        spare = self._deadline - time.monotonic()
        if spare < 0:
            raise _BudgetSpentError
        done = self._total - len(self.workloads)
        step = f"measuring layer {done + 1} of {self._total}"
        self._on_progress(Step(step, done, self._total, spare))

    def _settle(self, outcome: Outcome) -> None:
        """Keep a result; a layer of which every form has one is done."""
        subject, candidate, found = outcome
        if found.reason == NO_TIME:  # so that it counts only where there is no more time
            found = msgspec.structs.replace(found, seconds=self._budget)
        self._keep(Outcome(subject, candidate, found))
        workload = self.workloads[subject]
        forms = tuple(form for form in workload.forms if form.key != candidate)
        self.workloads[subject] = replace(workload, forms=forms)
        if not forms:
            del self.workloads[subject]
            self.running = None


def _memory(provider: Provider) -> int | None:
    """Return the bytes that a child may use; CUDA reserves far more address space than it uses."""
    if described(provider).device != "cpu":
        return None
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_SHARE)
