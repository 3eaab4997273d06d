"""Measure on the workers of a cluster, one workload at a time on each, and store the results.

A worker gets the next workload when it has answered. The workloads are not left to the cluster's
scheduler: it would give several to one worker, and blame the death of the worker on all of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import FoldOptions, Provider, SearchOptions
from widthfold_onnx.options.progress import Progress, Step
from widthfold_onnx.runtime.measurement import AS_IS, lost
from widthfold_onnx.text import printable
from widthfold_onnx.tuning.identity import Place
from widthfold_onnx.tuning.measure.bench import Bench
from widthfold_onnx.tuning.measure.children import Budget
from widthfold_onnx.tuning.measure.cluster import Cluster, Flight
from widthfold_onnx.tuning.measure.successive_halving import Outcome, Setup
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.workload.workloads import Workload

LONELY = 30.0
"""Seconds to wait for a worker when none is left."""

MOST_FAILURES = 3
"""Number of workers that may fail at a workload before it is given up."""


@dataclass
class _Queue:
    """The workloads left for one kind of machine, shared by all of its workers."""

    bench: Bench
    waiting: list[Workload]
    failures: Counter[str] = field(default_factory=Counter)


class _Task(NamedTuple):
    workload: Workload
    queue: _Queue
    address: str


class ClusterPool:
    """The workers of a cluster; every kind of machine measures all workloads for itself.

    Args:
        cluster: the connection to them.
        options: where to measure.
        fold: limits of forms.
        store: where measurements are kept.

    Attributes:
        provider: the provider on which models are tried to find the shapes of their inputs: this
            machine need not have the device.
        benches: one bench for each kind of machine seen so far.
    """

    provider = Provider.CPU

    def __init__(
        self, cluster: Cluster, options: SearchOptions, fold: FoldOptions, store: Store
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._fold = fold
        self._store = store
        self.benches: list[Bench] = []
        self._queues: dict[Place, _Queue] = {}
        self._tasks: dict[Flight, _Task] = {}

    def measure(self, workloads: Sequence[Workload], budget: Budget, on_progress: Progress) -> None:
        """Measure all pending candidates, on all workers that are connected or connect later.

        If this ends early, measurements that already run are finished and discarded.

        Args:
            workloads: in the order in which they are measured.
            budget: the seconds to spend; starts of processes count, as workers start their own.
            on_progress: gets a line of text now and then.

        Raises:
            UsageError: a worker has other versions than this process.
            UnverifiedError: no worker is left, or the scheduler is gone.
        """
        active = time.monotonic()
        most = 0
        budget.start()
        try:
            while budget.left > 0:
                workers = self._cluster.workers()
                self._land(workers)
                for place in workers.values():
                    if place not in self._queues:
                        self._queues[place] = self._queue(place, workloads, budget)
                self._send(workers, budget)
                waiting = sum(len(queue.waiting) for queue in self._queues.values())
                if self._tasks:
                    active = time.monotonic()
                elif self._queues and not waiting:
                    return
                elif time.monotonic() - active > LONELY:
                    raise UnverifiedError(self._complaint())
                spare, undone = budget.left, waiting + len(self._tasks)
                most = max(most, undone)
                text = f"measuring {len(self._tasks)} layers, {waiting} wait"
                on_progress(Step(text, most - undone, most, spare))
                self._cluster.wait(self._tasks)
        finally:
            self._cluster.cancel(self._tasks)

    def _queue(self, place: Place, workloads: Sequence[Workload], budget: Budget) -> _Queue:
        options = replace(self._options, provider=place.provider)
        bench = Bench(Setup(options, self._fold), self._store, place.machine)
        self.benches.append(bench)
        return _Queue(bench, bench.missing(workloads, budget.total))

    def _send(self, workers: Mapping[str, Place], budget: Budget) -> None:
        """Give every idle worker the next workload of its kind of machine."""
        busy = {task.address for task in self._tasks.values()}
        for address, place in workers.items():
            queue = self._queues[place]
            if address in busy or address in self._cluster.unfit or not queue.waiting:
                continue
            measuring = sum(other == place for other in workers.values())
            share = min(measuring / len(queue.waiting), 1.0)
            workload = queue.waiting.pop(0)
            setup = queue.bench.setup
            flight = self._cluster.submit(address, workload, setup, budget.left, share)
            self._tasks[flight] = _Task(workload, queue, address)

    def _complaint(self) -> str:
        why = "; ".join(sorted(set(self._cluster.unfit.values())))
        return f"no worker of the cluster is left that can measure{why and f': {why}'}"

    def _land(self, workers: Mapping[str, Place]) -> None:
        """Store the results that arrived, and put back the workloads of workers that failed."""
        for flight, task in list(self._tasks.items()):
            try:
                if flight.done():
                    for outcome in self._cluster.result(flight):
                        task.queue.bench.keep(outcome)
                elif task.address in workers:
                    continue
                else:
                    self._cluster.cancel([flight])
                    _failed(task, "the worker ended")
            except UnverifiedError as error:
                self._cluster.unfit[task.address] = str(error)
                _failed(task, str(error))
            except OSError as error:
                _failed(task, printable(str(error)))
            del self._tasks[flight]


def _failed(task: _Task, reason: str) -> None:
    """Put a workload back for another worker, or give it up after too many failures."""
    workload, queue, _ = task
    queue.failures[workload.subject] += 1
    if queue.failures[workload.subject] < MOST_FAILURES:
        queue.waiting.insert(0, workload)
    else:
        why = f"{MOST_FAILURES} workers failed at it; the last: {reason}"
        queue.bench.keep(Outcome(workload.subject, AS_IS, lost(why)))
