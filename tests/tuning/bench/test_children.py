"""Races in child processes: a form that ends its child is lost, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.shared import ROOT
from tests.tuning.races import LOG, behaving, bench, kept, workload
from widthfold_onnx.errors import InternalError, UnverifiedError
from widthfold_onnx.progress import Step, progress_to
from widthfold_onnx.tuning import bench as bench_module
from widthfold_onnx.tuning.bench import Budget
from widthfold_onnx.tuning.measurement import AS_IS
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.successive_halving import Start


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make real children race as `behaving` does, and read (child, subject, form) of each run."""
    path = tmp_path / "log"
    monkeypatch.setenv(LOG, str(path))
    monkeypatch.setattr(bench_module, "race", behaving)

    def lines() -> list[tuple[int, str, str]]:
        rows = [line.split(" ") for line in path.read_text().splitlines()]
        children = list(dict.fromkeys(child for child, _, _ in rows))
        return [(children.index(child), subject, key) for child, subject, key in rows]

    return lines


@pytest.mark.processes
@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("exit", "ended with code 3"),
        ("segfault", "SIGSEGV"),
        ("hang", "silent for 8 s"),
        ("eat", "out of memory"),
        ("refuse", "no kernel"),
    ],
)
def test_a_form_that_goes_wrong_loses_and_only_it(
    store: Store, log, monkeypatch: pytest.MonkeyPatch, form: str, words: str
) -> None:
    if form == "hang":
        monkeypatch.setattr(
            bench_module, "SILENCE_SECONDS", 8.0
        )  # a child may need seconds to start
    workloads = [workload("one", "a"), workload("two", "a", form, "b"), workload("three", "a")]
    used = bench(store)
    used.measure(workloads, Budget(60.0))
    stored = kept(store)
    assert words in stored["two", form].reason
    expected = {(u.subject, k) for u in workloads for k in (AS_IS, *(f.spec for f in u.forms))}
    assert stored.keys() == expected
    assert [key for key, item in stored.items() if item.status == "lost"] == [("two", form)]
    assert len(used.new_measurements) == len(expected)
    again = [(subject, key) for child, subject, key in log() if child == 1]
    assert again == [
        ("two", AS_IS),
        ("two", "a"),
        ("two", "b"),
        ("three", AS_IS),
        ("three", "a"),
    ]
    used.measure(workloads, Budget(60.0))
    assert len(used.new_measurements) == len(expected), "what is known was measured again"
    assert max(child for child, _, _ in log()) == 1


@pytest.mark.processes
def test_a_layer_that_does_not_run_loses_alone(store: Store, log) -> None:
    used = bench(store)
    used.measure([workload("exit", "a", "b"), workload("two", "a")], Budget(60.0))
    stored = kept(store)
    assert stored.keys() == {("exit", AS_IS), ("two", AS_IS), ("two", "a")}
    assert stored["exit", AS_IS].status == "lost"
    assert [row for row in log() if row[1] == "exit"] == [(0, "exit", AS_IS)]
    used.measure([workload("exit", "a", "b"), workload("two", "a")], Budget(60.0))
    assert len(log()) == 3


@pytest.mark.processes
@pytest.mark.parametrize("layers", [1, 7, 20])
def test_a_kill_loses_at_most_the_layer_in_flight(tmp_path: Path, layers: int) -> None:
    path = tmp_path / "store.sqlite"
    count = 10_000  # more than can be done
    script = f"from tests.tuning.races import *; measure_many(Path({str(path)!r}), {count})"
    with Store(path) as store, subprocess.Popen([sys.executable, "-c", script], cwd=ROOT) as child:
        try:
            while len(list(store.items())) < 3 * layers and child.poll() is None:
                time.sleep(0.005)
            assert child.poll() is None
        finally:
            child.kill()
    with Store(path) as store:
        stored = sorted(kept(store))
    whole = [
        (f"layer{number:03}", key) for number in range(count) for key in (AS_IS, "brief1", "brief2")
    ]
    assert len(stored) >= 3 * layers
    assert stored == whole[: len(stored)]


def test_a_child_that_fails_before_any_layer_is_an_error(
    store: Store, inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (UnverifiedError("no runtime"), InternalError("a fault of ours")):

        def race(*args: object, error: Exception = error, **more: object) -> None:
            raise error

        monkeypatch.setattr(bench_module, "race", race)
        with pytest.raises(type(error), match=str(error)):
            bench(store).measure([workload("one", "a")], Budget(60.0))
    assert kept(store) == {}


def test_a_child_that_fails_between_layers_takes_nothing_back(
    store: Store, inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def race(workloads, options, seconds, *, send) -> None:
        behaving(workloads[:1], options, seconds, send=send)
        raise UnverifiedError("gone")

    monkeypatch.setattr(bench_module, "race", race)
    with pytest.raises(UnverifiedError, match="gone"):
        bench(store).measure([workload("one", "a"), workload("two", "a")], Budget(60.0))
    assert {item.status for item in kept(store).values()} == {"ok"}


def test_a_race_that_ends_in_time_is_the_last_one(
    store: Store, inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def race(workloads, options, seconds, *, send) -> None:
        behaving(workloads[:2], options, seconds, send=send)

    monkeypatch.setattr(bench_module, "race", race)
    workloads = [workload(name, "a", "b") for name in ("one", "two", "three", "four")]
    bench(store).measure(workloads, Budget(7.0))
    assert {subject for subject, _ in kept(store)} == {"one", "two"}
    assert len(kept(store)) == 6
    assert [seconds for _, seconds in inside.races] == [7.0]


@pytest.mark.parametrize(("cost", "subjects"), [(4.0, {"one", "two"}), (7.0, {"one"})])
def test_no_child_follows_a_crash_when_the_budget_is_spent(
    store: Store, inside, monkeypatch: pytest.MonkeyPatch, cost: float, subjects: set[str]
) -> None:
    def race(workloads, options, seconds, *, send) -> None:
        send(Start(workloads[0].subject, AS_IS))
        inside.now += cost
        raise UnverifiedError("gone")

    monkeypatch.setattr(bench_module, "race", race)
    bench(store).measure([workload(n, "a") for n in ("one", "two", "three")], Budget(7.0))
    assert {subject for subject, _ in kept(store)} == subjects


def test_no_second_passes_while_a_child_starts(
    store: Store, inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def race(workloads, options, seconds, *, send) -> None:
        inside.now += 100  # until the first message
        for item in workloads:
            behaving([item], options, seconds, send=send)
            inside.now += 4

    monkeypatch.setattr(bench_module, "race", race)
    budget = Budget(9.0)
    bench(store).measure([workload("one", "a"), workload("two", "a")], budget)
    inside.now += 100
    assert budget.left == 1.0
    bench(store).measure([workload("three", "a")], budget)
    assert [seconds for _, seconds in inside.races] == [9.0, 1.0]
    assert {stored.budget for stored in kept(store).values()} == {9.0}


def test_the_first_layer_races_whatever_the_time(store: Store, inside) -> None:
    budget = Budget(1.0)
    budget.start()
    inside.now += 2
    bench(store).measure([workload("one", "a")], budget)
    assert {subject for subject, _ in kept(store)} == {"one"}
    assert [seconds for _, seconds in inside.races] == [-1.0]


def test_every_layer_is_a_step(store: Store, inside) -> None:
    reports: list[Step] = []
    inside.now = 5.0
    with progress_to(reports.append):
        bench(store).measure([workload("one", "a"), workload("two", "a")], Budget(7.0))
    assert reports == [
        Step("measuring layer 1 of 2", 0, 2, 7.0),
        Step("measuring layer 2 of 2", 1, 2, 7.0),
    ]
