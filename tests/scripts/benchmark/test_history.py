"""The benchmark's history, with made-up figures: what a line holds, and the picture of all."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from widthfold_onnx import UsageError
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime.environment import StartReadings, environment

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git to ask for a commit")


@pytest.fixture
def module(scripts: Path) -> ModuleType:
    return importlib.import_module("benchmark.history")


def entry(
    module: ModuleType, commit: str, ratio: float, machine: str = "one", **more: Any
) -> object:
    report = importlib.import_module("benchmark.report")
    cells = {
        "auto": report.Cell(note="faster", ratio=ratio, low=0.9 * ratio, high=1.1 * ratio),
        "OpenVINO": report.Cell(note="not installed"),
    }
    return module.Entry(
        code=module.Commit(commit=commit, dirty=more.pop("dirty", False)),
        date="2026-01-02T03:04:05+00:00",
        machine=machine,
        versions={"onnxruntime": "1"},
        row=report.Row(model="chain", layers=4, cells=cells, **more),
    )


def test_lines_are_added_and_read_again(module: ModuleType, tmp_path: Path) -> None:
    assert module.history(tmp_path) == []
    line = entry(module, "1234567890", 2.0, threads=2)
    where = environment(VerifyOptions(provider=Provider.CPU), StartReadings())
    for _ in range(2):
        module.append(tmp_path, line.code, where, line.row)
    lines = module.history(tmp_path)
    assert [(e.code, e.row) for e in lines] == [(line.code, line.row)] * 2
    assert lines[0].machine == f"{where.machine}, {where.cores} cores"
    assert lines[0].versions["onnxruntime"] == where.onnxruntime
    assert lines[0].date.endswith("+00:00")
    with (tmp_path / module.FILE).open("a") as file:
        file.write('{"row": 1')
    with pytest.raises(UsageError, match=r"history\.jsonl, line 3"):
        module.history(tmp_path)


def test_the_picture_shows_each_model_over_commits(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    courses: list[list[float]] = []

    def spied(cells: list[Any]) -> object:
        courses.append([cell.ratio for cell in cells])
        return lengths(cells)

    lengths = module.lengths
    monkeypatch.setattr(module, "lengths", spied)
    entries = [
        entry(module, "aaaaaaaaaa", 1.5),
        entry(module, "bbbbbbbbbb", 1.7, dirty=True),
        entry(module, "bbbbbbbbbb", 1.2, "another"),
        entry(module, "", 1.3, threads=2),
    ]
    for name in ("one", "two"):
        module.draw_history(entries, tmp_path / f"{name}.svg")
    assert courses == 2 * [[1.5, 1.7], [1.2], [1.3]]  # what other machines measured is apart
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    for label in ("chain", "chain, 2 threads", "aaaaaaa", "bbbbbbb dirty", "bbbbbbb", "no commit"):
        assert text.count(f"<!-- {label} -->") == 1
    for machine in ("one", "another"):
        assert text.count(f"<!-- auto, {machine} -->") == 1
    assert "OpenVINO" not in text


@needs_git
def test_a_tree_with_other_code_than_the_commit_is_dirty(
    module: ModuleType, tmp_path: Path
) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert module.Commit.of(tmp_path) == module.Commit(commit="", dirty=False)
    git("init", "-q")
    (tmp_path / "benchmarks").mkdir()
    for name in ("code.py", "benchmarks/suite.json"):
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    clean = module.Commit(commit=git("rev-parse", "HEAD"), dirty=False)
    assert module.Commit.of(tmp_path) == clean
    (tmp_path / "benchmarks/suite.json").write_text("2")
    (tmp_path / "benchmarks/history.jsonl").write_text("2")
    assert module.Commit.of(tmp_path) == clean
    (tmp_path / "code.py").write_text("2")
    assert module.Commit.of(tmp_path) == module.Commit(commit=clean.commit, dirty=True)
    git("commit", "-q", "-a", "-m", "second")
    (tmp_path / "new.py").write_text("1")
    assert module.Commit.of(tmp_path).dirty
