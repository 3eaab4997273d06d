"""`apply` carries out a plan that `optimize` saved, and writes nothing that does not fit."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests judge by the runtime itself
import pytest
from onnx import numpy_helper

from tests.cli.tool import widthfold
from tests.small_models import MODELS

MODEL = MODELS / "chain.onnx"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A plan, and the model that `optimize` wrote with it."""
    folder = tmp_path_factory.mktemp("planned")
    plan, out = folder / "plan.json", folder / "out.onnx"
    done = widthfold("optimize", MODEL, out, "--factor", "4", "--save-plan", plan)
    assert done.code == 0, done.err
    return plan, out


def test_the_plan_just_saved_gives_the_same_bytes(
    planned: tuple[Path, Path], tmp_path: Path
) -> None:
    plan, out = planned
    again = tmp_path / "again.onnx"
    done = widthfold("apply", MODEL, plan, again)
    assert done.code == 0, done.err
    assert again.read_bytes() == out.read_bytes()
    assert "verdict: pass" in done.out
    assert "proof: equal" in done.out


def test_a_measured_plan_gives_the_same_bytes_without_measuring(tmp_path: Path) -> None:
    plan, out, again = (tmp_path / name for name in ("p.json", "o.onnx", "a.onnx"))
    model, store = MODELS / "pitch_cnn.onnx", tmp_path / "store.db"
    done = widthfold(
        *("optimize", model, out, "--effort", "quick", "--time-budget", 1),
        *("--input-shape", "audio:1,1,16384"),
        *("--store", store, "--save-plan", plan),
    )
    assert done.code == 0, done.err
    content = json.loads(plan.read_text())
    assert content["origin"]["decision"] == "measured"
    assert {"provider", "threads", "device", "runtime"} < content["origin"].keys()
    done = widthfold("apply", model, plan, again)
    assert done.code == 0, done.err
    assert again.read_bytes() == out.read_bytes()


def test_a_retrained_model_takes_it(planned: tuple[Path, Path], tmp_path: Path) -> None:
    model = onnx.load(MODEL)
    for tensor in model.graph.initializer:
        numbers = numpy_helper.to_array(tensor)
        if numbers.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(numbers * 0.5 + 0.25, tensor.name))
    onnx.save(model, tmp_path / "retrained.onnx")
    done = widthfold("apply", tmp_path / "retrained.onnx", planned[0], tmp_path / "o.onnx")
    assert done.code == 0, done.err
    assert "proof: equal" in done.out


def renamed(folder: Path) -> tuple[Path, str]:
    """The model with another name for its first Conv."""
    model = onnx.load(MODEL)
    node = next(node for node in model.graph.node if node.op_type == "Conv")
    before, node.name = node.name, "stem"
    onnx.save(model, folder / "renamed.onnx")
    return folder / "renamed.onnx", before


def test_a_layer_that_is_missing_is_named_and_nothing_is_written(
    planned: tuple[Path, Path], tmp_path: Path
) -> None:
    model, name = renamed(tmp_path)
    out = tmp_path / "o.onnx"
    done = widthfold("apply", model, planned[0], out)
    assert done.code == 1
    assert done.line == (
        f"widthfold: OUT is not written: the plan does not fit {name}, see the table; --partial "
        "applies the rest"
    )
    assert "the model has no such layer" in done.out
    assert not out.exists()


def test_the_rest_is_applied_if_that_is_asked_for(
    planned: tuple[Path, Path], tmp_path: Path
) -> None:
    model, name = renamed(tmp_path)
    out, report = tmp_path / "o.onnx", tmp_path / "r.json"
    done = widthfold("apply", model, planned[0], out, "--partial", "--report", report)
    assert done.code == 0, done.err
    assert out.exists()
    sites = {site["node"]: site for site in json.loads(report.read_text())["sites"]}
    assert sites[name]["code"] == "differs-from-plan"
    assert sites["stem"]["code"] == "not-planned"
    assert "folded" in {site["status"] for site in sites.values()}


def test_without_out_it_says_what_it_would_do(planned: tuple[Path, Path]) -> None:
    done = widthfold("apply", MODEL, planned[0])
    assert done.code == 0, done.err
    assert "folded" in done.out


def test_an_empty_plan_copies_the_model(tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "o.onnx"
    done = widthfold("optimize", MODEL, "--factor", "4", "--skip", "*", "--save-plan", plan)
    assert done.code == 0, done.err
    done = widthfold("apply", MODEL, plan, out)
    assert done.code == 0, done.err
    assert out.read_bytes() == MODEL.read_bytes()


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"{}", 2, "missing required field `schema`"),
        (b"[]", 2, "no plan of this version"),
        (b"\x08\x07\x12\x04", 2, "no plan of this version"),
        (b'{"schema": "widthfold.plan/2"}', 2, "no plan of this version"),
    ],
)
def test_a_file_that_is_no_plan(content: bytes, code: int, words: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(content)
    done = widthfold("apply", MODEL, plan, tmp_path / "o.onnx")
    assert done.code == code
    assert len(done.err.splitlines()) == 1
    assert words in done.err


def test_neither_plan_nor_model_is_overwritten(planned: tuple[Path, Path], tmp_path: Path) -> None:
    model, plan = tmp_path / "m.onnx", tmp_path / "p.json"
    shutil.copy(MODEL, model)
    shutil.copy(planned[0], plan)
    for target in (model, plan):
        content = target.read_bytes()
        done = widthfold("apply", model, plan, target)
        assert done.code == 2
        assert target.read_bytes() == content
    done = widthfold("optimize", model, tmp_path / "o.onnx", "--factor", "4", "--save-plan", model)
    assert done.code == 2
    assert model.read_bytes() == MODEL.read_bytes()
    assert not (tmp_path / "o.onnx").exists()


def test_stored_inputs_are_not_overwritten(planned: tuple[Path, Path], tmp_path: Path) -> None:
    stored = tmp_path / "in.npz"
    stored.write_bytes(b"numbers")
    done = widthfold("apply", MODEL, planned[0], stored, "--inputs", stored)
    assert (done.code, "is an input or another output" in done.line) == (2, True)
    assert stored.read_bytes() == b"numbers"


def test_no_output_replaces_another(tmp_path: Path) -> None:
    out, plan = tmp_path / "o.onnx", tmp_path / "p.json"
    for options in (("--save-plan", out), ("--save-plan", plan, "--report", plan)):
        done = widthfold("optimize", MODEL, out, "--factor", "4", *options)
        assert done.code == 2
        assert len(done.err.splitlines()) == 1
        assert "choose another name" in done.err
        assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
def test_a_fifo_is_no_plan(tmp_path: Path) -> None:
    plan = tmp_path / "p.json"
    os.mkfifo(plan)
    done = widthfold("apply", MODEL, plan, tmp_path / "o.onnx")
    assert done.code == 2
    assert "p.json: not a regular file" in done.err


def test_no_plan_is_saved_of_a_model_that_did_not_pass(tmp_path: Path) -> None:
    plan = tmp_path / "p.json"
    done = widthfold(
        *("optimize", MODELS / "pitch_cnn.onnx", tmp_path / "o.onnx", "--factor", "4"),
        *("--save-plan", plan, "--rtol", "0", "--seeds", "1"),
    )
    assert done.code == 1, done.err
    assert not plan.exists()


def test_a_plan_of_another_runtime_says_so(tmp_path: Path, planned: tuple[Path, Path]) -> None:
    content = json.loads(planned[0].read_text())
    content["origin"]["runtime"] = "1.2.3"
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(content))
    out, plain = tmp_path / "out.onnx", tmp_path / "plain.onnx"
    for done in (
        widthfold("apply", MODEL, plan, out),
        widthfold("verify", MODEL, out, "--no-timing"),
    ):
        assert done.code == 0, done.err
        (line,) = (line for line in done.out.splitlines() if line.startswith("plan: "))
        assert line.startswith("plan: measured with ONNX Runtime 1.2.3, running ")
        assert line.endswith(": measure again, or verify the speed")
    content["origin"]["runtime"] = ort.__version__
    plan.write_text(json.dumps(content))
    for done in (
        widthfold("apply", MODEL, plan, plain),
        widthfold("verify", MODEL, plain, "--no-timing"),
    ):
        assert done.code == 0, done.err
        assert "measured with ONNX Runtime" not in done.out


def test_a_hostile_version_of_the_runtime_is_escaped(
    tmp_path: Path, planned: tuple[Path, Path]
) -> None:
    content = json.loads(planned[0].read_text())
    content["origin"]["runtime"] = "\x1b[2J\n::error::" + 10_000 * "1"
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(content))
    done = widthfold("apply", MODEL, plan)
    assert done.code == 0, done.err
    assert "\x1b" not in done.out
    assert "\n::error::" not in done.out
    assert len(done.out) < 5000


def test_only_a_plan_replaces_a_plan(planned: tuple[Path, Path], tmp_path: Path) -> None:
    plan, other = tmp_path / "p.json", tmp_path / "notes.txt"
    shutil.copy(planned[0], plan)
    other.write_text("mine")
    words = ("optimize", MODEL, "--factor", "4")
    assert widthfold(*words, "--save-plan", plan).code == 0
    done = widthfold(*words, "--save-plan", other)
    assert done.code == 2
    assert done.line.endswith("exists and is no plan; choose another name")
    assert other.read_text() == "mine"
    done = widthfold(*words, "--report", plan)
    assert done.code == 2
    assert done.line.endswith("exists and is no report; choose another name")


def test_a_check_saves_no_plan(tmp_path: Path) -> None:
    plan = tmp_path / "p.json"
    done = widthfold("optimize", MODEL, "--factor", "4", "--check", "--save-plan", plan)
    assert done.code == 1
    assert not plan.exists()
