"""Measure on this machine, in several child processes at a time.

These are no workers of Dask, although a cluster could run here: its processes print tracebacks on
Ctrl-C, import the script of the caller, and answer when a whole layer is done: an interrupt after
8 seconds kept none of the 550 measurements that these processes had given.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from widthfold_onnx.progress import Progress, Step
from widthfold_onnx.tuning.measure.bench import Bench
from widthfold_onnx.tuning.measure.budget import Budget
from widthfold_onnx.tuning.measure.children import measure
from widthfold_onnx.tuning.measure.measurements import Outcome
from widthfold_onnx.tuning.workload.workloads import Workload


class _StoppedError(Exception):
    """Measuring was stopped, so the rest is not needed."""


class LocalPool:
    """The processes of this machine that measure at a time.

    Args:
        bench: keeps the measurements.
        jobs: how many processes there are.

    Attributes:
        reads: the provider on which models are tried to find the shapes of their inputs.
        benches: the one bench.
    """

    def __init__(self, bench: Bench, jobs: int) -> None:
        self.reads = bench.setup.how.provider
        self.benches = [bench]
        self._jobs = jobs

    def measure(self, workloads: Sequence[Workload], budget: Budget, on_progress: Progress) -> None:
        """Measure what is not known; several processes get the workloads in turn.

        On an interrupt, all measurements taken so far are kept.

        Args:
            workloads: in the order in which they are measured.
            budget: the seconds to spend, by each process.
            on_progress: gets a step per workload.

        Raises:
            UnverifiedError: the runtime cannot be used.
        """
        (bench,) = self.benches
        if self._jobs == 1:
            bench.measure(workloads, budget, on_progress)
            return
        missing = bench.missing(workloads, budget.total)
        parts = [missing[start :: self._jobs] for start in range(self._jobs)]
        done = [0] * len(parts)
        told: queue.SimpleQueue[tuple[int, Outcome | Step | Exception | None]] = queue.SimpleQueue()
        stopped = threading.Event()

        def play(number: int) -> None:
            """Tell the caller's thread what is measured: the store belongs to that one."""

            def tell(what: Outcome | Step) -> None:
                if stopped.is_set():
                    raise _StoppedError
                told.put((number, what))

            try:
                measure(parts[number], bench.setup, Budget(budget.total), tell, tell)
            except Exception as error:
                told.put((number, error))
            told.put((number, None))

        playing = set(range(len(parts)))
        try:
            for number in playing:
                # A daemon thread does not delay the end of the program; its child ends with us.
                threading.Thread(target=play, args=(number,), daemon=True).start()
            while playing:
                number, what = told.get()
                if isinstance(what, Exception):
                    raise what
                if isinstance(what, Outcome):
                    bench.keep(what)
                elif isinstance(what, Step):
                    done[number] = what.done
                    text = f"measuring layer {sum(done) + 1} of {len(missing)}"
                    on_progress(Step(text, sum(done), len(missing), what.seconds_left))
                else:
                    playing.remove(number)
        finally:
            stopped.set()
