"""Measure units, in child processes, and keep what was measured.

A form that crashes the child, hangs or eats its memory has lost; the race goes on without it in a
new child. Whatever is known already is not measured again.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Sequence
from dataclasses import replace

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider
from widthfold_onnx.plan.race import NO_TIME, Began, Done, Ran, Setup, race
from widthfold_onnx.plan.store import Key, Measurement, Store
from widthfold_onnx.plan.units import Unit
from widthfold_onnx.progress import Progress, Step
from widthfold_onnx.runtime.worker import isolated

AS_IS = "as-is"
SILENCE = 60.0
"""Seconds that one form may take to load and run before it counts as hung."""

MEMORY_SHARE = 0.5
"""Share of the machine's memory that a child on the CPU may use."""

MORE_TIME = 2.0
"""What was skipped for want of time gets another chance where there is so many times as much."""


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
        self.measured = 0
        self._store = store
        self._setting = setting
        self._machine = machine
        self._budget = 0.0

    def known(self, subject: str, candidate: str) -> Measurement | None:
        """What the store holds."""
        return self._store.get(self._key(subject, candidate))

    def keep(self, subject: str, candidate: str, measurement: Measurement) -> None:
        """Store a measurement."""
        self.measured += 1
        self._store.put(self._key(subject, candidate), measurement)

    def measure(self, units: Sequence[Unit], deadline: float, on_progress: Progress) -> None:
        """Race all forms that are not known yet, until all ran or the deadline is over.

        Args:
            units: in the order in which they are measured.
            deadline: of `time.monotonic`.
            on_progress: gets a step per unit.
        """
        self._budget = deadline - time.monotonic()
        left = {unit.subject: missing for unit in units if (missing := self._missing(unit))}
        total = len(left)
        flight = Began("", "")

        def hear(message: Began | Ran | Done) -> None:
            nonlocal flight
            if isinstance(message, Began):
                flight = message
                spare = deadline - time.monotonic()
                if not message.key and spare < 0:
                    raise _BudgetSpentError
                if not message.key:
                    done = total - len(left)
                    text = f"measuring layer {done + 1} of {total}"
                    on_progress(Step(text, done, total, spare))
            elif isinstance(message, Done):
                del left[message.subject]
            else:
                self._note(message)

        while left and time.monotonic() < deadline:
            try:
                isolated(
                    race,
                    list(left.values()),
                    self.setup,
                    deadline - time.monotonic(),
                    silence=SILENCE,
                    memory=_memory(self.setup.provider),
                    on_progress=hear,
                )
            except _BudgetSpentError:
                return
            except UnverifiedError as error:
                if flight.subject not in left:
                    raise  # no runtime at all
                self._lost(flight, str(error))
                missing = self._missing(left.pop(flight.subject))
                if missing is not None:
                    left = {flight.subject: missing, **left}
                flight = Began("", "")

    def _missing(self, unit: Unit) -> Unit | None:
        """The unit with the forms that are not known yet; None where all are."""
        own = self.known(unit.subject, AS_IS)
        if own is not None and own.status == "lost":
            return None
        forms = tuple(form for form in unit.forms if not self._settled(unit.subject, form.key))
        return replace(unit, forms=forms) if forms or own is None else None

    def _settled(self, subject: str, candidate: str) -> bool:
        found = self.known(subject, candidate)
        if found is None:
            return False
        return found.reason != NO_TIME or self._budget < MORE_TIME * found.seconds

    def _note(self, ran: Ran) -> None:
        self.keep(
            ran.subject,
            ran.key or AS_IS,
            Measurement(
                status="ok" if ran.pairs else "lost",
                ratio=ran.ratio,
                low=ran.low,
                high=ran.high,
                seconds=self._budget if ran.reason == NO_TIME else ran.seconds,
                rounds=ran.pairs,
                reason=ran.reason,
                taken=now(),
            ),
        )

    def _lost(self, flight: Began, reason: str) -> None:
        self.keep(flight.subject, flight.key or AS_IS, lost(reason))

    def _key(self, subject: str, candidate: str) -> Key:
        return Key(
            subject=subject,
            candidate=candidate,
            setting=self._setting,
            machine=self._machine,
        )


def lost(reason: str) -> Measurement:
    """The measurement of what did not run."""
    return Measurement(
        status="lost",
        ratio=0.0,
        low=0.0,
        high=0.0,
        seconds=0.0,
        rounds=0,
        reason=reason,
        taken=now(),
    )


def now() -> str:
    """This moment, as ISO 8601 in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _memory(provider: Provider) -> int | None:
    """Bytes that a child may use; CUDA reserves far more address space than it uses."""
    if provider is not Provider.CPU:
        return None
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_SHARE)
