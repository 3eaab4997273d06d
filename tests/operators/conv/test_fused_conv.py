"""Models that ONNX Runtime's optimizer wrote: a FusedConv is folded, proved and measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the package made
import pytest
from onnx import helper, numpy_helper

from tests.folding import fold_model, optimize
from tests.rewrite.proved import assert_proved, proof
from tests.tuning.workloads.tool import run, workload_of
from widthfold_onnx.options import FoldOptions, VerifyOptions
from widthfold_onnx.tuning.workloads import model_in_form

ACTIVATIONS: dict[str, dict[str, float]] = {
    "Relu": {},
    "LeakyRelu": {"alpha": 0.25},
    "HardSigmoid": {"alpha": 0.25, "beta": 0.5},
}
OPTIONS = FoldOptions(factor=4)
SHAPE = [1, 3, 8, 16]


def fused(folder: Path, activation: str, op: str = "Conv") -> onnx.ModelProto:
    """Two layers with activations, as the optimizer leaves them."""
    rng = np.random.default_rng(7)
    shapes = {"w0": (4, 3, 3, 3), "b0": (4,), "w1": (2, 4, 3, 3), "b1": (2,)}
    attributes = ACTIVATIONS[activation]
    nodes = [
        helper.make_node(op, ["x", "w0", "b0"], ["c0"], "first", pads=[1] * 4),
        helper.make_node(activation, ["c0"], ["a0"], **attributes),
        helper.make_node(op, ["a0", "w1", "b1"], ["c1"], "second", pads=[1] * 4),
        helper.make_node(activation, ["c1"], ["y"], **attributes),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 2, 8, 16])],
        [
            numpy_helper.from_array(rng.integers(-3, 4, shape).astype(np.float32), name)
            for name, shape in shapes.items()
        ],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    written = onnx.load(folder / "optimized.onnx")
    assert [node.op_type for node in written.graph.node] == ["FusedConv"] * 2
    return written


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_the_optimizer_wrote_is_folded_and_proved(activation: str, tmp_path: Path) -> None:
    model = fused(tmp_path, activation)
    folded, sites = fold_model(model, OPTIONS)
    assert [(site.op, site.status) for site in sites] == [("FusedConv", "folded")] * 2
    x = np.random.default_rng(1).integers(-3, 4, SHAPE).astype(np.float32)
    np.testing.assert_array_equal(
        run(folded.SerializeToString(), x), run(model.SerializeToString(), x)
    )
    assert_proved(model, folded, 2)


def test_the_whole_pipeline_accepts_it(tmp_path: Path) -> None:
    fused(tmp_path, "LeakyRelu")
    report = optimize(
        tmp_path / "optimized.onnx", tmp_path / "out.onnx", OPTIONS, VerifyOptions(timing=False)
    )
    assert report.verification is not None
    assert report.verification.verdict == "pass"
    assert report.verification.proof.verdict == "equal"
    written = onnx.load(tmp_path / "out.onnx")
    assert [n.domain for n in written.graph.node if n.op_type == "FusedConv"] == [
        "com.microsoft"
    ] * 2


def test_a_result_without_an_inferred_type_is_proved() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[4,1,12] x) => (float[4,1,10] y) {
            c = com.microsoft.FusedConv <activation = "Relu", pads = [-2, 2]> (x, w)
            y = Neg (c)
        }"""
    model = onnx.parser.parse_model(text)
    weight = np.arange(1, 4, dtype=np.float32).reshape(1, 1, 3)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    # The Slice behind a ragged fold has a type, the original has none: onnx infers no negative pad.
    options = FoldOptions(factor=4, axis=2, ragged=True)
    assert_proved(model, fold_model(model, options)[0], 1)


def other_activation(node: onnx.NodeProto) -> None:
    next(a for a in node.attribute if a.name == "activation").s = b"Relu"


def other_slope(node: onnx.NodeProto) -> None:
    next(a for a in node.attribute if a.name == "activation_params").floats[0] *= 2


def no_activation(node: onnx.NodeProto) -> None:
    others = [a for a in node.attribute if not a.name.startswith("activation")]
    del node.attribute[:]
    node.attribute.extend(others)


def no_bias(node: onnx.NodeProto) -> None:
    del node.input[2:]


def added(node: onnx.NodeProto) -> None:
    node.input.append(node.input[0])


FAULTS = [other_activation, other_slope, no_activation, no_bias, added]


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault, tmp_path: Path) -> None:
    model = fused(tmp_path, "LeakyRelu")
    folded, _ = fold_model(model, OPTIONS)
    wrong = onnx.ModelProto.FromString(folded.SerializeToString())
    fault(next(node for node in wrong.graph.node if node.op_type == "FusedConv"))
    assert proof(model, wrong).verdict == "different"


def test_what_is_added_before_the_activation_is_left_alone(tmp_path: Path) -> None:
    model = fused(tmp_path, "Relu")
    second = model.graph.node[1]
    z = numpy_helper.from_array(np.ones([1, 2, 8, 16], np.float32), "z")
    model.graph.initializer.append(z)
    second.input.append("z")
    _, sites = fold_model(model, OPTIONS)
    assert [site.code for site in sites] == ["folded", "adds-a-tensor"]
    assert sites[1].reason == "it adds another tensor before its activation"


def test_its_forms_are_measured_with_the_activation(tmp_path: Path) -> None:
    model = fused(tmp_path, "Relu")
    del model.graph.node[1]
    model.graph.output[0].name = "a0"
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    workload = workload_of(model)
    x = np.random.default_rng(2).integers(-3, 4, SHAPE).astype(np.float32)
    expected = run(workload.model, x)
    assert (expected == 0).any()
    for form in workload.forms[:5]:
        layer = model_in_form(workload, form.form)
        assert layer is not None
        np.testing.assert_array_equal(run(layer, x), expected)
