"""Connect to Dask: list the workers, and measure a workload on one of them.

Only this module imports Dask.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import RuntimeOptions
from widthfold_onnx.options.progress import silent
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.environment import version
from widthfold_onnx.runtime.sessions.session import runtime_version
from widthfold_onnx.text import printable, quoted
from widthfold_onnx.tuning.identity import Place, find_place
from widthfold_onnx.tuning.measure.children import Budget, measure
from widthfold_onnx.tuning.measure.successive_halving import Outcome, Setup
from widthfold_onnx.tuning.workload.workloads import Workload

MISSING = "Dask cannot be imported: pip install 'widthfold-onnx[dask]'"

DEVICE = "device"
"""Dask resource; calls to a worker that has it request it, and so wait for one another."""

PATIENCE = 10.0
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

    def __init__(self, address: str, how: RuntimeOptions) -> None:
        """Connect to a scheduler.

        Args:
            address: address of the scheduler, such as ``tcp://127.0.0.1:8786``.
            how: the provider AUTO is decided by each worker.

        Raises:
            UsageError: no scheduler answers, or the extra is not installed.
        """
        try:
            import distributed  # noqa: TID251 - only this file imports Dask
        except ImportError as error:
            raise UsageError(MISSING) from error
        self.unfit: dict[str, str] = {}
        self._dask = distributed
        self._how = how
        self._known: dict[str, Place] = {}
        self._devices: set[str] = set()
        try:
            self._client = distributed.Client(address, timeout=PATIENCE, set_as_default=False)
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
        self, address: str, workload: Workload, setup: Setup, seconds: float, share: float
    ) -> Flight:
        """Have `measured` run on one worker and on no other.

        Raises:
            UnverifiedError: the scheduler is gone.
        """
        with self._reaching():
            return self._client.submit(
                measured,
                workload,
                setup,
                seconds,
                share,
                workers=[address],
                resources={DEVICE: 1} if address in self._devices else None,
                pure=False,
            )

    def result(self, flight: Flight) -> list[Outcome]:
        """Return the measurements of a call that is done.

        Raises:
            OSError: its worker ended.
            UnverifiedError: its worker cannot measure at all.
        """
        try:
            answers: list[Outcome] = flight.result(timeout=PATIENCE)
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
        for address, place in self._ask(agreed, isolated, find_place, self._how).items():
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
    """Return the versions that must agree on both sides, as measurements and pickles need them.

    Raises:
        UnverifiedError: ONNX Runtime is not installed.
    """
    return {"widthfold-onnx": version("widthfold-onnx"), "onnxruntime": runtime_version()}


def measured(workload: Workload, setup: Setup, seconds: float, share: float) -> list[Outcome]:
    """Measure one workload; a form that crashes ends a child process, not the worker.

    Args:
        workload: the layer, with the forms that are not known.
        setup: the settings.
        seconds: time after which measuring ends, finished or not.
        share: fraction of these seconds that the workload should take.

    Raises:
        UnverifiedError: the runtime cannot be used.
    """
    outcomes: list[Outcome] = []
    with _turn:
        measure(
            [workload],
            setup,
            Budget(seconds),
            outcomes.append,
            silent,
            share=share,
        )
    return outcomes
