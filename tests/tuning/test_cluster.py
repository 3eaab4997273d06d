"""Real clusters of worker processes on the loopback interface."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.shared import ROOT
from tests.tuning.workers import noted, own_number, workloads
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import FoldOptions, Provider, RuntimeOptions, SearchOptions
from widthfold_onnx.progress import Step, progress_to
from widthfold_onnx.tuning import cluster as cluster_module
from widthfold_onnx.tuning.bench import Budget
from widthfold_onnx.tuning.cluster import MAX_FAILURES, Cluster, ClusterPool
from widthfold_onnx.tuning.identity import Place, machine_identity
from widthfold_onnx.tuning.measurement import AS_IS, Measurement
from widthfold_onnx.tuning.store import Key, Store
from widthfold_onnx.tuning.tune import tune
from widthfold_onnx.tuning.workloads import Workload

if TYPE_CHECKING:  # it takes half a second to import
    from distributed import LocalCluster  # noqa: TID251 - the cluster of the tests

MODELS = ROOT / "models"
MARK = "WIDTHFOLD_TEST_MARK"
SMALL = SearchOptions(provider=Provider.CPU)


@contextmanager
def running(**options: object) -> Iterator[LocalCluster]:
    """A cluster whose processes have all ended at the end."""
    from distributed import LocalCluster  # noqa: TID251 - the cluster of the tests

    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        with LocalCluster(
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            **options,
        ) as started:
            yield started
    end = time.monotonic() + 60
    while (commands := marked(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not commands


def marked(mark: str) -> list[list[str]]:
    """Command lines of the processes that inherited the mark."""
    commands = []
    for process in psutil.process_iter():
        try:
            tracker = "resource_tracker" in "".join(process.cmdline())  # ends with this process
            if process.environ().get(MARK) == mark and not tracker:
                commands.append(process.cmdline())
        except psutil.Error:
            continue
    return commands


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running(n_workers=3, threads_per_worker=2, resources={"device": 1}) as started:
        yield started


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Workers run `noted`, which writes here."""
    monkeypatch.setattr(cluster_module, "race_on_worker", noted)
    path = tmp_path / "log"
    path.touch()
    return path


def measured(address: str, todo: list[Workload]) -> dict[Key, Measurement]:
    with Store(None) as store, Cluster(address, RuntimeOptions()) as machines:
        ClusterPool(machines, SMALL, store).measure(todo, Budget(50.0))
        return dict(store.items())


def runs(log: Path) -> list[tuple[str, str, float, float]]:
    """Process, subject, begin and end of all runs."""
    rows = [line.split("\t") for line in log.read_text().splitlines()]
    return [(pid, subject, float(begin), float(end)) for pid, subject, begin, end in rows]


def busy(cluster: LocalCluster) -> list[int]:
    """Processes of the workers that have something to do."""
    states = cluster.scheduler.workers
    return [
        nanny.pid
        for nanny in cluster.workers.values()
        if nanny.worker_address in states and states[nanny.worker_address].processing
    ]


def test_the_units_of_a_killed_worker_are_measured_elsewhere(tmp_path: Path) -> None:
    models = [MODELS / f"{name}.onnx" for name in ("depthwise", "signal_1d")]
    options = replace(SMALL, store=tmp_path / "store", time_budget=100.0)  # also on a busy machine
    narrow = FoldOptions(axis="width", max_flops_growth=4)
    killed: list[int] = []

    with running(n_workers=3, threads_per_worker=1) as started:

        def kill(step: Step) -> None:
            if step.text.startswith("measuring") and not killed and (pids := busy(started)):
                os.kill(pids[0], signal.SIGKILL)
                killed.append(pids[0])

        with progress_to(kill):
            report = tune(models, narrow, options, dask=started.scheduler_address)
    assert killed
    assert not report.interrupted
    assert all((row.pending, row.stored, row.reason) == (0, 0, "") for row in report.models)
    (machine,) = report.machines
    assert machine.machine == machine_identity(Provider.CPU)
    with Store(options.store) as store:
        assert len(list(store.items())) == machine.measured
        as_they_are = sum(key.candidate == AS_IS for key, _ in store.items())
        assert machine.measured == sum(row.forms for row in report.models) + as_they_are
        assert all(value.pairs for key, value in store.items() if key.candidate == AS_IS)


def test_every_worker_measures_one_unit_at_a_time(cluster: LocalCluster, log: Path) -> None:
    todo = workloads(log, 9)
    measurements = measured(cluster.scheduler_address, todo)
    assert {key.subject for key in measurements} == {workload.subject for workload in todo}
    assert Counter(subject for _, subject, _, _ in runs(log)) == {u.subject: 1 for u in todo}
    by_worker = defaultdict(list)
    for pid, _, begin, end in runs(log):
        by_worker[pid].append((begin, end))
    assert len(by_worker) == 3
    for times in by_worker.values():
        times.sort()
        assert all(first[1] <= second[0] for first, second in pairwise(times))


def test_the_unit_of_a_worker_that_died_is_measured_by_another(
    cluster: LocalCluster, log: Path
) -> None:
    todo = workloads(log, 6)
    todo[1] = replace(todo[1], subject="fatal once")
    measurements = measured(cluster.scheduler_address, todo)
    assert {key.subject for key in measurements} == {workload.subject for workload in todo}
    assert {value.status for value in measurements.values()} == {"ok"}
    tries = defaultdict(list)
    for pid, subject, _, _ in runs(log):
        tries[subject].append(pid)
    assert len(set(tries.pop("fatal once"))) == 2
    assert all(len(pids) == 1 for pids in tries.values())


def test_every_kind_of_machine_measures_all_units(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"one": Place(Provider.CPU, "small"), "two": Place(Provider.CUDA, "large")}
    with Store(None) as store:
        pool = ClusterPool(Inside(kinds), SMALL, store)
        pool.measure(workloads(log, 4), Budget(50.0))
        counts = Counter(
            (key.machine, json.loads(key.setting)["provider"]) for key, _ in store.items()
        )
    assert counts == {("small", "cpu"): 4, ("large", "cuda"): 4}
    assert {bench.machine: len(bench.new_measurements) for bench in pool.benches} == {
        "small": 4,
        "large": 4,
    }


class Inside:
    """Workers that live in this process, and answer at once."""

    def __init__(self, kinds: dict[str, Place]) -> None:
        self.unfit: dict[str, str] = {}
        self.workers = lambda: kinds
        self.wait = self.cancel = lambda flights: None
        self.result = lambda flight: flight.result()

    def submit(self, address: str, *task: object) -> Future:
        flight: Future = Future()
        flight.set_result(noted(*task))
        return flight


def test_a_unit_that_kills_workers_is_given_up_and_no_other(
    cluster: LocalCluster, log: Path
) -> None:
    todo = workloads(log, 6)
    todo.insert(2, replace(todo[0], subject="deadly"))
    measurements = {
        key.subject: value for key, value in measured(cluster.scheduler_address, todo).items()
    }
    assert measurements.keys() == {workload.subject for workload in todo}
    lost = measurements.pop("deadly")
    assert lost.status == "lost"
    assert lost.reason == f"{MAX_FAILURES} workers failed at it; the last: the worker ended"
    assert {value.status for value in measurements.values()} == {"ok"}
    tries = Counter(subject for _, subject, _, _ in runs(log))
    assert tries.pop("deadly") == MAX_FAILURES
    assert set(tries.values()) == {1}


def test_a_worker_without_a_device_is_asked_once(cluster: LocalCluster, log: Path) -> None:
    todo = [
        replace(workload, subject=f"{workload.subject} claims") for workload in workloads(log, 6)
    ]
    measurements = measured(cluster.scheduler_address, todo)
    assert {key.subject for key in measurements} == {workload.subject for workload in todo}
    assert {value.status for value in measurements.values()} == {"ok"}
    broken = log.with_name("broken").read_text().splitlines()[0]
    assert [pid for pid, *_ in runs(log)].count(broken) == 1


def test_an_interrupt_keeps_what_was_measured(
    cluster: LocalCluster, log: Path, tmp_path: Path
) -> None:
    todo = workloads(log, 9)

    def interrupt(step: Step) -> None:
        if len(runs(log)) >= 4:
            raise KeyboardInterrupt

    with Store(None) as store, Cluster(cluster.scheduler_address, SMALL) as machines:
        pool = ClusterPool(machines, SMALL, store)
        with progress_to(interrupt), pytest.raises(KeyboardInterrupt):
            pool.measure(todo, Budget(50.0))
        subjects = {key.subject for key, _ in store.items()}
        assert 0 < len(subjects) < len(todo)
        (bench,) = pool.benches
        assert {workload.subject for workload in bench.pending(todo)} == {
            u.subject for u in todo
        } - subjects


def test_no_time_no_measurement(cluster: LocalCluster, log: Path) -> None:
    with Store(None) as store, Cluster(cluster.scheduler_address, SMALL) as machines:
        ClusterPool(machines, SMALL, store).measure(workloads(log, 2), Budget(0.0))
        assert len(list(store.items())) == 0
    assert runs(log) == []


def test_other_versions_are_refused(
    cluster: LocalCluster, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "versions", own_number)
    here = f"here is widthfold-onnx {os.getpid()}"
    with pytest.raises(UsageError, match=rf"worker tcp://127\S+ has widthfold-onnx \d+, {here}"):
        measured(cluster.scheduler_address, workloads(log, 1))
    assert runs(log) == []


def test_workers_without_the_provider_are_named(
    cluster: LocalCluster, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "LONELY", 0.0)
    wrong = replace(SMALL, provider_options={"a": "b"})
    with Store(None) as store, Cluster(cluster.scheduler_address, wrong) as bad:
        pool = ClusterPool(bad, SMALL, store)
        with pytest.raises(UnverifiedError, match="can measure: provider cpu takes no options"):
            pool.measure(workloads(log, 1), Budget(50.0))


def test_a_cluster_without_workers_is_not_waited_for_forever(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "LONELY", 0.5)
    short = replace(SMALL, time_budget=0.1)
    with running(n_workers=0) as started:
        with pytest.raises(UnverifiedError, match=r"no worker .* is left that can measure$"):
            measured(started.scheduler_address, workloads(log, 1))
        model = MODELS / "signal_1d.onnx"
        report = tune([model], FoldOptions(), short, dask=started.scheduler_address)
    assert report.machines == []
    assert (report.models[0].layers, report.models[0].pending) == (1, 1)


def test_a_scheduler_that_ends_meanwhile_is_no_fault_of_ours(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "ANSWER_SECONDS", 1.0)
    with running(n_workers=1, threads_per_worker=1) as started:

        def end(step: Step) -> None:
            if runs(log):
                started.close()

        error = "the scheduler is gone"
        with progress_to(end), pytest.raises(UnverifiedError, match=error):
            measured(started.scheduler_address, workloads(log, 20))


def test_no_scheduler_and_no_dask_are_usage_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "ANSWER_SECONDS", 0.5)
    for address in ("tcp://127.0.0.1:1", "nothing://at all", ""):
        with pytest.raises(UsageError, match="no Dask scheduler answers at"):
            Cluster(address, SMALL)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install 'widthfold-onnx\[dask\]'"):
        Cluster("tcp://127.0.0.1:1", SMALL)
