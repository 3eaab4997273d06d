"""Faults of an op that a region of packed tensors carries."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import numpy_helper

Model = onnx.ModelProto


def find(rewritten: Model, op: str, which: int = 0) -> onnx.NodeProto:
    return [node for node in rewritten.graph.node if node.op_type == op][which]


def constant(change: Callable[[np.ndarray], object], op: str, index: int) -> Callable:
    """Change the numbers of a constant that a carried op reads."""

    def mutant(rewritten: Model) -> None:
        name = find(rewritten, op).input[index]
        tensor = next(t for t in rewritten.graph.initializer if t.name == name)
        array = numpy_helper.to_array(tensor).copy()
        change(array)
        tensor.CopyFrom(numpy_helper.from_array(array, name))

    return mutant
