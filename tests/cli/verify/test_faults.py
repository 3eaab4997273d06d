"""Faults in folded models, and records that lie."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.tool import QUICK, verify_report, widthfold
from tests.small_models import LAYER, build, save
from widthfold_onnx.rewrite.record import FOLD_KEY


def test_an_earlier_fold_that_was_changed_is_different(tmp_path: Path) -> None:
    path, middle, out = (tmp_path / f"{name}.onnx" for name in ("model", "middle", "out"))
    save(build(LAYER), path)
    assert widthfold("optimize", path, middle, "--factor", 4, "--no-verify").code == 0
    proto = onnx.load(middle)
    one_ulp(proto)
    run = widthfold("verify", middle, save(proto, out), *QUICK)
    assert run.code == 1
    assert "proof: different: " in run.line


def folded_conv(model: onnx.ModelProto) -> onnx.NodeProto:
    (conv,) = (node for node in model.graph.node if node.op_type == "Conv")
    return conv


def initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(t for t in model.graph.initializer if t.name == name)


def replace(model: onnx.ModelProto, name: str, change: Callable[[np.ndarray], None]) -> None:
    tensor = initializer(model, name)
    array = numpy_helper.to_array(tensor).copy()
    change(array)
    tensor.CopyFrom(numpy_helper.from_array(array, name))


def one_ulp(model: onnx.ModelProto) -> None:
    def change(weight: np.ndarray) -> None:
        at = np.argmin(np.where(weight == 0, np.inf, np.abs(weight)))
        weight.flat[at] = np.nextafter(weight.flat[at], np.float32(9))

    replace(model, folded_conv(model).input[1], change)


def one_ulp_of_bias(model: onnx.ModelProto) -> None:
    def change(bias: np.ndarray) -> None:
        bias[5] = np.nextafter(bias[5], np.float32(9))

    replace(model, folded_conv(model).input[2], change)


def filled_zero(model: onnx.ModelProto) -> None:
    def change(weight: np.ndarray) -> None:
        weight.flat[np.argmin(np.abs(weight))] = 1e-30

    replace(model, folded_conv(model).input[1], change)


def negative_zero(model: onnx.ModelProto) -> None:
    def change(weight: np.ndarray) -> None:
        weight.flat[np.argmin(np.abs(weight))] = -0.0

    replace(model, folded_conv(model).input[1], change)


def swapped_channels(model: onnx.ModelProto) -> None:
    def change(array: np.ndarray) -> None:
        array[[0, 1]] = array[[1, 0]]

    for name in folded_conv(model).input[1:]:
        replace(model, name, change)


def after_conv(model: onnx.ModelProto, kind: str) -> onnx.NodeProto:
    nodes = list(model.graph.node)
    start = nodes.index(folded_conv(model))
    return next(node for node in nodes[start:] if node.op_type == kind)


def swapped_unfold(model: onnx.ModelProto) -> None:
    perm = after_conv(model, "Transpose").attribute[0].ints
    perm[1], perm[2] = perm[2], perm[1]


def other_reshape(model: onnx.ModelProto) -> None:
    def change(dims: np.ndarray) -> None:
        first, second = sorted({d for d in dims.tolist() if d > 1})[:2]
        i, j = dims.tolist().index(first), dims.tolist().index(second)
        dims[i], dims[j] = second, first

    replace(model, after_conv(model, "Reshape").input[1], change)


def impossible_reshape(model: onnx.ModelProto) -> None:
    def change(dims: np.ndarray) -> None:
        dims[1] += 1

    replace(model, after_conv(model, "Reshape").input[1], change)


def dropped_bias(model: onnx.ModelProto) -> None:
    del folded_conv(model).input[2]


def other_pads(model: onnx.ModelProto) -> None:
    (pads,) = (a for a in folded_conv(model).attribute if a.name == "pads")
    pads.ints[0], pads.ints[2] = pads.ints[2] + 1, pads.ints[0] - 1


def rerouted_input(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "elsewhere"
    node = onnx.helper.make_node("Neg", ["x"], ["elsewhere"], "neg")
    model.graph.node.insert(0, node)


@pytest.mark.parametrize(
    "tamper",
    [
        *(one_ulp, one_ulp_of_bias, filled_zero, swapped_channels, swapped_unfold),
        *(other_reshape, impossible_reshape, dropped_bias, other_pads, rerouted_input),
    ],
)
def test_a_tampered_fold_fails_and_the_proof_names_the_value(
    pair: tuple[Path, Path], tamper: Callable[[onnx.ModelProto], None], tmp_path: Path
) -> None:
    proto = onnx.load(pair[1])
    before = proto.SerializeToString(deterministic=True)
    tamper(proto)
    assert proto.SerializeToString(deterministic=True) != before
    path, report = save(proto, tmp_path / "tampered.onnx"), tmp_path / "report.json"
    run = widthfold("verify", pair[0], path, *QUICK, "--report", report)
    assert run.code == 1
    assert "proof: different: " in run.line
    document = verify_report(report)
    assert document["proof"]["verdict"] == "different"
    assert any(document["proof"]["reason"] in reason for reason in document["reasons"])
    where = "node 'relu/" if tamper is impossible_reshape else "y (node 'relu/"
    assert document["proof"]["reason"].startswith(where)
    assert document["verdict"] == "fail"


def test_a_structural_zero_may_have_a_sign(pair: tuple[Path, Path], tmp_path: Path) -> None:
    proto = onnx.load(pair[1])
    negative_zero(proto)
    run = widthfold("verify", pair[0], save(proto, tmp_path / "t.onnx"), *QUICK)
    assert (run.code, run.err) == (0, "")


def test_the_fold_of_no_node_is_listed_and_passes(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """A record that names no node of the original is no part of the proof."""
    proto = onnx.load(pair[1])
    for entry in folded_conv(proto).metadata_props:
        if entry.key == "widthfold.origin":
            entry.value = "nowhere"
    path, report = save(proto, tmp_path / "t.onnx"), tmp_path / "report.json"
    run = widthfold("verify", pair[0], path, *QUICK, "--report", report)
    assert (run.code, run.err) == (0, "")
    (fold,) = verify_report(report)["folds"]
    assert fold["channels"] == "2 -> 4, folded 8 -> 16"


AXIS = {
    "axis": "width",
    "in_tile": 4,
    "out_tile": 4,
    "blocked": True,
    "in_length": 8,
    "original_kernel": 3,
    "kernel": 3,
    "stride": 1,
    "taps": [[0, 0, 1, 1]],
}
RECORD = {"form": "width by 4", "channels": "2 -> 3", "axes": [AXIS]}
HUGE = dict.fromkeys(("in_tile", "out_tile", "in_length", "kernel", "stride"), 1 << 30)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Fail after so many seconds."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "null",
        "{}",
        "[" * 100_000,
        '{"axis": 1}',
        {"axes": []},
        {"axes": [AXIS] * 40},
        {"axes": [{**AXIS, "in_length": None}]},
        {"axes": [{**AXIS, "in_tile": 0, "out_tile": 0}]},
        {"axes": [{**AXIS, "kernel": -4}]},
        {"axes": [AXIS | HUGE]},
        {"axes": [{**AXIS, "in_length": 1 << 62}]},
        {"axes": [{**AXIS, "taps": [[1 << 30] * 4] * 10_000}]},
        {"axes": [{**AXIS, "taps": [[-1, 0, 0, 0]]}]},
        {"axes": [{**AXIS, "axis": "\x1b[2J\n" * 1000}]},
        {"channels": "\x07" * 2000, "form": "\x1b[2J\n" * 100},
        {"form": "x" * 1_000_000},
    ],
)
def test_a_hostile_record_is_no_fault_of_ours(
    pair: tuple[Path, Path],
    record: str | dict,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = record if isinstance(record, str) else json.dumps({**RECORD, **record})
    proto = onnx.load(pair[1])
    for entry in folded_conv(proto).metadata_props:
        if entry.key == FOLD_KEY:
            entry.value = text
    path, out = save(proto, tmp_path / "hostile.onnx"), tmp_path / "out.onnx"
    with limited(600):
        run = widthfold("verify", pair[0], path, *QUICK)
    assert (run.code, run.err) == (0, "")
    assert "proof: equal" in run.out
    assert capfd.readouterr() == ("", "")  # nor do libraries or child processes print anything
    run = widthfold("inspect", path)
    assert run.code in (0, 3), run
    assert run.code == 0 or run.line
    assert "\x1b" not in run.out + run.err
    run = widthfold("optimize", path, out, "--factor", 2, *QUICK[:2])
    assert run.code in (0, 3), run
    assert run.code == 0 or run.line
