"""Models that are tuned ahead: each layer once, several jobs, broken models."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import widthfold_onnx
from tests.folding import optimize
from tests.shared import ROOT
from tests.tuning.workers import (
    GO_ON,
    MEETING,
    PATIENCE,
    halting,
    hopeless,
    meeting,
    quick,
    slow_at_extended,
)
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import FoldOptions, Provider, SearchOptions
from widthfold_onnx.progress import Step, progress_to
from widthfold_onnx.tuning import bench as bench_module
from widthfold_onnx.tuning.effort import SPENDING
from widthfold_onnx.tuning.measurement import AS_IS
from widthfold_onnx.tuning.search import trials
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.tune import tune

MODELS = ROOT / "models"
SIGNAL = MODELS / "signal_1d.onnx"
THREE = MODELS / "depthwise.onnx"
"""Three layers of different kinds."""

EVERY_FORM = FoldOptions()


@pytest.fixture
def options(tmp_path: Path) -> SearchOptions:
    return SearchOptions(provider=Provider.CPU, store=tmp_path / "store")


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model runs while layers are measured."""
    monkeypatch.setattr(bench_module, "race", quick)


def test_what_was_tuned_is_not_measured_by_optimize(
    tmp_path: Path, options: SearchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tune([SIGNAL], EVERY_FORM, options)
    (row,) = report.models
    assert (row.model, row.layers, row.pending, row.stored) == (SIGNAL.name, 1, 0, 0)
    assert row.measured == 1 + row.forms == report.machines[0].measured
    with Store(options.store) as store:
        assert len(list(store.items())) == row.measured
    monkeypatch.setattr(bench_module, "race", hopeless)
    monkeypatch.setattr(trials, "time_levels", slow_at_extended)
    search = optimize(SIGNAL, None, EVERY_FORM, search_options=options).search
    assert search is not None
    # One of them has the least predicted cost in the whole model.
    assert search.forms >= row.forms == SPENDING[options.effort].forms
    assert search.measured <= 2  # the original at its levels, and the whole model


@pytest.mark.usefixtures("fast")
def test_a_layer_of_two_models_is_measured_once_and_never_again(
    tmp_path: Path, options: SearchOptions
) -> None:
    twin = tmp_path / "twin.onnx"
    shutil.copy(SIGNAL, twin)
    report = tune([SIGNAL, twin, str(THREE)], EVERY_FORM, options)
    first, second, other = report.models
    assert (first.model, second.model, other.model) == (SIGNAL.name, twin.name, THREE.name)
    assert first.measured == second.measured == 1 + first.forms
    assert report.machines[0].measured == first.measured + other.measured
    again = tune([SIGNAL, THREE], EVERY_FORM, options)
    assert [(row.measured, row.stored, row.pending) for row in again.models] == [
        (0, first.measured, 0),
        (0, other.measured, 0),
    ]


@pytest.mark.processes
def test_jobs_measure_at_a_time(
    tmp_path: Path, options: SearchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("widthfold_onnx.tuning.tune.cores", lambda: 3)
    monkeypatch.setattr(bench_module, "race", meeting)
    monkeypatch.setenv(MEETING, str(tmp_path / "meeting"))
    steps: list[Step] = []
    with progress_to(steps.append):
        report = tune([THREE], EVERY_FORM, options, jobs=3)
    (row,) = report.models
    assert len(steps) == 1 + 2 * row.layers
    assert all(0 <= step.done < step.total == 2 * row.layers for step in steps[1:])
    assert (row.layers, row.pending, row.skipped, row.failed) == (3, 0, 0, 0)
    assert row.measured == 2 * row.layers + row.forms  # alone, and between packed tensors


def test_more_jobs_than_cores_are_refused(
    options: SearchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("widthfold_onnx.tuning.tune.cores", lambda: 4)
    for jobs, threads in ((5, 1), (3, 2), (2, 4), (0, 1)):
        with pytest.raises(UsageError, match=rf"^{jobs} jobs of {threads} thread"):
            tune([SIGNAL], EVERY_FORM, replace(options, threads=threads), jobs=jobs)


def test_options_that_do_not_fit_are_refused(options: SearchOptions) -> None:
    with pytest.raises(UsageError, match="every factor"):
        tune([SIGNAL], FoldOptions(factor=8), options)
    with pytest.raises(UsageError, match="every worker measures"):
        tune([SIGNAL], EVERY_FORM, options, jobs=2, dask="tcp://127.0.0.1:1")
    with pytest.raises(UsageError, match="takes no options"):
        tune([SIGNAL], EVERY_FORM, replace(options, provider_options={"a": "b"}))


@pytest.mark.usefixtures("fast")
def test_a_broken_model_does_not_stop_the_others(tmp_path: Path, options: SearchOptions) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    report = tune([broken, SIGNAL, tmp_path / "gone.onnx"], EVERY_FORM, options)
    bad, good, gone = report.models
    assert (good.reason, good.code, good.pending) == ("", 0, 0)
    assert good.measured == 1 + good.forms
    assert (bad.code, bad.layers, bad.measured) == (3, 0, 0)
    assert "broken.onnx" in bad.reason
    assert (gone.code, gone.reason) == (2, f"{tmp_path / 'gone.onnx'}: No such file or directory")


@pytest.mark.processes
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_keeps_what_was_measured(
    jobs: int, tmp_path: Path, options: SearchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("widthfold_onnx.tuning.tune.cores", lambda: 2)
    monkeypatch.setattr(bench_module, "race", halting)
    go_on = tmp_path / "go on"
    monkeypatch.setenv(GO_ON, str(go_on))

    def press() -> None:
        with Store(options.store) as store:
            while sum(key.candidate == AS_IS for key, _ in store.items()) < jobs:
                time.sleep(0.05)
        time.sleep(1)  # for the forms of these layers
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    report = tune([THREE], EVERY_FORM, options, jobs=jobs)
    measuring = [t for t in threading.enumerate() if "measure_part" in t.name]
    assert bool(measuring) == (jobs > 1)  # nobody waited for the children
    go_on.touch()
    (row,) = report.models
    assert report.interrupted
    assert row.pending == 3  # of the first layer, its forms between packed tensors
    with Store(options.store) as store:
        assert len(list(store.items())) == row.measured == report.machines[0].measured > 1
        assert sum(key.candidate == AS_IS for key, _ in store.items()) == jobs
        count = len(list(store.items()))
    for thread in measuring:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    with Store(options.store) as store:
        assert len(list(store.items())) == count


@pytest.mark.usefixtures("fast")
def test_no_time_leaves_layers_unmeasured(options: SearchOptions) -> None:
    (row,) = tune([THREE], EVERY_FORM, replace(options, time_budget=1e-9)).models
    assert row.pending == 3
    assert row.reason == ""


def test_without_a_runtime_nothing_is_kept(
    options: SearchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module, "race", hopeless)
    with pytest.raises(UnverifiedError, match="there is no runtime"):
        tune([SIGNAL], EVERY_FORM, options)
    with Store(options.store) as store:
        assert len(list(store.items())) == 0


@pytest.mark.usefixtures("fast")
def test_it_is_a_verb_of_the_package(options: SearchOptions) -> None:
    report = widthfold_onnx.tune([SIGNAL], store=options.store, provider="cpu", jobs=1)
    (row,) = report.models
    assert row.measured == 1 + row.forms > 1
    (again,) = tune([SIGNAL], EVERY_FORM, options).models
    assert (again.measured, again.stored) == (0, row.measured)
