"""Inputs, tolerances and usage of `verify`, and models that it cannot verify."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from tests.cli.tool import QUICK, names, snapshot, widthfold
from tests.small_models import LAYER, MODELS, build, save

# ---------------------------------------------------------------- inputs and tolerances


def test_stored_inputs(pair: tuple[Path, Path], tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 8, 16)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    np.save(tmp_path / "x.npy", x)
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    (folder / "input_0.pb").write_bytes(numpy_helper.from_array(x).SerializeToString())
    for path in (tmp_path / "x.npz", tmp_path / "x.npy", folder):
        run = widthfold("verify", *pair, "--no-timing", "--seeds", 0, "--inputs", path)
        assert (run.code, run.err) == (0, ""), run
        assert "verdict: pass; 1 input set" in run.out


def test_stored_inputs_that_do_not_fit(pair: tuple[Path, Path], tmp_path: Path) -> None:
    x = np.zeros((1, 2, 8, 16), np.float32)
    cases = {
        "shape.npz": {"x": x[..., :8]},
        "rank.npz": {"x": x[0]},
        "dtype.npz": {"x": x.astype(np.float64)},
        "name.npz": {"z": x},
        "more.npz": {"x": x, "z": x},
        "pickled.npz": {"x": np.array([{}], object)},
    }
    for name, arrays in cases.items():
        np.savez(tmp_path / name, **arrays)
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "empty.npy").touch()
    (tmp_path / "empty_folder").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "input_0.pb").write_bytes(b"\xff" * 100)
    odd = ("text.npz", "empty.npy", "empty_folder", "broken", "missing.npz", "a\nb\x1b[2J")
    for name in (*cases, *odd):
        run = widthfold("verify", *pair, *QUICK, "--inputs", tmp_path / name)
        assert run.code == 2, (name, run)
        assert "--inputs" in run.line


def test_tolerances(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert widthfold("verify", *pair, *QUICK, "--rtol", "0").code == 1
    assert widthfold("verify", *pair, *QUICK, "--rtol", "0", "--atol", "1e-3").code == 0
    assert widthfold("verify", *pair, *QUICK, "--rtol", "0", "--rtol", "y:1e-3").code == 0
    assert widthfold("verify", *pair, *QUICK, "--rtol", "y:0", "--rtol", "1e-3").code == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("--rtol", "nosuch:1e-3"), ("--rtol", "nan"), ("--atol", "-1"), ("--atol", "nan")],
)
def test_a_tolerance_that_means_nothing_is_exit_2(
    pair: tuple[Path, Path], option: str, value: str
) -> None:
    run = widthfold("verify", *pair, *QUICK, option, value)
    assert run.code == 2
    assert {"--rtol": "tolerance", "--atol": "atol is"}[option] in run.line


# ---------------------------------------------------------------- what cannot be verified


def test_wrong_usage_is_one_line_and_exit_2(pair: tuple[Path, Path]) -> None:
    for args in (
        (pair[0],),
        (pair[0], pair[0].with_name("gone.onnx")),
        (*pair, "--threads", 0),
        (*pair, "--time-budget", 0),
        (*pair, "--time-budget", -1, "--no-timing"),
        (*pair, "--seeds", 0),
        (*pair, "--provider", "npu"),
        (*pair, "--input-shape", "x:2,2,8,16"),
        (*pair, "--input-shape", "q:2"),
        (*pair, "--provider-option", "prefer_nhwc"),
        (*pair, "--provider-option", "=1"),
        (*pair, "--session-option", "session.x64quantprecision"),
        (*pair, "--session-option", "session.x64quantprecison=1"),
        (*pair, "--session-option", "session.dynamic_block_base=many"),
        (*pair, "--session-option", "ep.a=1", "--session-option", "ep.a=2"),
        (*pair, "--provider-option", "a=1", "--provider-option", "a=2"),
        ("", pair[0]),
        (*pair, "--fail-under", "nan"),
        (*pair, "--fail-under", 0),
        (*pair, "--details", "--format", "github"),
        (*pair, "--fail-under", 1.0, "--no-timing"),
        (*pair, "--provider", "cpu", "--provider-option", "use_arena=0"),
    ):
        run = widthfold("verify", *args)
        assert run.code == 2, args
        assert run.line


def test_a_random_output_is_unverified(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x) => (float[4] y) { r = RandomUniformLike (x)
      y = Add (x, r) }"""
    path = save(build(text), tmp_path / "random.onnx")
    run = widthfold("verify", path, path, *QUICK)
    assert run.code == 4
    assert "output y cannot be judged" in run.line


def foreign() -> ModelProto:
    """A model with a node that the runtime does not know."""
    proto = build(LAYER)
    proto.graph.node[1].domain, proto.graph.node[1].op_type = "com.example", "Own"
    proto.opset_import.add(domain="com.example", version=1)
    return proto


def test_a_model_that_the_runtime_refuses_is_unverified(tmp_path: Path) -> None:
    path = save(foreign(), tmp_path / "own.onnx")
    run = widthfold("verify", path, path, *QUICK)
    assert run.code == 4
    assert "own.onnx does not load" in run.line


def test_a_rewritten_model_that_does_not_run_fails(tmp_path: Path) -> None:
    first = save(build(LAYER), tmp_path / "first.onnx")
    second = save(foreign(), tmp_path / "second.onnx")
    run = widthfold("verify", first, second, *QUICK)
    assert run.code == 1
    assert "the original runs, the rewritten model does not" in run.line


def test_verify_writes_nothing_but_the_report(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for path in pair:
        shutil.copy(path, tmp_path)
    before = snapshot(tmp_path)
    copies = [tmp_path / path.name for path in pair]
    run = widthfold("verify", *copies, *QUICK, "--report", tmp_path / "r.json")
    assert run.code == 0
    after = snapshot(tmp_path)
    assert {name: entry for name, entry in after.items() if name != "r.json"} == before
    assert names(tmp_path) == ["model.onnx", "out.onnx", "r.json"]


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda path: path.stem)
def test_every_model_of_ours_passes_with_itself_folded(path: Path, tmp_path: Path) -> None:
    out = tmp_path / path.name
    assert widthfold("optimize", path, out, "--factor", 4, "--no-verify").code == 0
    run = widthfold("verify", path, out, *QUICK)
    assert (run.code, run.err) == (0, "")
