"""Evaluates small constants that an exporter computes from constants and known extents.

One node runs at a time (`model.proto.constant_folding`), only where the inferred size is small.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.model.proto.constant_folding import SHAPE_ARITHMETIC, SMALL_ELEMENTS, run_node
from widthfold_onnx.model.proto.dims import Dims, shapes_of
from widthfold_onnx.model.proto.domain import is_default
from widthfold_onnx.model.proto.walk import subgraphs

MAX_EVALUATIONS = 10_000

MADE_BY_SHAPE = {"ConstantOfShape": 0, "Expand": 1}
"""Index of the input that holds the shape of the output."""


@dataclass
class SmallConstants:
    """Shapes and constants that are known in one graph of a model.

    Attributes:
        shapes: by value name, inner graphs first.
        constants: numbers by value name, inner graphs first.
        opset: of the default domain.
        tried: how many nodes were evaluated so far.
    """

    shapes: ChainMap[str, Dims]
    constants: ChainMap[str, onnx.TensorProto]
    opset: int
    tried: int = 0

    def run(self, graph: onnx.GraphProto, inferred: onnx.GraphProto) -> int:
        """Replace nodes of small constants by their results; return how many.

        Args:
            graph: the graph; nodes in its subgraphs are replaced as well.
            inferred: the same graph with shapes.
        """
        self.shapes.maps.insert(0, shapes_of(inferred))
        self.constants.maps.insert(0, stored_numbers(graph))
        kept: list[onnx.NodeProto] = []
        results: list[onnx.TensorProto] = []
        found = 0
        for node, described in zip(graph.node, inferred.node, strict=True):
            result = self._result(node)
            if result is not None:
                tensor = numpy_helper.from_array(result, node.output[0])
                self.constants[tensor.name] = tensor
                results.append(tensor)
                continue
            kept.append(node)
            for body, outline in zip(subgraphs(node), subgraphs(described), strict=True):
                found += self.run(body, outline)
        if results:
            del graph.node[:]
            graph.node.extend(kept)
            graph.initializer.extend(results)
        self.shapes.maps.pop(0)
        self.constants.maps.pop(0)
        return found + len(results)

    def _result(self, node: onnx.NodeProto) -> Array | None:
        if self.tried >= MAX_EVALUATIONS:
            return None
        if is_default(node, "Shape"):
            return _extents(node, self.shapes)
        if not _is_small_constant(node, self.constants, self.shapes):
            return None
        self.tried += 1
        return self._run(node)

    def _run(self, node: onnx.NodeProto) -> Array | None:
        known = self.constants
        inputs = [numpy_helper.to_array(known[name]) if name else None for name in node.input]
        result = run_node(node, inputs, self.opset)
        # Inference found another shape where the node is invalid; then the value stays unknown.
        return (
            result if result is not None and result.shape == self.shapes[node.output[0]] else None
        )


def _extents(node: onnx.NodeProto, shapes: Mapping[str, Dims]) -> Array | None:
    """Return the value of a Shape node, None if an extent in it is unknown."""
    dims = shapes.get(node.input[0])
    if dims is None:
        return None
    # Indices count as those of a slice do (ONNX operator text, Shape-15).
    bounds = {a.name: a.i for a in node.attribute}
    wanted = dims[bounds.get("start", 0) : bounds.get("end", len(dims))]
    return None if None in wanted else np.array(wanted, np.int64)


def stored_numbers(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the numbers that are stored in the graph, by value name."""
    known = {t.name: t for t in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute if is_default(node, "Constant") else ():
            if attribute.HasField("t"):
                known[node.output[0]] = attribute.t
    return {name: t for name, t in known.items() if t.data_type != onnx.TensorProto.STRING}


def _is_small_constant(
    node: onnx.NodeProto, known: Mapping[str, onnx.TensorProto], shapes: Mapping[str, Dims]
) -> bool:
    if not is_default(node, *SHAPE_ARITHMETIC):
        return False
    if len(node.output) != 1 or not all(name in known for name in node.input if name):
        return False
    if node.op_type in MADE_BY_SHAPE:
        # The declared size of the output is no bound; the size that will be computed is.
        wanted = numpy_helper.to_array(known[node.input[MADE_BY_SHAPE[node.op_type]]])
        if not 0 <= math.prod(int(n) for n in wanted.ravel()) <= SMALL_ELEMENTS:
            return False
    sizes = [shapes.get(node.output[0]), *(tuple(known[n].dims) for n in node.input if n)]
    return all(
        dims is not None
        and None not in dims
        and math.prod(d for d in dims if d is not None) <= SMALL_ELEMENTS
        for dims in sizes
    )
