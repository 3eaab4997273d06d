"""A folded model as the fault planters see it: its Conv, the moves around it, their constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from widthfold_onnx.rewrite.record import FOLD_KEY, ORIGIN_KEY

Array = np.ndarray[Any, Any]


class Folded:
    """A copy of a folded model; planters change it in place."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = self.model.graph
        self.conv, *self.others = (n for n in self.graph.node if metadata(n, FOLD_KEY))
        self.before, self.after = line(self.graph, self.conv)
        self.chain = [*self.before, self.conv, *self.after]

    def moves(self, op_type: str) -> list[onnx.NodeProto]:
        """The moves of one operator, in order."""
        return [n for n in (*self.before, *self.after) if n.op_type == op_type]

    def tensor(self, name: str) -> Array:
        """A constant, as a copy that may be written."""
        return numpy_helper.to_array(self._initializer(name)).copy()

    def store(self, name: str, array: Array) -> None:
        """Replace a constant."""
        contiguous = np.ascontiguousarray(array)
        self._initializer(name).CopyFrom(numpy_helper.from_array(contiguous, name))

    def constant(self, array: Array, name: str) -> str:
        """Add a constant."""
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def change(self, index: int, alter: Callable[[Array], Array | None]) -> bool:
        """Alter the weight (1) or the bias (2) of the Conv; False if there is nothing to alter."""
        if index >= len(self.conv.input):
            return False
        array = self.tensor(self.conv.input[index])
        altered = alter(array.copy())
        if altered is None or altered.tobytes() == array.tobytes():
            return False
        self.store(self.conv.input[index], altered.astype(array.dtype))
        return True

    def insert(self, node: onnx.NodeProto, where: onnx.NodeProto) -> None:
        """Put a node with one input and one output in front of another and feed that from it."""
        node.input.insert(0, where.input[0])
        node.output.append("inserted")
        self.graph.node.insert(list(self.graph.node).index(where), node)
        where.input[0] = "inserted"

    def _initializer(self, name: str) -> onnx.TensorProto:
        return next(t for t in self.graph.initializer if t.name == name)


Fault = Callable[[Folded], bool]
"""Plants a fault; False where the model has no place for it."""


def line(
    graph: onnx.GraphProto, conv: onnx.NodeProto
) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    """The new nodes in a straight line before and behind a folded Conv."""
    new = [n for n in graph.node if metadata(n, ORIGIN_KEY)]
    makers = {n.output[0]: n for n in new}
    readers = {name: n for n in new for name in n.input}
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    node = conv
    while (maker := next((makers[n] for n in node.input if n in makers), None)) is not None:
        before.insert(0, maker)
        node = maker
    node = conv
    while (reader := readers.get(node.output[0])) is not None:
        after.append(reader)
        node = reader
    return before, after


def metadata(node: onnx.NodeProto, key: str) -> str:
    return next((e.value for e in node.metadata_props if e.key == key), "")


def attribute(node: onnx.NodeProto, name: str) -> list[int]:
    """A list of integers, empty if the node does not have it."""
    return next((list(a.ints) for a in node.attribute if a.name == name), [])


def put(node: onnx.NodeProto, name: str, value: int | float | str | Sequence[int] | None) -> None:
    """Set an attribute; None removes it."""
    others = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(others)
    if value is not None:
        node.attribute.append(helper.make_attribute(name, value))
