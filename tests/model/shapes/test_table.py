"""Extents that are known, in every scope."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.model.shapes.shaped import parsed, shape
from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.graph.document import Document
from widthfold_onnx.model.proto.dims import dims_of
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.operators import OPERATORS


def test_symbols_missing_and_negative_dims_are_open():
    model = parsed("(float[N, 2, 8] x) => (float[a, b, c] y) { y = Relu (x) }")
    dim = model.graph.input[0].type.tensor_type.shape.dim
    dim.add()
    dim.add(dim_value=-1)
    dim.add(dim_value=0)
    assert dims_of(model.graph.input[0]) == (None, 2, 8, None, None, 0)
    assert shape(model, "x") == (None, 2, 8, None, None, 0)


def test_what_is_not_known():
    model = parsed(
        "(float[N] x) => (float[1] y) { u = com.acme.Frob (x)\n y = Relu (x) }",
    )
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    assert shape(model, "u") is None
    assert shape(model, "nobody") is None
    assert shape(model, "x", "no/such/body") is None


NESTED = """(float[1, 2, 8] x, bool flag) => (float[1, 2, 8] y) {
  y = If (flag) <
    then_branch = then () => (float[1, 2, 8] t) {
      k = Transpose (x)
      t = If (flag) <
        then_branch = deep () => (float[1, 2, 8] d) { k2 = Concat <axis = 0> (x, x)
          d = Relu (x) },
        else_branch = deeper () => (float[1, 2, 8] u) { k2 = Concat <axis = 1> (x, x)
          u = Relu (x) }
      >
    },
    else_branch = else () => (float[1, 2, 8] e) { k = Concat <axis = 2> (x, x)
      e = Relu (x) }
  >
}"""


def test_bodies_have_their_own_values_and_see_those_around():
    table = ShapeTable(parsed(NESTED), {})
    assert table.get("y/then_branch", "k") == (8, 2, 1)
    assert table.get("y/else_branch", "k") == (1, 2, 16)
    assert table.get("y/then_branch/t/then_branch", "k2") == (2, 2, 8)
    assert table.get("y/then_branch/t/else_branch", "k2") == (1, 4, 8)
    assert table.get("y/then_branch/t/else_branch", "k") == (8, 2, 1)
    assert table.get("y/then_branch/t/else_branch", "x") == (1, 2, 8)
    assert table.get("", "k") is None
    assert table.get("y/else_branch", "k2") is None


def test_paths_are_those_of_the_linked_graph():
    model = parsed(NESTED)
    model.graph.node[0].output.insert(0, "")  # the first output may be left out
    body = onnx.parser.parse_graph(
        "g () => (float[1] q) { q = Constant <value_floats = [1.0]> () }"
    )
    other = onnx.GraphProto()
    other.CopyFrom(body)
    other.node[0].output[0] = other.output[0].name = "r"
    node = helper.make_node("Many", [], ["m"], domain="com.acme", gs=[body, other], one=body)
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    model.graph.node.append(node)
    table = ShapeTable(model, {})
    paths = {scope.path for scope in Document(model, None, OPERATORS).scopes}
    assert paths >= {"", "y/then_branch/t/else_branch", "m/gs[0]", "m/gs[1]", "m/one"}
    assert table.get("m/gs[1]", "r") == (1,)
    assert table.get("m/gs[0]", "r") is None


def test_large_weights_have_a_shape_in_every_scope():
    model = parsed(NESTED, big=np.zeros((64, 32), np.float32))
    inner = model.graph.node[0].attribute[0].g
    inner.initializer.append(numpy_helper.from_array(np.zeros((99, 33), np.float32), "inside"))
    table = ShapeTable(model, {})
    assert table.get("y/else_branch", "big") == (64, 32)
    assert table.get("y/then_branch", "inside") == (99, 33)
    assert table.get("y/else_branch", "inside") is None


OPEN = "(float[N, 2, h, 8] x, float[N, 2, h, 8] z) => (float[a, b, c, d] y) { y = Add (x, z) }"


def test_a_pin_fixes_what_follows_and_leaves_the_model_alone():
    model = parsed(OPEN)
    before = model.SerializeToString()
    assert shape(model, "y")[1:] == (2, None, 8)
    assert shape(model, "y", x=(3, 2, 5, 8), z=(3, 2, 5, 8)) == (3, 2, 5, 8)
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("name", "expected", "says"),
    [
        ("q", (3, 2, 5, 8), "no input q; inputs are x, z"),
        ("x", (3, 2, 5), "x is declared"),
        ("x", (3, 2, 5, 8, 1), "x is declared"),
        ("x", (3, 4, 5, 8), "x is declared"),
        ("w", (1,), "no input w"),
    ],
)
def test_a_pin_that_does_not_fit(name, expected, says):
    model = parsed(OPEN, w=np.zeros(1, np.float32))
    with pytest.raises(UsageError, match=says) as caught:
        shape(model, "y", **{name: expected})
    assert "\n" not in str(caught.value)


def test_a_large_constant_is_no_input_to_pin():
    model = parsed(OPEN, w=np.zeros(1000, np.float32))
    with pytest.raises(UsageError, match="inputs are x, z"):
        shape(model, "y", w=(1000,))


def test_a_pin_of_an_input_without_a_shape():
    model = parsed("(float[N] x) => (float[a, b] y) { y = Relu (x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert shape(model, "x") is None
    assert shape(model, "x", x=(4, 5)) == (4, 5)


@pytest.mark.parametrize(
    "text",
    [
        "(float[1, 2] x) => (int64[1, 2] y) { y = Relu (x) }",
        "(float[1, 2] x) => (float[3, 4] y) { y = Relu (x) }",
        "(int32[1, 2] x) => (float[1, 2] y) { y = Add (x, f) }",
        "(float[1, 2] x) => (float[1, 2] y) { y = Concat <axis = 7> (x, x) }",
        "(float[1, 2] x) => (float[1, 2] y) { y = Transpose <perm = [0, 5]> (x) }",
        "(float[1, 2] x) => (float[1, 2] y) { y = Conv (x, f) }",
        "(float[1, 2] x) => (float[1, 2] y) { y = Relu (x, x, x) }",
        "(float[1, 2] x) => (float[1, 2] y) { y = NoSuchOperator (x) }",
        "(bool c) => (float[1] y) { y = If (c) }",
        "(bool c) => (float[1] y) { y = If (c) <then_branch = g () => () {}> }",
    ],
)
def test_contradictions_leave_shapes_unknown_and_nothing_breaks(text):
    model = parsed(text, f=np.float32([1, 2]))
    table = ShapeTable(model, {})
    assert table.get("", "x") == (None if "bool" in text else (1, 2))
    assert table.get("", "f") == (2,)
