"""The model without its large data, which the checker gets."""

import numpy as np
import onnx
from onnx import numpy_helper

from tests.model.checked import (
    CALL,
    CONDITION,
    accepts,
    branch,
    function,
    if_node,
    model,
    node,
    tensor,
    value,
)
from widthfold_onnx.model.check import skeleton


def test_the_skeleton_drops_large_data_and_keeps_shapes():
    large = numpy_helper.from_array(np.zeros((1000, 4), np.float32), "W")
    small = numpy_helper.from_array(np.array([-1], np.int64), "s")
    inner = [node("MatMul", ["W2", "X"], ["a"])]
    hidden = numpy_helper.from_array(np.zeros((500, 4), np.float32), "W2")
    constant = node("Constant", [], ["K"], value=large)
    then = branch("then", inner, "a", [hidden])
    other = branch("else", [node("MatMul", ["K", "X"], ["e"])], "e")
    then.output[0].CopyFrom(value("a", [500]))
    other.output[0].CopyFrom(value("e", [1000]))
    nodes = [node("Reshape", ["u", "s"], ["Y"]), constant, node("MatMul", ["W", "X"], ["t"])]
    nodes.append(if_node(then, other, "v"))
    nodes.append(node("Concat", ["t", "v"], ["u"], axis=0))
    proto = model(nodes, [large, small, CONDITION])
    proto.graph.output[0].CopyFrom(value("Y", ["n"]))
    accepts(proto)
    light = skeleton(proto)
    assert light.ByteSize() < 2000 < proto.ByteSize()
    onnx.checker.check_model(light)
    assert [n.op_type for n in light.graph.node] == [
        "Constant",
        "MatMul",
        "If",
        "Concat",
        "Reshape",
    ]
    assert {tensor.name: list(tensor.dims) for tensor in light.graph.initializer} == {
        "W": [0],
        "s": [1],
        CONDITION.name: [],
    }
    assert list(light.graph.node[0].attribute[0].t.dims) == [0]
    branches = {a.name: a.g for n in light.graph.node for a in n.attribute if a.HasField("g")}
    assert list(branches["then_branch"].initializer[0].dims) == [0]
    assert [v.name for v in light.graph.input] == ["X"]


def test_the_skeleton_does_not_touch_the_data():
    large = tensor([1 << 20], raw_data=bytes(4 << 20))
    proto = model([node("Sin", ["W"], ["Y"])], [large], inputs=())
    proto.graph.output[0].CopyFrom(value("Y", [1 << 20]))
    light = skeleton(proto)
    assert light.ByteSize() < 500


def test_large_constants_of_functions_do_not_reach_the_checker():
    constant = node("Constant", [], ["k"], value=tensor([4000], raw_data=bytes(16000)))
    proto = model(CALL, functions=[function("f", [constant, node("Add", ["a", "k"], ["b"])])])
    accepts(proto)
    assert skeleton(proto).ByteSize() < 1000
