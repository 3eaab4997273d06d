"""Rows are kept as they come; a run that was ended or killed is continued."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import Provider, RuntimeOptions

NAMES = ("one", "two", "three")


@pytest.fixture
def kept(scripts: Path) -> ModuleType:
    return importlib.import_module("benchmark.kept")


@pytest.fixture
def report(scripts: Path) -> ModuleType:
    return importlib.import_module("benchmark.report")


def machine(kept: ModuleType, device: str = "") -> Any:
    return kept.Machine(RuntimeOptions(provider=Provider.CPU), device)


def tasks(kept: ModuleType) -> list[Any]:
    return [kept.Task("suite", Path(f"{name}.onnx"), 1) for name in NAMES]


def opened(kept: ModuleType, folder: Path, *, corrects: bool = False, device: str = "") -> Any:
    at = machine(kept, device)
    return kept.Kept(folder / "suite.json", tasks(kept), at, corrects=corrects)


def measured(kept: ModuleType, report: ModuleType, run: Any, task: Any, layers: int = 1) -> None:
    run.begin(task)
    forms = [kept.Compared(task.model.stem, 1.0, [1.0, 2.0, 3.0], [1.0, 2.0, 3.0])]
    run.add(task, report.Row(model=task.model.stem, layers=layers), forms)


def test_a_killed_run_goes_on_with_the_others_first(kept, report, tmp_path) -> None:
    run = opened(kept, tmp_path)
    measured(kept, report, run, run.tasks[0])
    run.begin(run.tasks[1])  # and is killed, as by a time limit
    assert "Not measured yet: three, two." in report.read(run.path).markdown()
    again = opened(kept, tmp_path)
    assert [str(task) for task in again.tasks] == ["three", "two"]
    for task in again.tasks:
        measured(kept, report, again, task)
    suite = report.read(run.path)
    assert [row.model for row in suite.rows] == ["one", "three", "two"]
    assert (suite.pending, suite.compared, suite.ranks.forms) == ([], [], 9)
    assert again.is_continued
    anew = opened(kept, tmp_path)
    assert not anew.is_continued
    assert [str(task) for task in anew.tasks] == list(NAMES)
    measured(kept, report, anew, anew.tasks[1])
    assert [row.model for row in report.read(run.path).rows] == ["two"]


def test_single_models_replace_their_rows_also_while_others_are_missing(
    kept, report, tmp_path
) -> None:
    run = opened(kept, tmp_path)
    for task in run.tasks[:2]:
        measured(kept, report, run, task)
    ranks = report.read(run.path).ranks
    correcting = opened(kept, tmp_path, corrects=True)
    measured(kept, report, correcting, tasks(kept)[0], layers=7)
    suite = report.read(run.path)
    assert [(row.model, row.layers) for row in suite.rows] == [("one", 7), ("two", 1)]
    assert (suite.pending, suite.ranks) == (["three"], ranks)


@pytest.mark.parametrize("changed", ["onnxruntime", "machine", "device"])
def test_a_run_is_not_continued_elsewhere(kept, report, tmp_path, changed) -> None:
    run = opened(kept, tmp_path)
    measured(kept, report, run, run.tasks[0])
    suite = report.read(run.path)
    environment = {**suite.environment, changed: "another"}
    elsewhere = msgspec.structs.replace(suite, environment=environment)
    run.path.write_bytes(msgspec.json.encode(elsewhere))
    message = rf"holds a part of a run of {changed} .*choose another --out, or remove it"
    with pytest.raises(UsageError, match=message):
        opened(kept, tmp_path, device="a GPU" * (changed == "device"))
    whole = msgspec.structs.replace(elsewhere, pending=[])
    run.path.write_bytes(msgspec.json.encode(whole))
    opened(kept, tmp_path)  # a whole run is begun anew


def test_results_of_a_gpu_have_a_folder_of_their_own(kept) -> None:
    for provider, name in (
        (Provider.CUDA, "nvidia-h100"),
        (Provider.TENSORRT, "nvidia-h100-tensorrt"),
    ):
        at = kept.Machine(RuntimeOptions(provider=provider), "NVIDIA H100")
        assert kept.default_out(at) == kept.BENCHMARKS / "gpu" / name
    assert kept.default_out(machine(kept)) == kept.BENCHMARKS
