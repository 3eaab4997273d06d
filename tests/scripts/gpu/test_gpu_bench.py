"""The whole GPU script with the CPU in the place of a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.scripts.gpu.gpu_runs import BARE, BENCH, bench, rows_of
from widthfold_onnx.errors import UsageError


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run with the processor, which tests must not change."""
    folder = tmp_path_factory.mktemp("finished")
    done = bench("--provider", "cpu", "--quick", "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_whole_run_with_the_processor(finished: Path) -> None:
    assert [row["dtype"] for row in rows_of(finished, "conv")] == ["float32", "float16"]
    assert len(rows_of(finished, "end")) == 1
    parts = [rows_of(finished, part) for part in ("grid", "published", "users")]
    assert all(parts)
    rows = list(itertools.chain(*parts))
    assert not [row for row in rows if "error" in row or "wrong" in row]
    timed = [row for row in rows if "ratio" in row]
    assert {row["layout"] for row in timed} == {"nchw", "nhwc"}
    assert {row["form"] for row in timed} >= {"pad 8", "batch 8", "block 8", "block 64", "band 8"}
    assert {row["form"] for row in timed} >= {"sub-pixel", "space-to-depth", "groups of 8"}
    for row in timed:
        sides = row["samples_us"]
        assert len(sides["base"]) == len(sides["form"]) == len(sides["copy"]) >= 1
        assert row["low"] <= row["ratio"] <= row["high"]
        assert row["difference"] < 1e-2
    (model,) = rows_of(finished, "models")
    assert model["model"] == "pitch_cnn"
    assert "error" not in model
    assert 0 <= model["pending"] <= model["layers"] == 4
    table = (finished / "table.md").read_text()
    for title in ("Ceilings", "Layers", "Layers of users", "Whole models"):
        assert f"## {title}\n" in table
    assert "## Layers whose times others published\n" in table
    beside = table.partition("## Beside published times\n")[2]
    assert re.search(
        r"\| einnet_conv5x5 \| float16 \| \d.* ms cuDNN .* \| A100, float32 \|", beside
    )
    assert "## Against the fastest rival\n" in table
    assert "A quick run: the figures say nothing." in table
    assert "The claim" not in table
    assert {path.name for path in finished.glob("*.svg")} == {"floor-float16.svg"}


@pytest.mark.slow
def test_a_second_run_measures_only_what_is_not_there(finished: Path, tmp_path: Path) -> None:
    lines = (finished / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    gone = next(i for i, row in enumerate(rows) if row.get("form") == "sub-pixel")
    failed = next(i for i, row in enumerate(rows) if row.get("form") == "band 8")
    others = [*lines[:gone], *lines[gone + 1 :]]
    others[failed - (failed > gone)] = json.dumps(
        {key: rows[failed][key] for key in ("part", "layer", "dtype", "layout", "form")}
        | {"error": "out of memory"}
    )
    start = "".join(f"{line}\n" for line in others)
    (tmp_path / "results.jsonl").write_text(start + '{"part": "gri')
    command = ("--provider", "cpu", "--quick", "--out", tmp_path)
    done = bench(*command)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "results.jsonl").read_text()
    assert text.startswith(start)
    again = [json.loads(line) for line in text[len(start) :].splitlines()]
    measured = [row for row in again if row["part"] not in ("run", "conv", "state", "end")]
    subjects = [(row.get("layer"), row.get("layout"), row.get("form")) for row in measured]
    expected = [(rows[i]["layer"], rows[i]["layout"], rows[i]["form"]) for i in (failed, gone)]
    if importlib.util.find_spec("torch") is None:  # which is said again
        expected.insert(1, (None, None, None))
    assert sorted(map(str, subjects)) == sorted(map(str, expected))
    table = (tmp_path / "table.md").read_text()
    assert "out of memory" not in table
    assert (finished / "table.md").read_text().count("\n") == table.count("\n")


@pytest.mark.slow
def test_a_folder_holds_the_results_of_one_device(finished: Path, tmp_path: Path) -> None:
    row = rows_of(finished, "run")[0]
    (tmp_path / "results.jsonl").write_text(json.dumps(row | {"onnxruntime": "1.2"}) + "\n")
    done = bench("--provider", "cpu", "--quick", "--out", tmp_path)
    assert done.returncode == 2
    message = f"gpu_bench: {tmp_path} holds results of onnxruntime 1.2; choose another --out\n"
    assert done.stderr == message


@pytest.mark.parametrize("key", ["device", "provider", "onnxruntime", "quick"])
def test_results_of_something_else_are_refused(scripts: Path, tmp_path: Path, key: str) -> None:
    module = importlib.import_module("gpu_bench")
    about = dict.fromkeys(module.KEPT, "a")
    module._check_folder(tmp_path, about)
    (tmp_path / "results.jsonl").write_text(json.dumps({"part": "run", **about}) + "\n")
    module._check_folder(tmp_path, about)
    with pytest.raises(UsageError, match=f"holds results of {key} a; choose another --out"):
        module._check_folder(tmp_path, about | {key: "b"})


@pytest.mark.slow
def test_numpy_onnx_and_the_runtime_are_enough_for_layers(finished: Path, tmp_path: Path) -> None:
    lines = (finished / "results.jsonl").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if json.loads(line)["part"] == "grid")
    shortened = lines[:first] + lines[first + 10 :]  # without NCHW
    (tmp_path / "results.jsonl").write_text("".join(f"{line}\n" for line in shortened))
    command = ("--provider", "cpu", "--quick", "--parts", "grid,torch", "--out", tmp_path)
    done = bench(*command, hidden=True)
    assert done.returncode == 0, done.stderr
    rows = list(map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines()))[
        len(shortened) :
    ]
    assert [(row["layout"], "us" in row) for row in rows if row["part"] == "grid"] == [
        ("nchw", True)
    ] * 10
    torch = rows_of(tmp_path, "torch")[-1]
    assert torch["reason"].startswith("PyTorch cannot be imported")
    assert "| 1->1 5x1 | float16 | nchw | none |" in done.stdout
    assert "no pictures without matplotlib" in done.stderr


def test_the_parts_of_the_script_import_numpy_onnx_and_the_runtime_alone() -> None:
    parts = "from gpu import device, grid, layers, published, rival, watch, wholes"
    subprocess.run([sys.executable, "-c", BARE + parts], check=True)


def test_a_run_without_time_says_what_is_left(tmp_path: Path) -> None:
    parts = ("--parts", "grid,models", "--budget", "0")
    done = bench("--provider", "cpu", "--quick", *parts, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "20 more were not measured: no time was left." in done.stdout
    assert "1 more were not measured: no time was left." in done.stdout


def test_what_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    bare = subprocess.run(
        [sys.executable, "-I", "-S", BENCH, "--out", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert bare.returncode == 4
    assert bare.stderr == "gpu_bench: not installed: numpy, onnx, onnxruntime\n"
    for begun in (False, True):  # a run that was killed may leave a file without rows
        if begun:
            (tmp_path / "results.jsonl").write_text('{"part": "ru')
        nothing = bench("--report", tmp_path)
        assert nothing.returncode == 2
        assert nothing.stderr == f"gpu_bench: no results in {tmp_path / 'results.jsonl'}\n"
    absent = bench("--provider", "cpu", "--out", tmp_path, tmp_path / "x.onnx")
    assert absent.returncode == 2
    assert absent.stderr == f"gpu_bench: no such file: {tmp_path / 'x.onnx'}\n"
    unknown = bench("--parts", "grid,girds", "--out", tmp_path)
    assert unknown.returncode == 2
    assert unknown.stderr.endswith("argument --parts: no such part: girds\n")
    (tmp_path / "file").touch()
    blocked = bench("--provider", "cpu", "--quick", "--out", tmp_path / "file")
    assert blocked.returncode == 2
    assert blocked.stderr.startswith("gpu_bench: [Errno 17] File exists")
    unusable = bench("--out", tmp_path)
    if unusable.returncode != 0:  # there is no GPU
        assert unusable.returncode == 4
        assert unusable.stderr.splitlines()[-1].startswith(
            "gpu_bench: provider cuda cannot be used: "
        )


def test_the_plan_of_the_documentation_fits_its_minutes(
    scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (scripts.parent / "docs" / "gpu.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `(--parts [^`]*)` \|", text, re.MULTILINE)
    module = importlib.import_module("gpu_bench")
    parts = set()
    for minutes, command in rows:
        monkeypatch.setattr("sys.argv", ["gpu_bench.py", *command.split()])
        arguments = module._arguments()
        parts |= set(arguments.parts)
        assert arguments.budget < 60 * int(minutes) <= 600
    assert parts == set(module.PARTS)
    assert sum(int(minutes) for minutes, _ in rows) == 40


def test_a_fault_of_one_part_costs_no_other_part(tmp_path: Path) -> None:
    script = f"""
import runpy, sys
sys.path[:0] = [{str(BENCH.parent)!r}, {str(BENCH.parents[1])!r}]
import gpu.grid, gpu.rival, gpu.wholes
from widthfold_onnx.errors import UnverifiedError
def grid(stage, part, *x):
    if part == "grid": raise UnverifiedError("no comparison")
    stage.results.add(part, reason="it ran")
def torch(*x): raise AttributeError("renamed")
gpu.grid.run_grid, gpu.rival.run_rival = grid, torch
gpu.wholes.run_models = lambda *x: None
sys.argv = [{str(BENCH)!r}, "--provider", "cpu", "--quick", "--out", {str(tmp_path)!r}]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 70
    assert "AttributeError: renamed" in done.stderr
    table = (tmp_path / "table.md").read_text()
    assert "\nno comparison.\n" in table
    assert "\na fault of gpu_bench: AttributeError('renamed').\n" in table
    assert "\nit ran.\n" in table
    assert rows_of(tmp_path, "end")


@pytest.mark.parametrize("lines", [1, 6])
def test_a_run_that_is_killed_leaves_what_it_measured(tmp_path: Path, lines: int) -> None:
    parts = ("--parts", "grid")
    command = [sys.executable, BENCH, "--provider", "cpu", "--quick", *parts, "--out", tmp_path]
    file = tmp_path / "results.jsonl"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        end = time.monotonic() + 60
        while time.monotonic() < end and run.poll() is None:
            if file.exists() and file.read_bytes().count(b"\n") >= lines:
                break
            time.sleep(0.002)
        run.kill()
    assert run.returncode == -9
    whole = file.read_bytes().count(b"\n")
    assert whole >= lines
    done = bench("--report", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The run was cut off; what is here was measured before." in done.stdout
