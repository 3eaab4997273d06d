"""Shape inference of a skeleton, past two places where onnx's own stops.

onnx propagates little integer data: Pad amounts that an exporter computes from constants by
Concat, Slice and Transpose stay unknown to it. So such small constants are evaluated here, with
onnx's reference implementation, one node at a time and only where the inferred size is small.
And the output of STFT has no rank there unless the signal's length is known, although only the
number of frames depends on it.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

SMALL_ELEMENTS = 256
MAX_EVALUATIONS = 10_000
ROUNDS = 4
# Deterministic, without state, and fast on small tensors.
SHAPE_ARITHMETIC = {
    *("Add", "Cast", "Concat", "ConstantOfShape", "Div", "Expand", "Gather", "Identity", "Mul"),
    *("Neg", "Reshape", "Slice", "Squeeze", "Sub", "Transpose", "Unsqueeze"),
}

Array = npt.NDArray[np.generic]
Dims = tuple[int | None, ...]


def infer(outline: onnx.ModelProto) -> onnx.ModelProto:
    """Infer all shapes of a skeleton; the skeleton itself gains what was evaluated.

    Args:
        outline: see `model.skeleton`.
    """
    inferred = outline
    for _ in range(ROUNDS):
        # Not strict: one node that cannot be inferred must not hide all others.
        inferred = onnx.shape_inference.infer_shapes(outline, data_prop=True)
        shapes = shapes_of(inferred.graph)
        found = _evaluate(outline.graph, shapes) + _fill_stft(outline.graph, shapes)
        if not found:
            break
    return inferred


def shapes_of(graph: onnx.GraphProto) -> dict[str, Dims]:
    """Known shapes by value name."""
    described = (*graph.input, *graph.output, *graph.value_info)
    table = {v.name: dims for v in described if (dims := dims_of(v)) is not None}
    table.update({t.name: tuple(t.dims) for t in graph.initializer})
    return table


def dims_of(value: onnx.ValueInfoProto) -> Dims | None:
    """Declared extents; a symbol, a missing or a negative dimension is None."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None
        for d in value.type.tensor_type.shape.dim
    )


def _evaluate(graph: onnx.GraphProto, shapes: dict[str, Dims]) -> int:
    """Replace nodes of small constants by their results; return how many."""
    known = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            known[node.output[0]] = node.attribute[0].t
    kept: list[onnx.NodeProto] = []
    results: list[onnx.TensorProto] = []
    for node in graph.node:
        result = None
        if len(results) < MAX_EVALUATIONS and _is_small_constant(node, known, shapes):
            result = _run(node, known)
        if result is None:
            kept.append(node)
        else:
            tensor = numpy_helper.from_array(result, node.output[0])
            known[tensor.name] = tensor
            results.append(tensor)
    if results:
        del graph.node[:]
        graph.node.extend(kept)
        graph.initializer.extend(results)
    return len(results)


def _is_small_constant(
    node: onnx.NodeProto, known: dict[str, onnx.TensorProto], shapes: dict[str, Dims]
) -> bool:
    if node.op_type not in SHAPE_ARITHMETIC or node.domain not in ("", "ai.onnx"):
        return False
    if len(node.output) != 1 or not all(name in known for name in node.input if name):
        return False
    sizes = [shapes.get(node.output[0]), *(tuple(known[n].dims) for n in node.input if n)]
    return all(
        dims is not None
        and None not in dims
        and math.prod(d for d in dims if d is not None) <= SMALL_ELEMENTS
        for dims in sizes
    )


def _run(node: onnx.NodeProto, known: dict[str, onnx.TensorProto]) -> Array | None:
    feeds = {name: numpy_helper.to_array(known[name]) for name in node.input if name}
    try:
        (result,) = ReferenceEvaluator(node).run(None, feeds)
    except Exception:
        # The evaluator raises whatever numpy raises on nonsense; then the value stays unknown.
        return None
    return np.asarray(result)


def _fill_stft(graph: onnx.GraphProto, shapes: dict[str, Dims]) -> int:
    """Describe STFT outputs as [batch, frames, bins, 2] (ONNX operator text, STFT-17)."""
    filled = 0
    constants = {t.name: t for t in graph.initializer}
    constants |= {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant"}
    for node in graph.node:
        if node.op_type != "STFT" or node.output[0] in shapes or len(node.input) < 3:
            continue
        signal, window = shapes.get(node.input[0]), shapes.get(node.input[2])
        length = window[0] if window else None
        if len(node.input) > 3 and node.input[3] in constants:
            length = int(numpy_helper.to_array(constants[node.input[3]]))
        if signal is None or length is None:
            continue
        onesided = next((a.i for a in node.attribute if a.name == "onesided"), 1)
        dims = [signal[0], None, length // 2 + 1 if onesided else length, 2]
        described = onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, dims)
        graph.value_info.append(described)
        filled += 1
    return filled
