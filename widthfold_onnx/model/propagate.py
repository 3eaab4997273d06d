"""Shape inference of a skeleton, past the places where onnx's own stops or errs.

onnx propagates little integer data: Pad amounts that an exporter computes from constants and
known extents by Concat, Slice and Transpose stay unknown to it. So such small constants are
evaluated here, with onnx's reference implementation, one node at a time and only where the inferred
size is small.
And the output of STFT has no rank there unless the signal's length is known, although only the
number of frames depends on it.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from widthfold_onnx.model.memory import memory_capped
from widthfold_onnx.model.transposed import settle_transposed
from widthfold_onnx.model.walk import all_graphs, all_nodes, subgraphs

SMALL_ELEMENTS = 256
MAX_EVALUATIONS = 10_000
_MAX_PROPAGATED = 1_000_000  # elements of all vectors together
_MAX_GROWTH = 1 << 30  # by all Concats of all functions, one after the other
_PROPAGATION_BYTES = 256 << 20
_PROPAGATING = {
    *("Add", "Cast", "Concat", "Gather", "Mul", "Shape", "Size", "Slice", "Squeeze", "Sub"),
    "Unsqueeze",
}
ROUNDS = 4
# Deterministic, without state, and fast on small tensors.
SHAPE_ARITHMETIC = {
    *("Add", "Cast", "Concat", "ConstantOfShape", "Div", "Expand", "Gather", "Identity", "Mul"),
    *("Neg", "Reshape", "Slice", "Squeeze", "Sub", "Transpose", "Unsqueeze"),
}

MADE_BY_SHAPE = {"ConstantOfShape": 0, "Expand": 1}
"""Which input says how large the output is."""

Array = npt.NDArray[np.generic]
Dims = tuple[int | None, ...]


def infer(outline: onnx.ModelProto) -> onnx.ModelProto:
    """Infer all shapes of a skeleton; the skeleton itself gains what was evaluated.

    Args:
        outline: see `model.skeleton`.
    """
    # Below, what is evaluated would have no type: an initializer had to be an input as well.
    outline.ir_version = max(outline.ir_version, 4)
    inferred = _inferred(outline, data_prop=False)
    bodies = (outline.graph, *outline.functions)
    propagates = any(n.op_type in _PROPAGATING for body in bodies for n in all_nodes(body.node))
    for turn in range(ROUNDS):
        if propagates and _propagates_little(inferred):
            inferred = _propagated(outline)
        elif turn:
            inferred = _inferred(outline, data_prop=False)
        if _settle(outline.graph, inferred.graph, ChainMap()):
            continue  # what is evaluated must not rest on wrong extents
        shapes = shapes_of(inferred.graph)
        found = _Evaluation(ChainMap(), ChainMap()).run(outline.graph, inferred.graph)
        found += _fill_stft(outline.graph, shapes)
        if not found:
            break
    return inferred


def _settle(graph: onnx.GraphProto, inferred: onnx.GraphProto, outer: ChainMap[str, Dims]) -> int:
    """Settle what ConvTransposes return, in a graph and the graphs in it; return at how many."""
    shapes = outer.new_child(shapes_of(inferred))
    changed = 0
    for node, described in zip(graph.node, inferred.node, strict=True):
        changed += settle_transposed(node, graph, inferred, shapes)
        for body, outline in zip(subgraphs(node), subgraphs(described), strict=True):
            changed += _settle(body, outline, shapes)
    return changed


def _inferred(outline: onnx.ModelProto, *, data_prop: bool) -> onnx.ModelProto:
    try:
        # Not strict: one node that cannot be inferred must not hide all others.
        return onnx.shape_inference.infer_shapes(outline, data_prop=data_prop)
    except onnx.shape_inference.InferenceError:
        return outline


def _propagated(outline: onnx.ModelProto) -> onnx.ModelProto:
    try:
        with memory_capped(_PROPAGATION_BYTES + 20 * outline.ByteSize()):
            return _inferred(outline, data_prop=True)
    except MemoryError:
        return _inferred(outline, data_prop=False)


def _propagates_little(inferred: onnx.ModelProto) -> bool:
    """Whether data propagation stays small, as far as lengths are known.

    It holds each element of a vector as a message, whatever the vector is: a file of some hundred
    bytes, in which each Concat doubles the one before, would fill any memory.
    """
    total = 0
    lengths: dict[str, int] = {}
    for graph in all_graphs(inferred.graph):
        shapes = shapes_of(graph)
        lengths.update({n: d[0] for n, d in shapes.items() if len(d) == 1 and d[0] is not None})
        for node in graph.node:
            if node.op_type in _PROPAGATING:
                total += sum(lengths.get(name, 0) for name in (*node.input, *node.output))
    growth = 1
    for function in inferred.functions:
        for node in all_nodes(function.node):
            if node.op_type == "Concat":
                growth = min(growth * max(len(node.input), 1), _MAX_GROWTH + 1)
    return total <= _MAX_PROPAGATED and growth <= _MAX_GROWTH


def shapes_of(graph: onnx.GraphProto) -> dict[str, Dims]:
    """Known shapes by value name."""
    described = (*graph.input, *graph.output, *graph.value_info)
    table = {v.name: dims for v in described if (dims := dims_of(v)) is not None}
    table.update({t.name: tuple(t.dims) for t in graph.initializer})
    return table


def elements_of(graph: onnx.GraphProto) -> dict[str, int]:
    """Element types by value name, where they are said."""
    described = (*graph.input, *graph.output, *graph.value_info)
    table = {v.name: v.type.tensor_type.elem_type for v in described}
    table.update({t.name: t.data_type for t in graph.initializer})
    return {name: kind for name, kind in table.items() if kind}


def dims_of(value: onnx.ValueInfoProto) -> Dims | None:
    """Declared extents; a symbol, a missing or a negative dimension is None."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None
        for d in value.type.tensor_type.shape.dim
    )


@dataclass
class _Evaluation:
    """What is known of a model where one of its graphs is looked at.

    Attributes:
        shapes: by value name, inner graphs first.
        constants: numbers by value name, inner graphs first.
        tried: how many nodes were evaluated so far.
    """

    shapes: ChainMap[str, Dims]
    constants: ChainMap[str, onnx.TensorProto]
    tried: int = 0

    def run(self, graph: onnx.GraphProto, inferred: onnx.GraphProto) -> int:
        """Replace nodes of small constants by their results; return how many.

        Args:
            graph: where they are replaced, and in the graphs inside of its nodes.
            inferred: the same graph with shapes.
        """
        self.shapes.maps.insert(0, shapes_of(inferred))
        self.constants.maps.insert(0, _constants(graph))
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
        if _is(node, "Shape"):
            return _extents(node, self.shapes)
        if not _is_small_constant(node, self.constants, self.shapes):
            return None
        self.tried += 1
        return _run(node, self.constants, self.shapes[node.output[0]])


def _extents(node: onnx.NodeProto, shapes: Mapping[str, Dims]) -> Array | None:
    """What a Shape node gives, where all that it gives is known."""
    dims = shapes.get(node.input[0])
    if dims is None:
        return None
    # Indices count as those of a slice do (ONNX operator text, Shape-15).
    bounds = {a.name: a.i for a in node.attribute}
    wanted = dims[bounds.get("start", 0) : bounds.get("end", len(dims))]
    return None if None in wanted else np.array(wanted, np.int64)


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Numbers that stand in the graph, by value name."""
    known = {t.name: t for t in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute if _is(node, "Constant") else ():
            if attribute.HasField("t"):
                known[node.output[0]] = attribute.t
    return {name: t for name, t in known.items() if t.data_type != onnx.TensorProto.STRING}


def _is(node: onnx.NodeProto, op_type: str) -> bool:
    return node.op_type == op_type and node.domain in ("", "ai.onnx")


def _is_small_constant(
    node: onnx.NodeProto, known: Mapping[str, onnx.TensorProto], shapes: Mapping[str, Dims]
) -> bool:
    if node.op_type not in SHAPE_ARITHMETIC or node.domain not in ("", "ai.onnx"):
        return False
    if len(node.output) != 1 or not all(name in known for name in node.input if name):
        return False
    if node.op_type in MADE_BY_SHAPE:
        # What the model declares of the output is no bound; what will be made is.
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


def _run(node: onnx.NodeProto, known: Mapping[str, onnx.TensorProto], shape: Dims) -> Array | None:
    feeds = {name: numpy_helper.to_array(known[name]) for name in node.input if name}
    try:
        (result,) = ReferenceEvaluator(node).run(None, feeds)
    except Exception:
        # The evaluator raises whatever numpy raises on nonsense; then the value stays unknown.
        return None
    array = np.asarray(result)
    # The evaluator takes the newest form of an operator; inference takes the model's.
    return array if array.shape == shape else None


def _fill_stft(graph: onnx.GraphProto, shapes: dict[str, Dims]) -> int:
    """Describe STFT outputs as [batch, frames, bins, 2] (ONNX operator text, STFT-17)."""
    filled = 0
    transforms = [node for node in graph.node if _is(node, "STFT") and node.output[0] not in shapes]
    constants = _constants(graph) if transforms else {}
    for node in transforms:
        if len(node.input) < 3:
            continue
        signal, window = shapes.get(node.input[0]), shapes.get(node.input[2])
        length = window[0] if window else None
        if len(node.input) > 3 and node.input[3] in constants:
            lengths = numpy_helper.to_array(constants[node.input[3]])
            length = int(lengths.item()) if lengths.size == 1 else None
        if not signal or length is None:
            continue
        onesided = next((a.i for a in node.attribute if a.name == "onesided"), 1)
        dims = [signal[0], None, length // 2 + 1 if onesided else length, 2]
        described = onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, dims)
        graph.value_info.append(described)
        filled += 1
    return filled
