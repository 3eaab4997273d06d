"""Which Convs may be written channel by channel, and which ops go with them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.plan.tool import conv
from tests.rewrite.channels import builder
from tests.rewrite.graphs import Builder
from widthfold_onnx.model.graph import Document, Graph
from widthfold_onnx.rules.by_channel import MAX_PARTS, is_single, members


def single(model: onnx.ModelProto) -> list[str]:
    document = Document(model, None)
    return [node.name or "" for node in document.scopes[0].graph if is_single(document, node)]


def inside(model: onnx.ModelProto) -> dict[str, int]:
    """Names of the nodes that are computed channel by channel, and their channels."""
    document = Document(model, None)
    graph = document.scopes[0].graph
    assert isinstance(graph, Graph)
    convs = [node for node in graph if is_single(document, node)]
    return {node.name or "": n for node, n in members(document, graph, convs).items()}


@pytest.mark.parametrize(
    ("shape", "weight", "more"),
    [
        ((8, 3, 7, 11), (2, 3, 3, 3), {}),
        ((8, 3, 7, 11), (2, 3, 3, 3), {"bias": False}),
        (("N", 1, 7, 11), (5, 1, 1, 3), {"strides": [2, 1]}),
        ((8, 8, 7, 11), (8, 8, 1, 1), {}),
        ((8, 1, 7, 11), (MAX_PARTS, 1, 3, 1), {"dtype": np.float16}),
    ],
)
def test_a_small_conv_of_one_group(shape, weight, more) -> None:
    assert single(conv(shape, weight, **more)) == ["conv"]


@pytest.mark.parametrize(
    ("shape", "weight", "more"),
    [
        ((8, 4, 7, 11), (2, 2, 3, 3), {"group": 2}),
        ((8, 5, 7, 11), (13, 5, 3, 3), {}),  # one part more than allowed
        ((8, 3, 11), (2, 3, 3), {}),
        ((8, 3, 5, 7, 11), (2, 3, 3, 3, 3), {}),
        ((8, 3, 7, 11), (3, 2, 3, 3), {"op": "ConvTranspose"}),
    ],
)
def test_other_convs_are_none(shape, weight, more) -> None:
    assert single(conv(shape, weight, **more)) == []


@pytest.mark.parametrize("computed", ["w", "b"])
def test_a_weight_or_bias_that_is_computed_is_none(computed: str) -> None:
    model = conv((8, 3, 7, 11), (2, 3, 3, 3))
    (tensor,) = (t for t in model.graph.initializer if t.name == computed)
    model.graph.initializer.remove(tensor)
    model.graph.input.append(
        helper.make_tensor_value_info(computed, TensorProto.FLOAT, tensor.dims)
    )
    assert single(model) == []


def test_a_conv_of_another_domain_is_none() -> None:
    model = conv((8, 3, 7, 11), (2, 3, 3, 3))
    model.graph.node[0].domain = "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    assert single(model) == []


def scalar(value: float, rank: int = 0) -> np.ndarray:
    return np.full((1,) * rank, value, np.float32)


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("Relu", [], {}),
        ("LeakyRelu", [], {"alpha": 0.25}),
        ("Clip", [scalar(-2), scalar(3)], {}),
        ("Clip", ["", scalar(3)], {}),
        ("Add", [scalar(5)], {}),
        ("Mul", [scalar(3, 4)], {}),
        ("PRelu", [scalar(0.5, 3)], {}),
        ("Max", [scalar(1), scalar(2, 1), scalar(-1, 2)], {}),
    ],
)
def test_what_treats_every_element_alone_goes_along(op, operands, attributes) -> None:
    g = builder()
    value = g.op(op, g.conv("x", 2, [3, 3]), *operands, **attributes)
    assert inside(g.model([g.conv(value, 5, [1, 3])])) == {
        "conv0": 2,
        f"{op.lower()}1": 2,
        "conv2": 5,
    }


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("BatchNormalization", [np.arange(1, 3, dtype=np.float32)] * 4, {}),
        ("Mul", [np.ones((2, 1, 1), np.float32)], {}),
        ("PRelu", [np.ones((2, 1, 1), np.float32)], {}),
        ("Add", [np.ones((1, 1, 7, 11), np.float32)], {}),
        ("Add", [scalar(3, 5)], {}),  # a tensor of five axes
        ("MaxPool", [], {"kernel_shape": [1, 1]}),
        ("Softmax", [], {"axis": 1}),
        ("Dropout", [], {}),
    ],
)
def test_every_other_op_ends_it(op, operands, attributes) -> None:
    g = builder()
    value = g.op(op, g.conv("x", 2, [3, 3]), *operands, **attributes)
    assert inside(g.model([g.op("Relu", value)])) == {"conv0": 2}


def residual(channels: int) -> onnx.ModelProto:
    g = builder()
    one, other = g.conv("x", 5, [3, 3]), g.conv("x", channels, [1, 3])
    return g.model([g.op("Relu", g.op("Add", one, other))])


def test_a_sum_of_as_many_channels_goes_along_and_one_of_others_does_not() -> None:
    assert inside(residual(5)) == {"conv0": 5, "conv1": 5, "add2": 5, "relu3": 5}
    assert inside(residual(1)) == {"conv0": 5, "conv1": 1}


def test_a_sum_with_a_natural_tensor_ends_it() -> None:
    g = builder()
    pooled = g.op("MaxPool", "x", kernel_shape=[1, 1])
    assert inside(g.model([g.op("Add", g.conv("x", 3, [3, 3]), pooled)])) == {"conv1": 3}


def test_an_op_before_the_first_conv_stays() -> None:
    g = builder()
    assert inside(g.model([g.conv(g.op("Relu", "x"), 2, [3, 3])])) == {"conv1": 2}


def old_clip(g: Builder, value: str) -> str:
    return g.op("Clip", value, min=-2.0, max=3.0)


@pytest.mark.parametrize(("opset", "along"), [(6, False), (7, True), (13, True)])
def test_broadcasting_of_before_opset_7_is_not_trusted(opset: int, along: bool) -> None:
    g = builder()
    value = g.conv("x", 2, [3, 3])
    clipped = old_clip(g, value) if opset < 11 else g.op("Clip", value, scalar(-2), scalar(3))
    assert inside(g.model([clipped], opset)) == {"conv0": 2, **({"clip1": 2} if along else {})}


def test_a_weight_that_nodes_make_of_constants_is_constant() -> None:
    model = conv((8, 3, 7, 11), (2, 3, 3, 3), bias=False)
    (tensor,) = model.graph.initializer
    made = helper.make_node(
        "Constant", [], ["w"], value=numpy_helper.from_array(numpy_helper.to_array(tensor), "w")
    )
    model.graph.initializer.remove(tensor)
    model.graph.node.insert(0, made)
    assert single(model) == ["conv"]
