"""Quantized convolutions in models: the new nodes, and the kernels that the runtime picks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.folding import fold_model
from tests.rewrite.quantized.convs import Case, run
from tests.rewrite.quantized.models import FOLD, LINE, optimized, qdq_chain
from tests.running import run as outputs
from widthfold_onnx.options import AxisName, FoldOptions


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_folded_convs_between_quantizers_become_the_kernel_of_integers(
    shared: bool, relu: bool, kind: type[np.integer], tmp_path: Path
) -> None:
    model = qdq_chain(shared=shared, relu=relu, kind=kind)
    folded, sites = fold_model(model, FOLD)
    assert [site.status for site in sites] == ["folded", "folded"]
    folded_kernels, kernels = optimized(folded, tmp_path), optimized(model, tmp_path)
    # Signed bytes that two nodes read stay signed, which this machine's runtime does not multiply.
    assert kernels.count("QLinearConv") == (0 if shared and kind is np.int8 else 2)
    for name in ("QLinearConv", "Conv", "FusedConv"):
        assert folded_kernels.count(name) == kernels.count(name)
    assert folded_kernels.count("DequantizeLinear") <= kernels.count("DequantizeLinear") + 1
    x = np.random.default_rng(5).normal(0, 30, (1, 3, 8, 12)).astype(np.float32)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        pairs = zip(outputs(model, x, level), outputs(folded, x, level), strict=True)
        for expected, actual in pairs:
            np.testing.assert_array_equal(actual, expected)


def test_a_chain_is_folded_once_and_moves_integers_only() -> None:
    folded, _ = fold_model(qdq_chain(), FOLD)
    nodes = list(folded.graph.node)
    assert [n.op_type for n in nodes].count("Transpose") == 2
    makers = {name: node for node in nodes for name in node.output}
    for node in nodes:
        if node.op_type == "Conv":
            assert {makers[name].op_type for name in node.input} == {"DequantizeLinear"}
        if node.op_type in ("Reshape", "Transpose") and node.input[0] in makers:
            assert makers[node.input[0]].op_type in ("QuantizeLinear", "Reshape", "Transpose")


def test_a_dequantizer_that_something_else_reads_stays() -> None:
    model = qdq_chain()
    model.graph.output.append(helper.make_tensor_value_info("xf", TensorProto.FLOAT, [None] * 4))
    folded, _ = fold_model(model, FOLD)
    assert any(list(node.output) == ["xf"] for node in folded.graph.node)
    x = np.random.default_rng(5).normal(0, 30, (1, 3, 8, 12)).astype(np.float32)
    pairs = [outputs(m, x) for m in (model, folded)]
    for expected, actual in zip(*pairs, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("read", [False, True], ids=["folded nodes", "something else"])
def test_a_dequantizer_that_stands_in_several_layouts_gives_its_name_to_one_node(
    read: bool,
) -> None:
    model = qdq_chain()
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{i}"
    if read:
        end = helper.make_tensor_value_info("xf", TensorProto.FLOAT, [None] * 4)
        model.graph.output.append(end)
    folded, _ = fold_model(model, FOLD)
    names = [node.name for node in folded.graph.node]
    assert len(set(names)) == len(names)
    outputs = {node.name: list(node.output) for node in folded.graph.node}
    # The node that stays keeps its name; if none stays, the node on packed integers has it.
    assert (outputs["DequantizeLinear_1"] == ["xf"]) is read


def test_integers_are_extended_by_their_zero_point() -> None:
    case = Case(op="QLinearConv", **LINE)
    folded, (site,) = fold_model(
        case.model(), FoldOptions(factor=3, axis=AxisName.WIDTH, ragged=True)
    )
    assert site.status == "folded"
    pad = next(node for node in folded.graph.node if node.op_type == "Pad")
    assert pad.input[2] == "xz"
    x = case.data()
    np.testing.assert_array_equal(run(folded, x), case.expected(x))


def test_what_is_there_once_stays_the_same_tensor() -> None:
    case = Case(op="QLinearConv", per_channel=False, **LINE)
    folded, _ = fold_model(case.model(), FOLD)
    node = next(node for node in folded.graph.node if node.op_type == "QLinearConv")
    assert [node.input[i] for i in (1, 2, 4, 5, 6, 7)] == ["xs", "xz", "ws", "wz", "ys", "yz"]


def test_a_dequantized_input_and_a_weight_of_floats_are_folded_in_floats() -> None:
    case = Case(op="QDQ Conv", per_channel=False, bias=False, **LINE)
    proto = case.model()
    maker = next(n for n in proto.graph.node if n.output[0] == "wf")
    proto.graph.node.remove(maker)
    numbers = case.constants()
    weight = (numbers["w"].astype(np.float32) - numbers["wz"]) * numbers["ws"]
    proto.graph.initializer.append(numpy_helper.from_array(weight, "wf"))
    folded, (site,) = fold_model(proto, FOLD)
    assert site.status == "folded"
    x = case.data()
    np.testing.assert_array_equal(run(folded, x), case.expected(x))


def test_zero_points_that_are_computed_are_passed_on() -> None:
    """A scale that is computed, as in models that are quantized dynamically."""
    rng = np.random.default_rng(1)
    weight = rng.integers(0, 256, (5, 3, 4)).astype(np.uint8)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("ConvInteger", ["q", "w", "z", "wz"], ["i"], "c", pads=[2, 1]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3, 19))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 3)],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.uint8(77), "wz")],
    )
    opset = helper.make_opsetid("", 13)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    folded, (site,) = fold_model(model, FoldOptions(factor=4, axis=AxisName.WIDTH, ragged=True))
    assert site.status == "folded"
    pad = next(node for node in folded.graph.node if node.op_type == "Pad")
    assert pad.input[2] == "z"
    x = rng.standard_normal((2, 3, 19)).astype(np.float32)
    np.testing.assert_array_equal(run(folded, x), run(model, x))
