"""Measure on this machine, in several child processes at a time.

These are no workers of Dask, although a cluster could run here: its processes print tracebacks on
Ctrl-C, import the script of the caller, and answer when a whole layer is done: an interrupt after
8 seconds kept none of the 550 measurements that these processes had given.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from widthfold_onnx.plan.measure.bench import Bench, measure
from widthfold_onnx.plan.workload.workloads import Workload
from widthfold_onnx.progress import Progress, Step


class _StoppedError(Exception):
    """Measuring was stopped, so the rest is not needed."""


def measure_with(
    jobs: int, bench: Bench, workloads: Sequence[Workload], deadline: float, on_progress: Progress
) -> None:
    """Do as `Bench.measure` does, with the workloads dealt out in turn.

    Args:
        jobs: how many processes measure at a time.
        bench: keeps the measurements; on an interrupt, all taken so far are kept.
        workloads: in the order in which they are measured.
        deadline: when to stop, on the clock `time.monotonic`.
        on_progress: gets a step per workload.

    Raises:
        UnverifiedError: the runtime cannot be used.
    """
    missing = bench.missing(workloads, deadline - time.monotonic())
    measuring = [hand for start in range(jobs) if (hand := missing[start::jobs])]
    done = [0] * len(measuring)
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    stopped = threading.Event()

    def here(call: Callable[..., None]) -> Callable[..., None]:
        """Have this thread make the calls: the store belongs to it."""

        def later(*args: object) -> None:
            if stopped.is_set():
                raise _StoppedError
            calls.put(partial(call, *args))

        return later

    def say(number: int, step: Step) -> None:
        done[number] = step.done
        text = f"measuring layer {sum(done) + 1} of {len(missing)}"
        on_progress(Step(text, sum(done), len(missing), step.seconds_left))

    def play(number: int) -> None:
        try:
            tell = here(partial(say, number))
            measure(measuring[number], bench.setup, deadline, here(bench.keep), tell)
        except Exception as error:
            calls.put(partial(_fail, error))
        calls.put(partial(playing.remove, number))

    playing = set(range(len(measuring)))
    try:
        for number in range(len(measuring)):
            # A daemon thread does not delay the end of the program; its child ends with us.
            threading.Thread(target=play, args=(number,), daemon=True).start()
        while playing:
            calls.get()()
    finally:
        stopped.set()


def _fail(error: Exception) -> NoReturn:
    raise error
