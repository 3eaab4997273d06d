"""Marks of what an earlier run assumed take knowledge away, and nothing else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.model.test_shapes import parsed, shape
from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.assumed import ASSUMED_KEY
from widthfold_onnx.model.shapes import ShapeTable
from widthfold_onnx.model.walk import all_graphs


def marked(model: onnx.ModelProto, output: str, text: str) -> onnx.ModelProto:
    """The model with a mark on the node of the main graph or a body that returns a value."""
    (node,) = [n for g in all_graphs(model.graph) for n in g.node if n.output[0] == output]
    node.metadata_props.add(key=ASSUMED_KEY, value=text)
    return model


STATED = "(float[N, 2, 15] x) => (float[a, b, c, d] y) { r = Reshape (x, s)\n y = Relu (r) }"


def test_marked_extents_are_open_unless_sizes_are_assumed():
    model = marked(parsed(STATED, s=np.array([0, 2, 3, 5])), "r", "[2, 3]")
    before = model.SerializeToString()
    for name in ("r", "y"):
        assert shape(model, name) == (None, 2, None, None)
        assert shape(model, name, x=(7, 2, 15)) == (7, 2, 3, 5)
    assert ShapeTable(model, {}).element("", "y") == TensorProto.FLOAT
    assert model.SerializeToString() == before


def test_marked_extents_are_open_in_bodies():
    text = """(float[3, 5] x, bool flag) => (float[a, b] y) { y = If (flag) <
      then_branch = then () => (float[c, d] t) { t = Relu (x) },
      else_branch = other () => (float[e, f] o) { k = Transpose (x)\n o = Relu (k) }> }"""
    assert shape(parsed(text), "o", "y/else_branch") == (5, 3)
    assert shape(marked(parsed(text), "k", "[0]"), "o", "y/else_branch") == (None, 3)


def test_a_mark_of_no_axis_tells_nothing():
    model = marked(parsed(STATED, s=np.array([0, 2, 3, 5])), "r", "[7]")
    assert shape(model, "x") == (None, 2, 15)


@pytest.mark.parametrize(
    "text", ["", "2", "[-1]", "[64]", '["2"]', "[1e3]", "[" + "9" * 40 + "]", "\x00"]
)
def test_a_mark_that_cannot_be_read_is_refused(text: str):
    model = marked(parsed(STATED, s=np.array([0, 2, 3, 5])), "r", text)
    with pytest.raises(InvalidModelError, match=r"^widthfold\.assumed cannot be read: "):
        shape(model, "y")
