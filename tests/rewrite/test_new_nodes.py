"""New nodes as each operator set defines them, run by the runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.running import run
from widthfold_onnx.algebra.packing import Reshape, ShiftedSum, Transpose
from widthfold_onnx.model.document import Document
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.rewrite.new_nodes import Series, SharedConstants, take_over

SHAPE = (2, 5, 6)
X = np.arange(60, dtype=np.float32).reshape(SHAPE)


def document(opset: int) -> Document:
    """A model of one Neg, which is replaced."""
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"], "neg", doc_string="words")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "c", "l"])],
    )
    opsets = [helper.make_opsetid("", opset)]
    return Document(helper.make_model(graph, opset_imports=opsets, ir_version=8), None, OPERATORS)


def series(linked: Document) -> Series:
    (node,) = linked.main
    return Series(linked, node.inputs[0], node, "y")


def result(linked: Document, new: Series) -> tuple[np.ndarray, list[str]]:
    """Run the nodes in the place of the Neg; return their output and their names."""
    (node,) = linked.main
    take_over(node, new.nodes[-1])
    linked.replace(linked.main, {node: new.nodes}, {node.outputs[0]: new.value})
    model = linked.finish()
    onnx.checker.check_model(model)
    (output,) = run(model, {"x": X})
    return output, [node.name for node in model.graph.node]


@pytest.mark.parametrize("opset", [9, 10, 11, 13, 18])
def test_pads_and_slices(opset: int) -> None:
    linked = document(opset)
    new = series(linked)
    new.extend({1: 2, 2: 1}, 3, None)
    new.cut({2: 4, 1: -3})
    output, names = result(linked, new)
    padded = np.pad(X, [(0, 0), (0, 2), (0, 1)])
    np.testing.assert_array_equal(output, padded[:, :-3, :4])
    assert names == ["neg/widthfold/extend", "neg"]


@pytest.mark.parametrize("opset", [5, 13])
def test_moves_copy_or_infer_what_they_do_not_know(opset: int) -> None:
    linked = document(opset)
    new = series(linked)
    new.append_moves(
        [
            Reshape(3, (None, None, 2, 3), (True, False, False, False)),
            Transpose((0, 2, 1, 3), (None, None, 2, 3)),
            Reshape(4, (2, 2, 15), (True, True, False)),
        ],
        "fold",
    )
    output, names = result(linked, new)
    np.testing.assert_array_equal(
        output, X.reshape(2, 5, 2, 3).transpose(0, 2, 1, 3).reshape(2, 2, 15)
    )
    assert names == ["neg/widthfold/fold_reshape", "neg/widthfold/fold_transpose", "neg"]


@pytest.mark.parametrize("opset", [10, 13])
def test_results_of_taps_are_shifted_and_added(opset: int) -> None:
    linked = document(opset)
    new = series(linked)
    pads = ((1, 0), (0, 1), (-1, 2))
    new.append_moves([ShiftedSum(rank=3, channels=2, pads=pads)], "unfold")
    output, _ = result(linked, new)
    parts = [X[:, :, 0:2], X[:, :, 2:4], X[:, 1:, 4:6]]  # the pad of -1 cuts a position
    positions = [(max(begin, 0), end) for begin, end in pads]
    expected = sum(
        np.pad(part, [(0, 0), pad, (0, 0)]) for part, pad in zip(parts, positions, strict=True)
    )
    np.testing.assert_array_equal(output, expected)


def test_equal_constants_are_added_once_for_each_key() -> None:
    linked = document(13)
    constants = SharedConstants(linked)
    array = np.ones(3, np.float32)
    first = constants.add(array, "one", linked.main)
    assert constants.add(array.copy(), "another", linked.main) is first
    assert constants.add(array, "one", linked.main, sharing_key="elsewhere") is not first
    assert constants.add(array.astype(np.int32), "one", linked.main) is not first
    assert constants.add(array.reshape(3, 1), "one", linked.main) is not first
    zero = constants.add(np.zeros(1, np.float32), "zero", linked.main)
    assert constants.add(-np.zeros(1, np.float32), "zero", linked.main) is not zero


def test_a_replacement_takes_name_and_words_and_keeps_its_own_metadata() -> None:
    linked = document(13)
    (node,) = linked.main
    node.metadata_props.update({"a": "old", "b": "old"})
    new = linked.new_node("Relu", [node.inputs[0]], {}, name="new", metadata={"b": "new"})
    take_over(node, new)
    assert (new.name, new.doc_string) == ("neg", "words")
    assert dict(new.metadata_props) == {"a": "old", "b": "new"}
