"""Measure on the workers of a Dask cluster, one workload at a time on each, and store the results.

A worker gets the next workload when it has answered. The workloads are not left to the cluster's
scheduler: it would give several to one worker, and blame the death of the worker on all of them.
Only this module imports Dask.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import (
    Provider,
    RuntimeOptions,
    SearchOptions,
)
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.environment import version
from widthfold_onnx.runtime.library import runtime_version
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.text import printable, quoted
from widthfold_onnx.tuning.bench import Bench, Budget, race_in_children
from widthfold_onnx.tuning.effort import RaceOptions
from widthfold_onnx.tuning.identity import Place, find_place
from widthfold_onnx.tuning.measurement import AS_IS, CandidateResult, Measurement
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.workloads import Workload

MISSING = "Dask cannot be imported: pip install 'widthfold-onnx[dask]'"

DEVICE = "device"
"""Dask resource; calls to a worker that has it request it, and so wait for one another."""

ANSWER_SECONDS = 10.0
"""Seconds to wait for the scheduler, and for the result of a call that is done."""

POLL = 0.5
"""Seconds between two looks at which workers came or went."""

Flight = Any
"""A call that runs on a worker: a future of Dask."""


class Cluster:
    """The workers behind one scheduler; a context manager, which closes the connection at its end.

    Attributes:
        unfit: workers that cannot measure, by address, and why.
    """

    def __init__(self, address: str, options: RuntimeOptions) -> None:
        """Connect to a scheduler.

        Args:
            address: address of the scheduler, such as ``tcp://127.0.0.1:8786``.
            options: the provider AUTO is decided by each worker.

        Raises:
            UsageError: no scheduler answers, or the extra is not installed.
        """
        try:
            import distributed  # noqa: TID251 - only this file imports Dask
        except ImportError as error:
            raise UsageError(MISSING) from error
        self.unfit: dict[str, str] = {}
        self._dask = distributed
        self._options = options
        self._known: dict[str, Place] = {}
        self._devices: set[str] = set()
        try:
            self._client = distributed.Client(address, timeout=ANSWER_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {quoted(address)}: {printable(str(error))}"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._client.close()

    def workers(self) -> dict[str, Place]:
        """Return the workers that can measure, by address; a new worker is asked for its place.

        Raises:
            UsageError: a worker has other versions than this process.
            UnverifiedError: the scheduler is gone.
        """
        with self._reaching():
            alive = self._client.scheduler_info(n_workers=-1).get("workers")
            if alive is None:
                raise OSError("it could not be reached again")
            self._meet([a for a in alive if a not in self._known and a not in self.unfit])
        self._devices = {a for a, about in alive.items() if about["resources"].get(DEVICE)}
        return {a: self._known[a] for a in alive if a in self._known and a not in self.unfit}

    def submit(
        self, address: str, workload: Workload, options: RaceOptions, seconds: float, share: float
    ) -> Flight:
        """Have `race_on_worker` run on one worker and on no other.

        Raises:
            UnverifiedError: the scheduler is gone.
        """
        with self._reaching():
            return self._client.submit(
                race_on_worker,
                workload,
                options,
                seconds,
                share,
                workers=[address],
                resources={DEVICE: 1} if address in self._devices else None,
                pure=False,
            )

    def result(self, flight: Flight) -> list[CandidateResult]:
        """Return the measurements of a call that is done.

        Raises:
            OSError: its worker ended.
            UnverifiedError: its worker cannot measure at all.
        """
        try:
            answers: list[CandidateResult] = flight.result(timeout=ANSWER_SECONDS)
        except (self._dask.KilledWorker, self._dask.CancelledError) as error:
            raise OSError(str(error)) from error
        return answers

    def wait(self, flights: Iterable[Flight]) -> None:
        """Wait until one of the calls is done, or until workers should be listed again."""
        pending = list(flights)
        if not pending:
            time.sleep(POLL)
            return
        try:
            with self._client.as_current():  # `wait` uses the current client only
                self._dask.wait(pending, timeout=POLL, return_when="FIRST_COMPLETED")
        except (TimeoutError, self._dask.CancelledError):
            return  # the caller looks at each call next, and sees which failed

    def cancel(self, flights: Iterable[Flight]) -> None:
        """Give up the results of these calls; a call that already runs is run to its end."""
        with contextlib.suppress(self._dask.client.ClosedClientError):
            self._client.cancel(list(flights))

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (OSError, self._dask.client.ClosedClientError) as error:
            raise UnverifiedError(f"the scheduler is gone: {printable(str(error))}") from error

    def _meet(self, new: Sequence[str]) -> None:
        mine, agreed = versions(), []
        for address, theirs in self._ask(new, versions).items():
            if theirs != mine:
                raise UsageError(f"worker {address} has {_said(theirs)}, here is {_said(mine)}")
            agreed.append(address)
        for address, place in self._ask(agreed, isolated, find_place, self._options).items():
            if isinstance(place, Exception):
                self.unfit[address] = _said(place)
            else:
                self._known[address] = place

    def _ask(self, new: Sequence[str], function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """Return answers or errors by address, without the workers that ended meanwhile."""
        if not new:
            return {}
        answers = self._client.run(function, *args, workers=list(new), on_error="return")
        return {a: answer for a, answer in answers.items() if not isinstance(answer, OSError)}


def _said(answer: object) -> str:
    if isinstance(answer, dict):
        return ", ".join(f"{name} {number or '(none)'}" for name, number in answer.items())
    return printable(str(answer))


_turn = threading.Lock()
"""Held during a measurement, so that a worker takes one at a time."""


def versions() -> dict[str, str]:
    """Return the versions that must agree on both sides, as measurements and pickles need them."""
    return {"widthfold-onnx": version("widthfold-onnx"), "onnxruntime": runtime_version()}


def race_on_worker(
    workload: Workload, options: RaceOptions, seconds: float, share: float
) -> list[CandidateResult]:
    """Race the forms of one workload; a form that crashes ends a child process, not the worker.

    Args:
        workload: the layer, with the forms that are not known.
        options: how forms run.
        seconds: time after which measuring ends, finished or not.
        share: fraction of these seconds that the workload should take.

    Raises:
        UnverifiedError: the runtime cannot be used.
    """
    results: list[CandidateResult] = []
    with _turn:
        race_in_children(
            [workload],
            options,
            Budget(seconds),
            results.append,
            share=share,
        )
    return results


LONELY = 30.0
"""Seconds to wait for a worker when none is left."""

MAX_FAILURES = 3
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

    Attributes:
        provider: the provider on which models are tried to find the shapes of their inputs: this
            machine need not have the device.
        benches: one bench for each kind of machine seen so far.
    """

    provider = Provider.CPU

    def __init__(self, cluster: Cluster, options: SearchOptions, store: Store) -> None:
        self._cluster = cluster
        self._options = options
        self._store = store
        self.benches: list[Bench] = []
        self._queues: dict[Place, _Queue] = {}
        self._tasks: dict[Flight, _Task] = {}

    def measure(self, workloads: Sequence[Workload], budget: Budget) -> None:
        """Measure all pending candidates, on all workers that are connected or connect later.

        If this ends early, measurements that already run are finished and discarded.

        Args:
            workloads: in the order in which they are measured.
            budget: the seconds to spend; starts of processes count, as workers start their own.

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
                progress(Step(text, most - undone, most, spare))
                self._cluster.wait(self._tasks)
        finally:
            self._cluster.cancel(self._tasks)

    def _queue(self, place: Place, workloads: Sequence[Workload], budget: Budget) -> _Queue:
        search_options = replace(self._options, provider=place.provider)
        options = RaceOptions.at(Level.ALL, search_options)
        bench = Bench(options, self._store, place.machine)
        self.benches.append(bench)
        return _Queue(bench, bench.pending(workloads, budget.total))

    def _send(self, workers: Mapping[str, Place], budget: Budget) -> None:
        """Give every idle worker the next workload of its kind of machine."""
        busy = {task.address for task in self._tasks.values()}
        for address, place in workers.items():
            queue = self._queues[place]
            if address in busy or address in self._cluster.unfit or not queue.waiting:
                continue
            measuring = sum(other_place == place for other_place in workers.values())
            share = min(measuring / len(queue.waiting), 1.0)
            workload = queue.waiting.pop(0)
            options = queue.bench.options
            flight = self._cluster.submit(address, workload, options, budget.left, share)
            self._tasks[flight] = _Task(workload, queue, address)

    def _complaint(self) -> str:
        reasons = "; ".join(sorted(set(self._cluster.unfit.values())))
        return f"no worker of the cluster is left that can measure{reasons and f': {reasons}'}"

    def _land(self, workers: Mapping[str, Place]) -> None:
        """Store the results that arrived, and put back the workloads of workers that failed."""
        for flight, task in list(self._tasks.items()):
            try:
                if flight.done():
                    for result in self._cluster.result(flight):
                        task.queue.bench.save(result)
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
    if queue.failures[workload.subject] < MAX_FAILURES:
        queue.waiting.insert(0, workload)
    else:
        text = f"{MAX_FAILURES} workers failed at it; the last: {reason}"
        queue.bench.save(CandidateResult(workload.subject, AS_IS, Measurement.lost(text)))
