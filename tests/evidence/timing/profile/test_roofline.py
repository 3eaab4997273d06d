"""The least time of a node: what counts as its work, and how fast this machine is."""

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.folding import optimize
from tests.shared import ROOT
from widthfold_onnx.evidence.timing import profile as profile_module
from widthfold_onnx.evidence.timing.profile import (
    WEIGHTS,
    Roofline,
    moved_bytes,
    multiply_adds,
    no_time,
    profile,
)
from widthfold_onnx.options import FoldOptions, Provider, VerifyOptions
from widthfold_onnx.runtime import kernels
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import open_session
from widthfold_onnx.runtime.settings import Setting, open_at

MODELS = ROOT / "models"
CPU = VerifyOptions(provider=Provider.CPU)
COST = {"float": 2, "double": 12, "uint8": 3}
"""Planted cost of an operation by type."""


def details(op, inputs, outputs, kind="float"):
    shapes = {"input_type_shape": inputs, "output_type_shape": outputs}
    return {"op_name": op, **{k: [{kind: list(d)} for d in dims] for k, dims in shapes.items()}}


@pytest.mark.parametrize(
    ("op", "weight", "inputs", "output", "macs"),
    [
        ("Conv", (4, 3, 5, 5), [(1, 3, 9, 9), (4, 3, 5, 5)], (1, 4, 7, 8), 3 * 25 * 4 * 56),
        ("FusedConv", (6, 1, 3), [(2, 6, 9)], (2, 6, 7), 2 * 6 * 3 * 7),
        ("ConvTranspose", (3, 4, 2), [(1, 3, 9), (3, 4, 2)], (1, 4, 18), 9 * 3 * 4 * 2),
        ("QLinearConv", (4, 2, 1, 3), [(1, 5, 7, 2)], (1, 5, 7, 4), 4 * 2 * 3 * 35),
        ("MatMul", (8, 9), [(2, 5, 8)], (2, 5, 9), 10 * 8 * 9),
        ("MatMul", (2, 8, 9), [(2, 5, 8)], (2, 5, 9), 10 * 8 * 9),
        ("MatMul", (2, 8, 9), [(2, 5, 8), (2, 8, 9)], (2, 5, 9), 10 * 8 * 9),
        ("MatMul", (8,), [(5, 8), (8,)], (5,), 5 * 8),
        ("MatMul", (8,), [(8,), (8,)], (), 8),
        ("MatMul", (8, 0), [(5, 8), (8, 0)], (5, 0), 0),
        ("Gemm", (9, 8), [(5, 8)], (5, 9), 5 * 8 * 9),
        ("QLinearMatMul", (8, 9), [(5, 8)], (5, 9), 5 * 8 * 9),
    ],
)
def test_multiply_adds_are_counted_by_shape(op, weight, inputs, output, macs):
    event = details(op, inputs, [output])
    assert multiply_adds(np.ones(weight, np.float32), event) == macs
    if len(inputs) > 1:  # as a computed weight is listed
        assert multiply_adds(None, event) == macs


def test_multiply_adds_with_zeros_do_not_count():
    weight = np.zeros((16, 8, 3, 3), np.float32)  # the runtime pads one channel to sixteen
    weight[0] = 1
    assert multiply_adds(weight, details("Conv", [(1, 8, 4, 6)], [(1, 16, 4, 6)])) == 8 * 9 * 24


def test_bytes_are_what_a_node_reads_and_writes():
    assert moved_bytes(details("Add", [(3, 4), (4,)], [(3, 4)])) == 4 * (12 + 4 + 12)
    assert moved_bytes(details("Cast", [(5,)], [(5,)], "double")) == 80
    assert moved_bytes(details("Gather", [(1000,), (3,)], [(3,)])) == 4 * (3 + 3)
    assert moved_bytes(details("Concat", [(5,)], [(5,)], "string")) is None


@pytest.fixture
def planted(monkeypatch):
    """A machine that copies a byte in 2 s where 100 are copied, in 1 s in smaller copies."""
    monkeypatch.setattr(profile_module, "COPIED_BYTES", [10, 100])
    monkeypatch.setattr(
        profile_module, "copy_speed", lambda setting, size: {10: 1.0, 100: 0.5}[size]
    )
    monkeypatch.setattr(profile_module, "multiply_speed", lambda setting, dtype: 1 / COST[dtype])
    return Roofline(CPU)


def test_the_longer_one_of_both_times_is_the_least(planted, monkeypatch):
    monkeypatch.setattr(Roofline, "_weights", lambda *_: {"n": np.ones((1, 2, 1), np.float32)})
    least = planted.of(Path(), Setting(Level.ALL, CPU))
    assert least("other", details("Relu", [(1,)], [(1,)])) == 8.0
    assert least("other", details("Relu", [(10,)], [(10,)])) == 80.0
    assert least("other", details("Relu", [(20,)], [(20,)])) == 320.0
    assert planted.multiply_speeds == {}
    float32 = COST["float"]
    assert least("n", details("Conv", [(1, 2, 4)], [(1, 1, 4)])) == max(48, 2 * 8 * float32)
    assert least("n", details("Conv", [(1, 2, 4)], [(1, 1, 4)], "double")) > 2 * 8 * float32
    assert planted.multiply_speeds.keys() == {"float", "double"}
    assert least("n", details("DynamicQuantizeMatMul", [(4, 2)], [(4, 1)])) is not None
    assert planted.multiply_speeds.keys() == {"float", "double", "uint8"}
    for op in ("Reshape", "Loop", "If", "Shape"):
        assert least("other", details(op, [(4,)], [(4,)])) is None
    assert least("unpacked", details("Conv", [(1, 2, 4)], [(1, 1, 4)])) is None
    assert least("n", details("Conv", [(1, 2, 4)], [(1, 1, 4)], "float16")) is None


@pytest.mark.parametrize("level", [Level.ALL, Level.EXTENDED])
@pytest.mark.parametrize("name", ["pitch_cnn", "quantized_cnn", "pointwise_mlp"])
def test_a_model_and_its_fold_have_the_same_work(tmp_path, monkeypatch, name, level):
    """The runtime pads channels, packs weights and renames nodes; a fold adds zeros."""
    monkeypatch.setattr(profile_module, "copy_speed", lambda setting, size: 1e30)
    monkeypatch.setattr(profile_module, "multiply_speed", lambda setting, dtype: 2.0)
    folded = tmp_path / "folded.onnx"
    optimize(MODELS / f"{name}.onnx", folded, FoldOptions(factor=4))

    def work(model):
        seconds = {}
        least = Roofline(CPU).of(model, Setting(level, CPU))

        def spied(node, event):
            if event["op_name"] in WEIGHTS:
                seconds[node] = least(node, event)

        ports = open_session(model).inputs
        shapes = {p.name: tuple(d if isinstance(d, int) else 1 for d in p.dims) for p in ports}
        feeds = random_feeds(ports, 0, shapes)
        profile(partial(open_at, model, Setting(level, CPU)), feeds, spied)
        return seconds

    before, after = work(MODELS / f"{name}.onnx"), work(folded)
    assert len(before) == len(after) > 2
    assert None not in before.values()
    assert sorted(after.values()) == sorted(before.values())
    if name == "pitch_cnn":
        graph = onnx.load(MODELS / f"{name}.onnx").graph
        weights = {t.name: np.prod(t.dims) for t in graph.initializer}
        convs = {n.name: weights[n.input[1]] for n in graph.node if n.op_type == "Conv"}
        positions = {key: 128 if key == "bands" else 32 * 128 for key in convs}
        assert sorted(before.values()) == sorted(convs[key] * positions[key] for key in convs)


def test_a_name_of_two_nodes_says_nothing_of_either(tmp_path, planted):
    branch = "{ z = MatMul(x, %s) }"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 2] x, bool b) => (float[2, 2] y)
    <float[2, 2] v = {{1, 2, 3, 4}}, float[2, 2] w = {{1, 2, 3, 0}}>
    {{ r = Relu(x)
       s = MatMul(r, v)
       t = MatMul(s, x)
       q = If(b)<then_branch = f () => (float[2, 2] z) {branch % "v"},
                 else_branch = e () => (float[2, 2] z) {branch % "w"}>
       y = Mul(q, t) }}"""
    model = onnx.parser.parse_model(text)
    for name, node in zip(["relu", "stored", "computed"], model.graph.node, strict=False):
        node.name = name
    for branch in model.graph.node[3].attribute:
        branch.g.node[0].name = "twice"
    onnx.save(model, tmp_path / "m.onnx")
    seconds = planted._weights(tmp_path / "m.onnx", Setting(Level.EXTENDED, CPU))
    assert seconds.keys() == {"stored", "computed"}
    assert np.array_equal(seconds["stored"], [[1, 2], [3, 4]])
    assert seconds["computed"] is None


def test_speeds_are_those_of_the_shortest_runs(monkeypatch):
    def seconds(model, setting):
        onnx.checker.check_model(model)
        (node,) = model.graph.node
        if node.op_type != "Relu":
            return {"MatMul": 1e-3, "MatMulInteger": 1e-4}[node.op_type]
        dims = model.graph.input[0].type.tensor_type.shape.dim
        return 1e-5 + 8 * dims[0].dim_value / 1e10

    monkeypatch.setattr(kernels, "_shortest", seconds)
    setting = Setting(Level.ALL, CPU)
    assert kernels.multiply_speed(setting) == 2 * 512**3 / 1e-3
    assert kernels.multiply_speed(setting, "uint8") == 2 * 512**3 / 1e-4
    for size in profile_module.COPIED_BYTES:
        assert kernels.copy_speed(setting, size) == pytest.approx(1e10, rel=0.01)


def test_on_a_gpu_no_least_time_is_known():
    cuda = VerifyOptions(provider=Provider.CUDA)
    roofline = Roofline(cuda)
    assert roofline.of(MODELS / "pitch_cnn.onnx", Setting(Level.ALL, cuda)) is no_time
    assert roofline.limits() == {}


def test_the_speeds_of_this_machine_are_named():
    seconds = Roofline(CPU)
    assert seconds.limits() == {}
    least = seconds.of(MODELS / "pitch_cnn.onnx", Setting(Level.ALL, CPU))
    for length in (2**20, 3):
        least("any", details("Relu", [(length,)], [(length,)]))
    for dtype in ("float", "double", "int8"):
        assert kernels.multiply_speed(Setting(Level.ALL, CPU), dtype) > 0
    seconds.multiply_speeds["float"] = 1e9
    first, second, last = seconds.limits()
    assert (first, second) == ("bytes of a copy of 256 KiB", "bytes of a copy of 4096 KiB")
    assert last == "operations on float"
    assert min(seconds.limits().values()) > 0
