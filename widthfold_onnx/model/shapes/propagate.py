"""Infers the shapes of a skeleton, also where onnx's own inference stops or errs.

onnx propagates little integer data: Pad amounts that an exporter computes from constants and
known extents by Concat, Slice and Transpose stay unknown to it, so these are evaluated
(`model.shapes.small_constants`). And the output of STFT has no rank there unless the signal's
length is known, although only the number of frames depends on it.
"""

from __future__ import annotations

from collections import ChainMap

import onnx
from onnx import numpy_helper

from widthfold_onnx.model.proto.dims import Dims, shapes_of
from widthfold_onnx.model.proto.domain import is_default
from widthfold_onnx.model.proto.memory import memory_capped
from widthfold_onnx.model.proto.walk import all_graphs, all_nodes, subgraphs
from widthfold_onnx.model.shapes.conv_transpose import settle_transposed
from widthfold_onnx.model.shapes.inference import PROPAGATING, infer_shapes
from widthfold_onnx.model.shapes.small_constants import SmallConstants, stored_numbers

_MAX_PROPAGATED = 1_000_000  # elements of all vectors together
_MAX_GROWTH = 1 << 30  # by all Concats of all functions, one after the other
_PROPAGATION_BYTES = 256 << 20
ROUNDS = 4


def infer(outline: onnx.ModelProto) -> onnx.ModelProto:
    """Infer all shapes of a skeleton; evaluated constants are written into the skeleton itself.

    Args:
        outline: see `model.shapes.skeleton`.
    """
    # Below 4 an evaluated constant would have no type: an initializer had to be an input as well.
    outline.ir_version = max(outline.ir_version, 4)
    inferred = infer_shapes(outline)
    opset = next((entry.version for entry in outline.opset_import if not entry.domain), 1)
    bodies = (outline.graph, *outline.functions)
    propagates = any(n.op_type in PROPAGATING for body in bodies for n in all_nodes(body.node))
    for turn in range(ROUNDS):
        if propagates and _propagates_little(inferred):
            inferred = _propagated(outline)
        elif turn:
            inferred = infer_shapes(outline)
        if _settle(outline.graph, inferred.graph, ChainMap()):
            continue  # evaluation must not rest on wrong extents
        shapes = shapes_of(inferred.graph)
        found = SmallConstants(ChainMap(), ChainMap(), opset).run(outline.graph, inferred.graph)
        found += _fill_stft(outline.graph, shapes)
        if not found:
            break
    return inferred


def _settle(graph: onnx.GraphProto, inferred: onnx.GraphProto, outer: ChainMap[str, Dims]) -> int:
    """Correct what ConvTransposes return, in a graph and the graphs in it; return at how many."""
    shapes = outer.new_child(shapes_of(inferred))
    changed = 0
    for node, described in zip(graph.node, inferred.node, strict=True):
        changed += settle_transposed(node, graph, inferred, shapes)
        for body, outline in zip(subgraphs(node), subgraphs(described), strict=True):
            changed += _settle(body, outline, shapes)
    return changed


def _propagated(outline: onnx.ModelProto) -> onnx.ModelProto:
    try:
        with memory_capped(_PROPAGATION_BYTES + 20 * outline.ByteSize()):
            return infer_shapes(outline, data_prop=True)
    except MemoryError:
        return infer_shapes(outline)


def _propagates_little(inferred: onnx.ModelProto) -> bool:
    """Check whether data propagation stays small, as far as lengths are known.

    It holds each element of any vector as a message: a file of some hundred
    bytes, in which each Concat doubles the one before, would fill any memory.
    """
    total = 0
    lengths: dict[str, int] = {}
    for graph in all_graphs(inferred.graph):
        shapes = shapes_of(graph)
        lengths.update({n: d[0] for n, d in shapes.items() if len(d) == 1 and d[0] is not None})
        for node in graph.node:
            if node.op_type in PROPAGATING:
                total += sum(lengths.get(name, 0) for name in (*node.input, *node.output))
    growth = 1
    for function in inferred.functions:
        for node in all_nodes(function.node):
            if node.op_type == "Concat":
                growth = min(growth * max(len(node.input), 1), _MAX_GROWTH + 1)
    return total <= _MAX_PROPAGATED and growth <= _MAX_GROWTH


def _fill_stft(graph: onnx.GraphProto, shapes: dict[str, Dims]) -> int:
    """Describe STFT outputs as [batch, frames, bins, 2] (ONNX operator text, STFT-17)."""
    filled = 0
    transforms = [
        node for node in graph.node if is_default(node, "STFT") and node.output[0] not in shapes
    ]
    constants = stored_numbers(graph) if transforms else {}
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
