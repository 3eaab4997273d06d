"""Race workloads in child processes, one after the other until all are measured.

A form that crashes the child, hangs or exhausts its memory has lost; the race goes on without it in
a new child.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options.progress import Progress, Step
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.measurement import AS_IS, lost
from widthfold_onnx.runtime.sessions.descriptions import description_of
from widthfold_onnx.system import memory_bytes
from widthfold_onnx.tuning.measure.successive_halving import Outcome, Setup, Start, race
from widthfold_onnx.tuning.workload.workloads import Workload


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
    by_subject = {workload.subject: workload for workload in workloads}
    pending = _Pending(by_subject, len(by_subject), budget, keep, on_progress)
    on_cpu = description_of(setup.options.provider).device == "cpu"
    while pending.workloads:
        try:
            isolated(
                race,
                list(pending.workloads.values()),
                setup,
                budget.left * share,
                silence=SILENCE,
                # CUDA reserves far more address space than it uses.
                memory=int(memory_bytes() * MEMORY_SHARE) if on_cpu else None,
                on_message=pending.hear,
            )
        except _BudgetSpentError:
            return
        except UnverifiedError as error:
            if pending.running is None:
                raise  # nothing ran: the runtime cannot be used
            pending.lose(pending.running, str(error))
        finally:
            budget.stop()


@dataclass
class _Pending:
    """The workloads left to measure, kept up to date by messages of the children.

    Attributes:
        workloads: by subject, each with the forms that are left.
        total: number of workloads at the beginning.
        budget: the seconds to spend.
        keep: gets every measurement at once.
        on_progress: gets a step per workload.
        running: the form that has begun; None between two layers.
    """

    workloads: dict[str, Workload]
    total: int
    budget: Budget
    keep: Keep
    on_progress: Progress
    running: Start | None = None

    def hear(self, message: Start | Outcome) -> None:
        """Handle a message of a child.

        Raises:
            _BudgetSpentError: a workload begins that is not the first, and the budget is spent.
        """
        self.budget.start()
        if isinstance(message, Outcome):
            self._settle(message)
            return
        if message.candidate == AS_IS:
            self._begin_layer()
        self.running = message

    def lose(self, form: Start, reason: str) -> None:
        """Mark the form that was running as lost; without the layer as it is, none can race."""
        self._settle(Outcome(form.subject, form.candidate, lost(reason)))
        if form.candidate == AS_IS:
            self.workloads.pop(form.subject, None)
        self.running = None

    def _begin_layer(self) -> None:
        spare = self.budget.left
        done = self.total - len(self.workloads)
        if spare < 0 and done:
            raise _BudgetSpentError
        step = f"measuring layer {done + 1} of {self.total}"
        self.on_progress(Step(step, done, self.total, spare))

    def _settle(self, outcome: Outcome) -> None:
        """Keep a result; a layer is done when every form has a measurement."""
        subject, candidate, measurement = outcome
        measurement = msgspec.structs.replace(measurement, budget=self.budget.total)
        self.keep(Outcome(subject, candidate, measurement))
        workload = self.workloads[subject]
        forms = tuple(form for form in workload.forms if form.spec != candidate)
        self.workloads[subject] = replace(workload, forms=forms)
        if not forms:
            del self.workloads[subject]
            self.running = None
