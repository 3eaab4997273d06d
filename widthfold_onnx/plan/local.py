"""Measure on this machine, in one or several child processes at a time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from widthfold_onnx.errors import UsageError
from widthfold_onnx.evidence.timing.environment import cores
from widthfold_onnx.options import FoldOptions, SearchOptions
from widthfold_onnx.plan.identity import find_place
from widthfold_onnx.plan.measure import AS_IS, Bench, measure
from widthfold_onnx.plan.store import Measurement, Store
from widthfold_onnx.plan.units import Unit
from widthfold_onnx.progress import Progress, Step
from widthfold_onnx.runtime.worker import isolated


class _StoppedError(Exception):
    """Measuring was stopped, so the rest is not needed."""


class Local:
    """The bench of this machine.

    Attributes:
        reads: the provider on which models are tried to find the shapes of their inputs.
        benches: a list of one bench.
    """

    def __init__(
        self, options: SearchOptions, fold: FoldOptions, store: Store, jobs: int = 1
    ) -> None:
        """Identify this machine.

        Args:
            options: where to measure.
            fold: limits of forms.
            store: where measurements are kept.
            jobs: how many processes measure at a time.

        Raises:
            UnverifiedError: the provider cannot be used.
            UsageError: more jobs than this machine has cores for, or options that do not fit.
        """
        most = max(cores() // options.threads, 1)
        if not 1 <= jobs <= most:
            raise UsageError(
                f"{jobs} jobs of {options.threads} thread(s) on {cores()} core(s) would wait for "
                f"each other: at most {most}, at least 1"
            )
        given = dict(options.provider_options), dict(options.session_options)
        place = isolated(find_place, options.provider, *given)
        self.reads = place.provider
        chosen = replace(options, provider=place.provider)
        self.benches = [Bench.of(chosen, fold, store, place.machine)]
        self._jobs = jobs

    def measure(self, units: Sequence[Unit], deadline: float, on_progress: Progress) -> None:
        """Measure what is not known; on an interrupt, all measurements taken so far are kept.

        Args:
            units: in the order in which they are measured, dealt out to the jobs in turn.
            deadline: when to stop, on the clock `time.monotonic`.
            on_progress: gets a line of text per unit.

        Raises:
            UnverifiedError: the runtime cannot be used.
        """
        (bench,) = self.benches
        missing = bench.missing(units, deadline - time.monotonic())
        hands = [hand for start in range(self._jobs) if (hand := missing[start :: self._jobs])]
        heard: queue.SimpleQueue[tuple[str, str, Measurement] | Exception | None]
        heard = queue.SimpleQueue()
        stopped = threading.Event()

        def tell(subject: str, candidate: str, measurement: Measurement) -> None:
            heard.put((subject, candidate, measurement))
            stop()

        def stop(step: Step | None = None) -> None:
            if stopped.is_set():
                raise _StoppedError

        def play(hand: list[Unit]) -> None:
            try:
                measure(hand, bench.setup, deadline, tell, stop)
            except Exception as error:
                heard.put(error)
            else:
                heard.put(None)

        playing, begun = len(hands), set()
        try:
            for hand in hands:
                # A daemon thread does not delay the end of the program; its child ends with us.
                threading.Thread(target=play, args=(hand,), daemon=True).start()
            while playing:
                message = heard.get()
                if isinstance(message, Exception):
                    raise message
                if message is None:
                    playing -= 1
                    continue
                bench.keep(*message)
                if message[1] == AS_IS and message[0] not in begun:
                    begun.add(message[0])
                    spare = deadline - time.monotonic()
                    text = f"measuring layer {len(begun)} of {len(missing)}"
                    on_progress(Step(text, len(begun) - 1, len(missing), spare))
        finally:
            stopped.set()
