"""The whole GPU script with the CPU in the place of a GPU."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.scripts.gpu_runs import BENCH, bench, rows_of


def test_the_whole_run_with_the_processor(tmp_path: Path) -> None:
    done = bench("--provider", "cpu", "--quick", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["dtype"] for row in rows_of(tmp_path, "conv")] == ["float32", "float16"]
    assert len(rows_of(tmp_path, "end")) == 1
    assert not [row for row in rows_of(tmp_path, "grid") if "error" in row or "wrong" in row]
    timed = [row for row in rows_of(tmp_path, "grid") if "ratio" in row]
    assert {row["layout"] for row in timed} == {"nchw", "nhwc"}
    assert {row["form"] for row in timed} >= {"pad 8", "batch 8", "block 8", "block 64", "band 8"}
    for row in timed + [row for row in rows_of(tmp_path, "gemm") if "ratio" in row]:
        sides = row["samples_us"]
        assert len(sides["base"]) == len(sides["form"]) == len(sides["copy"]) >= 1
        assert row["low"] <= row["ratio"] <= row["high"]
        assert row["difference"] < 1e-2
    (model,) = rows_of(tmp_path, "models")
    assert model["model"] == "pitch_cnn"
    assert "error" not in model
    assert 0 <= model["left"] <= model["layers"] == 4
    table = (tmp_path / "table.md").read_text()
    titles = ("Ceilings", "Layers", "Matrix products", "Whole models", "Against the fastest rival")
    for title in titles:
        assert f"## {title}\n" in table
    assert "A quick run: the figures say nothing." in table
    assert "The claim" not in table
    assert {path.name for path in tmp_path.glob("*.svg")} == {
        "floor-float16.svg",
        "ratios-float16-nchw.svg",
        "ratios-float16-nhwc.svg",
    }


def test_numpy_onnx_and_the_runtime_are_enough_for_parts_1_to_4(tmp_path: Path) -> None:
    done = bench("--provider", "cpu", "--quick", "--out", tmp_path, hidden=True)
    assert done.returncode == 0, done.stderr
    assert [row for row in rows_of(tmp_path, "gemm") if "ratio" in row]
    (torch,) = rows_of(tmp_path, "torch")
    assert torch["reason"].startswith("PyTorch cannot be imported")
    (models,) = rows_of(tmp_path, "models")
    assert models["reason"] == "the package needs msgspec, onnx_ir, platformdirs, scipy"
    assert "| 1->1 5x1 | float16 | nchw | none |" in done.stdout  # Markdown where rich is missing
    assert "no pictures without matplotlib" in done.stderr


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


def test_a_fault_of_one_part_costs_no_other_part(tmp_path: Path) -> None:
    script = f"""
import runpy, sys
sys.path[:0] = [{str(BENCH.parent)!r}, {str(BENCH.parents[1])!r}]
import gpu.grid, gpu.rival, gpu.wholes
from widthfold_onnx.errors import UnverifiedError
def grid(*x): raise UnverifiedError("no comparison")
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
    assert rows_of(tmp_path, "gemm")
    assert rows_of(tmp_path, "end")


@pytest.mark.parametrize("lines", [1, 30])
def test_a_run_that_is_killed_leaves_what_it_measured(tmp_path: Path, lines: int) -> None:
    command = [sys.executable, BENCH, "--provider", "cpu", "--quick", "--out", tmp_path]
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
