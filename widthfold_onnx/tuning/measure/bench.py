"""Measure workloads, and keep the results. What the store knows is not measured again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from widthfold_onnx.progress import Progress
from widthfold_onnx.results import Key, Measurement
from widthfold_onnx.results.store import AS_IS
from widthfold_onnx.tuning.measure.budget import Budget
from widthfold_onnx.tuning.measure.children import measure
from widthfold_onnx.tuning.measure.measurements import Candidate, Outcome, is_known, outdated
from widthfold_onnx.tuning.measure.successive_halving import Setup
from widthfold_onnx.tuning.store.identity import setting_identity
from widthfold_onnx.tuning.store.store import Store
from widthfold_onnx.tuning.workload.workloads import Workload


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
        self.kept: set[tuple[str, Candidate]] = set()
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

    def known(self, subject: str, candidate: Candidate) -> Measurement | None:
        """Return the measurement that the store holds, if any."""
        return self._store.get(self._key(subject, candidate))

    def keep(self, outcome: Outcome) -> None:
        """Store a measurement."""
        subject, candidate, measurement = outcome
        self.kept.add((subject, candidate))
        self._store.put(self._key(subject, candidate), measurement)

    def measure(self, workloads: Sequence[Workload], budget: Budget, on_progress: Progress) -> None:
        """Race all forms that are not known yet, until all ran or the budget is spent.

        Args:
            workloads: in the order in which they are measured.
            budget: the seconds to spend.
            on_progress: gets a step per workload.
        """
        missing = self.missing(workloads, budget.total)
        measure(missing, self.setup, budget, self.keep, on_progress)

    def missing(self, workloads: Sequence[Workload], seconds: float = 0.0) -> list[Workload]:
        """Return the workloads that are not known completely, each with its unknown forms.

        Args:
            workloads: to choose from.
            seconds: time to measure them in; if it is much more than an earlier run had, forms
                that were skipped or stayed undecided then are missing as well.
        """
        return [
            left for workload in workloads if (left := self._missing(workload, seconds)) is not None
        ]

    def _missing(self, workload: Workload, seconds: float) -> Workload | None:
        own = self.known(workload.subject, AS_IS)
        if own is not None and own.status == "lost":
            return workload if outdated(own) and seconds > 0 else None
        pairs = self.setup.spending.rungs[0].pairs
        known = {form: self.known(workload.subject, form.spec) for form in workload.forms}
        forms = tuple(form for form, found in known.items() if not is_known(found, seconds, pairs))
        return replace(workload, forms=forms) if forms or own is None else None

    def _key(self, subject: str, candidate: Candidate) -> Key:
        text = candidate if isinstance(candidate, str) else candidate.text
        return Key(
            subject=subject,
            candidate=text,
            setting=self._setting,
            machine=self.machine,
        )
