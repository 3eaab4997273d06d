"""A copy of a model that the graph library can read, for models that hold what it cannot.

onnx_ir has no sparse attributes, no map types and no strings that are not UTF-8. Linking nodes
needs none of them: what is left out here stays in the model itself, whose messages are written.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import AttributeProto

from widthfold_onnx.model.walk import all_graphs, all_nodes

_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
_NUMBERS = (AttributeProto.INT, AttributeProto.INTS, AttributeProto.STRING)
_NEEDED = {(op, kind) for op in ("Conv", "ConvTranspose") for kind in _NUMBERS} | {
    ("Constant", AttributeProto.TENSOR),
}


def reduced(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model; only attributes that a rewrite reads are left, and only types of tensors."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _reduce_nodes(copy.graph.node)
    for graph in all_graphs(copy.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if not value.type.HasField("tensor_type"):
                value.ClearField("type")
    for function in copy.functions:
        _reduce_nodes(function.node)
        function.ClearField("value_info")
    return copy


def _reduce_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in all_nodes(nodes):
        kept = [a for a in node.attribute if a.type in _GRAPHS or (node.op_type, a.type) in _NEEDED]
        if len(kept) < len(node.attribute):
            copies = [AttributeProto.FromString(a.SerializeToString()) for a in kept]
            del node.attribute[:]
            node.attribute.extend(copies)
