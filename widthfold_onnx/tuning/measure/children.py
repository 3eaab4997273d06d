"""Race workloads in child processes, one after the other until all are measured.

A form that crashes the child, hangs or exhausts its memory has lost; the race goes on without it in
a new child.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider
from widthfold_onnx.options.progress import Progress, Step
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.measurement import AS_IS, lost
from widthfold_onnx.runtime.sessions.descriptions import description_of
from widthfold_onnx.system import memory_bytes
from widthfold_onnx.tuning.measure.successive_halving import Began, Outcome, Setup, race
from widthfold_onnx.tuning.workload.workloads import Workload


class Budget:
    """Seconds for measuring; they pass only while something runs.

    Args:
        seconds: all of them.

    Attributes:
        total: the seconds at the beginning.
    """

    def __init__(self, seconds: float) -> None:
        self.total = seconds
        self._spent = 0.0
        self._since: float | None = None

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


SILENCE = 60.0
"""Seconds that a form may take to load and run before it counts as hung."""

MEMORY_SHARE = 0.5
"""Share of the machine's memory that a child on the CPU may use."""

Keep = Callable[[Outcome], None]


class _BudgetSpentError(Exception):
    """The time for measuring is over."""


def measure(
    workloads: Sequence[Workload],
    setup: Setup,
    budget: Budget,
    keep: Keep,
    on_progress: Progress,
    *,
    share: float = 1.0,
) -> None:
    """Race all forms of the workloads, until all ran or the budget is spent; the first always runs.

    Args:
        workloads: in the order in which they are measured.
        setup: the settings.
        budget: the seconds to spend; seconds in which a child starts do not count.
        keep: gets every measurement at once.
        on_progress: gets a step per workload.
        share: fraction of the seconds that are left which these workloads should take.

    Raises:
        UnverifiedError: the runtime cannot be used.
    """
    pending = _Pending(workloads, budget, keep, on_progress)
    while pending.workloads:
        try:
            isolated(
                race,
                list(pending.workloads.values()),
                setup,
                budget.left * share,
                silence=SILENCE,
                memory=_memory(setup.how.provider),
                on_progress=pending.hear,
            )
        except _BudgetSpentError:
            return
        except UnverifiedError as error:
            if pending.running is None:
                raise  # nothing ran: the runtime cannot be used
            pending.lose(pending.running, str(error))
        finally:
            budget.stop()


class _Pending:
    """The workloads left to measure, kept up to date by messages of the children.

    Args:
        workloads: to be measured.
        budget: the seconds to spend.
        keep: gets every measurement at once.
        on_progress: gets a step per workload.

    Attributes:
        workloads: by subject, each with the forms that are left.
        running: the form that has begun; None between two layers.
    """

    def __init__(
        self, workloads: Sequence[Workload], budget: Budget, keep: Keep, on_progress: Progress
    ) -> None:
        self.workloads = {workload.subject: workload for workload in workloads}
        self.running: Began | None = None
        self._total = len(self.workloads)
        self._budget = budget
        self._keep = keep
        self._on_progress = on_progress

    def hear(self, message: Began | Outcome) -> None:
        """Handle a message of a child.

        Raises:
            _BudgetSpentError: a workload begins that is not the first, and the budget is spent.
        """
        self._budget.start()
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
        spare = self._budget.left
        done = self._total - len(self.workloads)
        if spare < 0 and done:
            raise _BudgetSpentError
        step = f"measuring layer {done + 1} of {self._total}"
        self._on_progress(Step(step, done, self._total, spare))

    def _settle(self, outcome: Outcome) -> None:
        """Keep a result; a layer is done when every form has a measurement."""
        subject, candidate, measurement = outcome
        measurement = msgspec.structs.replace(measurement, budget=self._budget.total)
        self._keep(Outcome(subject, candidate, measurement))
        workload = self.workloads[subject]
        forms = tuple(form for form in workload.forms if form.spec != candidate)
        self.workloads[subject] = replace(workload, forms=forms)
        if not forms:
            del self.workloads[subject]
            self.running = None


def _memory(provider: Provider) -> int | None:
    """Return the bytes that a child may use; CUDA reserves far more address space than it uses."""
    if description_of(provider).device != "cpu":
        return None
    return int(memory_bytes() * MEMORY_SHARE)
