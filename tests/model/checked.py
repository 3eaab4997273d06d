"""Models over float vectors of four, and whether they are taken."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.check import checked

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
node = helper.make_node


def value(name, shape=(4,), dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes, initializers=(), inputs=("X",), outputs=("Y",), functions=(), opset=17, ir=8):
    """A model over float vectors of four; opset "l" is there for functions, "x" is foreign."""
    opsets = [helper.make_opsetid(*item) for item in (("", opset), ("l", 1), ("x", 1))]
    graph = helper.make_graph(
        nodes, "g", [value(n) for n in inputs], [value(n) for n in outputs], initializers
    )
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir, functions=functions)


def tensor(dims, dtype=FLOAT, name="W", **data):
    tensor_proto = TensorProto(name=name, data_type=dtype, dims=dims)
    for key, content in data.items():
        if key == "raw_data":
            tensor_proto.raw_data = content
        else:
            getattr(tensor_proto, key).extend(content)
    return tensor_proto


def branch(name, nodes, output, initializers=(), inputs=()):
    return helper.make_graph(nodes, name, [value(n) for n in inputs], [value(output)], initializers)


def if_node(then, other=None, output="Y", condition="c"):
    other = other or branch("else", [node("Neg", ["X"], ["e"])], "e")
    return node("If", [condition], [output], "if", then_branch=then, else_branch=other)


CONDITION = numpy_helper.from_array(np.array(True), "c")
SIN = [node("Sin", ["X"], ["Y"], "sin")]


def accepts(proto, folder=None):
    before = proto.SerializeToString(deterministic=True)
    checked(proto, folder)
    assert proto.SerializeToString(deterministic=True) == before


def refuses(proto, message, folder=None):
    with pytest.raises(InvalidModelError, match=message) as caught:
        checked(proto, folder)
    assert str(caught.value).isprintable()


def function(name, nodes, inputs=("a",), outputs=("b",)):
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]
    return helper.make_function("l", name, inputs, outputs, nodes, opsets)


CALL = [node("f", ["X"], ["Y"], domain="l")]
