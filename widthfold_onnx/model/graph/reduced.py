"""Copies a model without the parts that the graph library cannot read.

onnx_ir has no sparse tensors, no map types and no strings that are not UTF-8. onnx 1.17 sets every
key of external data as an attribute of an object, which a key such as `__class__` breaks. Linking
nodes needs none of them: the parts left out stay in the model itself, whose messages are written.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import AttributeProto

from widthfold_onnx.model.proto.scope import is_text
from widthfold_onnx.model.proto.walk import all_graphs, all_nodes, all_tensors, retain

_UNREADABLE = (
    AttributeProto.SPARSE_TENSOR,
    AttributeProto.SPARSE_TENSORS,
    AttributeProto.TYPE_PROTO,
    AttributeProto.TYPE_PROTOS,
)
_LOCATING = ("location", "offset", "length")
"""Keys of external data that say where the bytes are."""


def reduced(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model without such parts; a dense initializer without data replaces a sparse one."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _reduce_nodes(copy.graph.node)
    for graph in all_graphs(copy.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if not value.type.HasField("tensor_type"):
                value.ClearField("type")
        for sparse in graph.sparse_initializer:
            graph.initializer.add(
                name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims
            )
        graph.ClearField("sparse_initializer")
    for function in copy.functions:
        _reduce_nodes(function.node)
        function.ClearField("value_info")
    for tensor in all_tensors(copy):
        retain(tensor.external_data, lambda entry: entry.key in _LOCATING)
    return copy


def _reduce_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in all_nodes(nodes):
        retain(node.attribute, _is_readable)


def _is_readable(attribute: AttributeProto) -> bool:
    is_known = attribute.type not in _UNREADABLE
    return is_known and all(map(is_text, (attribute.s, *attribute.strings)))
