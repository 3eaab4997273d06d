"""Every hostile or odd file of the shared generator, by its own rules."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnxruntime  # noqa: TID251 - the tests judge by the runtime itself
import pytest

from tests.cli.tool import OLD, Run, measured, names, snapshot
from tests.lacking import IS_OLD
from tests.shared import SHARED, generate

SCRIPT = "badinputs/make_badinputs.py"
FILES = [
    *("good", "empty", "random", "text", "protobuf_named_json", "protobuf_named_txt"),
    *("raw_short", "negative_dim", "negative_input_dim", "huge_declared", "unknown_dtype"),
    *("nan_weights", "cyclic", "dangling", "duplicate_initializer", "duplicate_node_name"),
    *("missing_output", "unknown_op", "unknown_domain", "opset_999", "if_depth_25"),
    *("if_depth_10000", "chain_50000", "empty_nodes_8mb", "function_bomb", "constant_8gib"),
    *("constant_4tib", "hostile_names", "external_ok", "missing_file", "dotdot"),
    *("absolute_path", "huge_length", "unknown_keys", "symlink", "hard_link", "fifo"),
]

pytestmark = pytest.mark.skipif(not (SHARED / SCRIPT).is_file(), reason=f"no {SHARED / SCRIPT}")


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SCRIPT, tmp_path_factory)


def index(folder: Path) -> dict:
    return json.loads((folder / "index.json").read_text())


def test_every_file_is_tested(bad: Path) -> None:
    listed = index(bad)
    assert sorted(FILES) == sorted([f["name"] for f in listed["files"]] + listed["skipped"])


@pytest.mark.parametrize("name", FILES)
def test_bad_input(bad: Path, name: str, tmp_path: Path) -> None:
    listed = index(bad)
    entries = {entry["name"]: entry for entry in listed["files"]}
    if name not in entries:
        pytest.skip(f"this system cannot make {name}")
    entry, limits = entries[name], listed["limits"]
    path = bad / entry["file"]
    out, report, logs = tmp_path / "out" / "out.onnx", tmp_path / "report.json", tmp_path / "logs"
    out.parent.mkdir()
    logs.mkdir()
    out.write_bytes(OLD)
    before = snapshot(bad) if name != "fifo" else {}
    run = measured("optimize", path, out, "--factor", 8, "--report", report, folder=logs)
    assert name == "fifo" or snapshot(bad) == before
    assert not [n for n in names(out.parent) + names(path.parent) if n.startswith(".wf-")]

    rejected = run.code != 0
    if entry["strict"]:
        assert rejected == (entry["expect"] == "reject"), run
    if rejected:
        assert run.code in ((3, 2) if entry["strict"] else (2, 3, 4)), run
        assert run.line
        assert path.name in run.line
        assert run.out == "" or run.code == 4
        assert names(out.parent) == ["out.onnx"]
        assert out.read_bytes() == OLD
        assert not report.exists() or run.code == 4
        assert run.megabytes < limits["rss_mb"], run
    else:
        assert run.err == ""
        assert run.megabytes < 1000
        json.loads(report.read_bytes())
        if IS_OLD and name == "if_depth_25":
            pytest.skip("ONNX Runtime takes twice as long to load a model for every nested If")
        assert loads(out) or not loads(path)
    leaks(listed["canary"].encode(), [out, *out.parent.glob("*.data"), report], run)


def leaks(canary: bytes, paths: list[Path], run: Run) -> None:
    """The text outside of all folders is nowhere, neither as bytes nor as numbers."""
    numbers = np.frombuffer(canary, np.uint8).astype(np.float32).tobytes()
    contents = [path.read_bytes() for path in paths if path.exists()]
    for data in (*contents, run.out.encode(), run.err.encode()):
        assert canary not in data
        assert numbers not in data


def loads(path: Path) -> bool:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception:  # its exceptions have no common base
        return False
    return True


@pytest.mark.parametrize("name", ["nan_weights", "hostile_names", "good"])
def test_a_legal_odd_file_comes_through_right(bad: Path, name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    run = measured("optimize", bad / f"{name}.onnx", out, "--factor", 8, folder=tmp_path)
    assert run.code == 0
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    first, second = (
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(
            None, {"X": x}
        )[0]
        for path in (bad / f"{name}.onnx", out)
    )
    np.testing.assert_array_equal(np.isfinite(first), np.isfinite(second))
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-5 * np.nanmax(np.abs(x)) * 30)


def test_a_fifo_as_the_model_does_not_block(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.onnx"
    os.mkfifo(fifo)
    for path in (fifo, "/dev/zero", tmp_path):
        run = measured("optimize", path, tmp_path / "o.onnx", "--factor", 8, folder=tmp_path)
        assert run.code in (2, 3)
        assert run.line
    assert not (tmp_path / "o.onnx").exists()
