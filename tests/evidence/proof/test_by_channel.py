"""What is written channel by channel is proved to be the original, and so are its folds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.evidence.mutants.proof import difference
from tests.plan.tool import conv
from tests.rewrite.channels import builder, by_channel
from widthfold_onnx import AxisName, FoldOptions, fold_model
from widthfold_onnx.evidence.proof.compare import prove_at_sizes
from widthfold_onnx.evidence.proof.program import program

BATCH = FoldOptions(factor=8, axis=AxisName.BATCH)

GEOMETRY = [
    {},
    {"bias": False},
    {"pads": [2, 0, 1, 3], "strides": [2, 3]},
    {"dilations": [2, 1]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 1]},
    {"dtype": np.float16},
]


@pytest.mark.parametrize("opset", [7, 13, 18])
@pytest.mark.parametrize("given", GEOMETRY)
def test_one_conv_is_equal(given: dict[str, object], opset: int) -> None:
    model = conv((8, 3, 7, 11), (2, 3, 3, 5), **given)
    model.opset_import[0].version = opset
    assert difference(model, by_channel(model)) == ""


def net() -> onnx.ModelProto:
    """Three Convs; channels are joined for a MaxPool in between, and split again."""
    g = builder(8, 3, 7, 11)
    bounds = np.array(-3, np.float32), np.array(4, np.float32)
    first = g.op("Clip", g.conv("x", 2, [3, 3]), *bounds)
    value = g.op("PRelu", g.conv(first, 2, [1, 5]), np.array([[[3]]], np.float32))
    value = g.op("Mul", g.op("Sub", first, value), np.array([2], np.float32))
    g.constants["k2_2"] = np.array([2, -1], np.float32)
    pooled = g.op("MaxPool", value, kernel_shape=[3, 1])
    return g.model([g.op("Relu", g.conv(pooled, 3, [3, 1]))])


def test_all_that_goes_along_is_equal_and_so_are_the_folds() -> None:
    model = net()
    written = by_channel(model)
    assert difference(model, written) == ""
    folded, lines = fold_model(written, BATCH)
    assert {line.status for line in lines} == {"folded"}
    assert difference(model, folded) == ""
    assert difference(by_channel(model, ["v2"]), folded) == ""


def test_weights_in_files_and_old_ir_versions(tmp_path: Path) -> None:
    model = conv((8, 3, 7, 11), (2, 3, 3, 5))
    model.ir_version, model.opset_import[0].version = 3, 8
    for tensor in model.graph.initializer:
        kind = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(kind)
    assert difference(model, by_channel(model)) == ""
    path = tmp_path / "model.onnx"
    onnx.save(net(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    stored = onnx.load(path, load_external_data=False)
    written = by_channel(stored, ["v0"], tmp_path)
    (proof,) = prove_at_sizes(program(stored, tmp_path), program(written, tmp_path), {}, {})
    assert proof.verdict == "equal"


def test_a_body_may_read_the_joined_channels_and_no_single_one() -> None:
    g = builder(8, 3, 7, 11)
    value = g.conv("x", 2, [3, 3])
    last = g.op("Relu", value)
    g.nodes.append(helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0))
    g.nodes.append(helper.make_node("Cast", ["most"], ["c"], to=TensorProto.BOOL))
    bodies = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, [value], [f"{op}_result"])],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_result", TensorProto.FLOAT, None)],
        )
        for name, op in (("then", "Abs"), ("else", "Neg"))
    }
    g.nodes.append(helper.make_node("If", ["c"], ["z"], "if", **bodies))
    model = g.model([last, "z"])
    written = by_channel(model)
    assert difference(model, written) == ""
    split = next(n for n in written.graph.node if n.op_type == "Relu").input[0]
    for attribute in next(n for n in written.graph.node if n.op_type == "If").attribute:
        attribute.g.node[0].input[0] = split
    assert difference(model, written)


@pytest.mark.parametrize("channels", [1, 2])
def test_results_that_change_places_are_found(channels: int) -> None:
    """Two values of the same shape, each under the name of the other."""
    g = builder(8, 3, 7, 11)
    names = [g.conv("x", channels, [3, 3]), g.conv("x", channels, [1, 3])]
    model = g.model(names)
    written = by_channel(model)
    assert difference(model, written) == ""
    for node in written.graph.node:
        if node.output[0] in names:
            node.output[0] = names[1 - names.index(node.output[0])]
    assert difference(model, written)


# ---------------------------------------------------------------- faults in what was folded


@pytest.fixture(scope="module")
def pair() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    return net(), fold_model(by_channel(net()), BATCH)[0]


def folded_conv(model: onnx.ModelProto, name: str = "conv2/channel_1_of_0") -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.name == name)


def one_weight(model: onnx.ModelProto) -> None:
    name = folded_conv(model).input[1]
    tensor = next(t for t in model.graph.initializer if t.name == name)
    array = onnx.numpy_helper.to_array(tensor).copy()
    array.flat[-1] += 1
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))


def weight_of_another(model: onnx.ModelProto) -> None:
    folded_conv(model).input[1] = folded_conv(model, "conv2/channel_1_of_1").input[1]


def sum_of_others(model: onnx.ModelProto) -> None:
    folded = next(n for n in model.graph.node if n.name.startswith("conv2/channel_1_"))
    total = next(n for n in model.graph.node if n.op_type == "Add" and folded.output[0] in n.input)
    total.input[1] = folded_conv(model, "conv2/channel_0_of_1").output[0]


def other_joining(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "Concat")
    node.input[0], node.input[1] = node.input[1], node.input[0]


@pytest.mark.parametrize("fault", [one_weight, weight_of_another, sum_of_others, other_joining])
def test_a_fault_in_what_was_folded_is_found(pair, fault: Callable) -> None:
    original, folded = pair
    changed = onnx.ModelProto.FromString(folded.SerializeToString())
    fault(changed)
    assert changed != folded
    assert difference(original, changed)


def test_what_nodes_say_of_themselves_is_no_part_of_the_proof(pair) -> None:
    original, folded = pair
    changed = onnx.ModelProto.FromString(folded.SerializeToString())
    for node in changed.graph.node:
        for entry in node.metadata_props:
            entry.value = "["
    assert changed != folded
    assert difference(original, changed) == ""
