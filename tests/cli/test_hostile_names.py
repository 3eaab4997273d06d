"""No string of a model reaches a terminal raw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.tool import FAST, on_terminal, widthfold
from tests.small_models import build, save

NASTY = "\x1b[2J\x1b]0;title\x07\x1b[31m<script>\nfake: OK ../../x\u202e\u2028[bold]"


def hostile(folder: Path) -> Path:
    """Two layers where every name, text and key of the model is hostile."""
    proto = build()
    for old in ("x", "w1", "b1", "w2", "a", "r", "y"):
        new = f"{old}{NASTY}"
        for items in (proto.graph.input, proto.graph.output, proto.graph.initializer):
            for item in items:
                item.name = new if item.name == old else item.name
        for node in proto.graph.node:
            node.input[:] = [new if n == old else n for n in node.input]
            node.output[:] = [new if n == old else n for n in node.output]
    for node in proto.graph.node:
        node.name = node.op_type + NASTY + node.name
        node.doc_string = NASTY
    proto.graph.name = proto.graph.doc_string = proto.producer_name = NASTY
    entry = proto.metadata_props.add()
    entry.key = entry.value = NASTY
    return save(proto, folder / "hostile.onnx")


@pytest.mark.parametrize("verb", ["optimize", "verify", "inspect"])
def test_no_string_of_a_model_reaches_a_terminal_raw(tmp_path: Path, verb: str) -> None:
    path, out, report = hostile(tmp_path), tmp_path / "out.onnx", tmp_path / "report.json"
    args = {
        "optimize": (path, out, "--factor", 8, *FAST),
        "verify": (path, path, "--rtol", "0", *FAST, "--time-budget", "0.3"),
        "inspect": (path, "--factor", 8),
    }[verb]
    for run in (
        on_terminal(verb, *args, "--report", report),
        widthfold(verb, *args, "--report", report),
    ):
        assert run.code == 0
        for raw in (
            "\x1b[2J",
            "\x1b]0;",
            "\x07",
            "\x1b[31m",
            "\u202e",
            "\u2028",
            "\nfake",
            "\rfake",
        ):
            assert raw not in run.out
            assert raw not in run.err
    data = report.read_bytes()
    assert max(data) < 0x7F
    assert not set(data) & (set(range(32)) - {10})


def test_errors_about_hostile_names_are_one_clean_line(tmp_path: Path) -> None:
    proto = onnx.load(hostile(tmp_path))
    proto.graph.node[2].input[0] = "nowhere" + NASTY
    path = save(proto, tmp_path / f"m{NASTY.replace('/', '')}.onnx")
    run = widthfold("optimize", path, tmp_path / "out.onnx", "--factor", 8)
    assert run.code == 3
    assert "\\x1b[2J" in run.line


def test_weights_of_other_bits_survive(tmp_path: Path) -> None:
    proto = build()
    weight = numpy_helper.to_array(proto.graph.initializer[0]).copy()
    weight.ravel()[:4] = np.array([-0.0, 1e-42, np.inf, np.nan], np.float32)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w1"))
    path, out = save(proto, tmp_path / "model.onnx"), tmp_path / "out.onnx"
    run = widthfold("optimize", path, out, "--factor", 8, "--no-verify")
    assert run.code == 0
    folded = [
        numpy_helper.to_array(t)
        for t in onnx.load(out).graph.initializer
        if t.data_type == onnx.TensorProto.FLOAT
    ]
    kinds = set(np.concatenate([f.ravel() for f in folded]).view(np.uint32).tolist())
    assert set(weight.view(np.uint32).ravel().tolist()) <= kinds
