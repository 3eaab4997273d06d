"""Link the graphs of ONNX messages, name their nodes, and write changed graphs back.

Graphs are linked from a reduced copy of the model. onnx_ir has no sparse tensors, no map types and
no strings that are not UTF-8. onnx 1.17 sets every key of external data as an attribute of an
object, which a key such as `__class__` breaks. Linking nodes needs none of them. The model itself,
whose messages are written, keeps all parts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx
from onnx import AttributeProto

from widthfold_onnx.errors import InvalidModelError, note_swallowed
from widthfold_onnx.model.library import ir
from widthfold_onnx.model.proto.scope import is_text
from widthfold_onnx.model.proto.walk import (
    all_graphs,
    all_nodes,
    all_tensors,
    body_path,
    copy_of,
    initializers,
    retain,
    subgraphs,
)
from widthfold_onnx.text import printable


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs in the attributes of a node."""
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type is ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node and the nodes of the graphs in it read."""
    inner_nodes = (inner for body in bodies(node) for inner in body.all_nodes())
    for reader in (node, *inner_nodes):
        yield from (value for value in reader.inputs if value is not None)


def values_of(graph: ir.Graph | ir.Function) -> Iterator[ir.Value]:
    """Yield the values of a graph: its inputs, its initializers and the outputs of its nodes."""
    yield from graph.inputs
    if isinstance(graph, ir.Graph):
        yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


# The library warns of fields that it drops; they stay in the messages here.
logging.getLogger("onnx_ir").addHandler(logging.NullHandler())
_SOURCE = "widthfold.source"  # key in Node.meta: the NodeProto that the node was read from
_SPARSE = "widthfold.sparse"  # key in Value.meta: the SparseTensorProto of a sparse initializer


@dataclass(frozen=True)
class Scope:
    """A graph of the model: the main one, a body of If/Loop/Scan, or a local function.

    Attributes:
        path: "" for the main graph; else the outputs and attributes that lead to it, e.g.
            ``y/then_branch``.
        graph: the linked graph.
        proto: the message it was read from; None for a function, which is never written.
    """

    path: str
    graph: ir.Graph | ir.Function
    proto: onnx.GraphProto | None


def linked(proto: onnx.ModelProto) -> ir.Model:
    """Link the graphs of a model.

    Raises:
        InvalidModelError: the model uses something that the graph library cannot read.
    """
    sparse = any(graph.sparse_initializer for graph in all_graphs(proto.graph))
    # The library has no common base class of its errors.
    try:
        return ir.from_proto(reduced(proto) if sparse else proto)
    except Exception:
        note_swallowed("the model is read without what the graph library lacks")
        try:
            return ir.from_proto(reduced(proto))
        except Exception as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            raise InvalidModelError(f"cannot be represented: {printable(str(cause))}") from error


def scopes_of(model: ir.Model, proto: onnx.ModelProto) -> Iterator[Scope]:
    """Yield all graphs of a model and its functions; each node remembers its message."""
    stack = [Scope("", model.graph, proto.graph)]
    while stack:
        scope = stack.pop()
        yield scope
        assert scope.proto is not None and isinstance(scope.graph, ir.Graph)
        for sparse in scope.proto.sparse_initializer:
            scope.graph.initializers[sparse.values.name].meta[_SPARSE] = sparse
        for node, message in zip(scope.graph, scope.proto.node, strict=True):
            node.meta[_SOURCE] = message
            for (place, body), graph in zip(
                subgraphs(message.attribute), bodies(node), strict=True
            ):
                stack.append(Scope(body_path(scope.path, message, place), graph, body))
    for function in model.functions.values():
        yield Scope(f"function {function.domain}:{function.name}", function, None)


class NodeName(NamedTuple):
    """The name of a node: the path of its graph ("" for the main graph), and its name there."""

    graph: str
    node: str

    def __str__(self) -> str:
        """Return the name for messages."""
        return f"{self.graph}/{self.node}" if self.graph else self.node

    def lies_in_branch_of(self, output: str) -> bool:
        """Check whether the node lies in a branch of the If with this first output."""
        branches = [f"/{output}/{place}/" for place in ("then_branch", "else_branch")]
        return any(branch in f"/{self.graph}/" for branch in branches)


def names_of(scopes: Sequence[Scope]) -> set[str]:
    """Return the names of all values and nodes, but for training (`named_by_training`)."""
    names = {value.name or "" for scope in scopes for value in values_of(scope.graph)}
    names |= {node.name or "" for scope in scopes for node in scope.graph}
    return names | {v.name for s in scopes if s.proto for v in s.proto.value_info}


def shown_name(node: ir.Node, output: str | None = None) -> str:
    """Return a node's name for reports; without one, its operator and `output` or first output."""
    first = node.outputs[0].name if node.outputs else ""
    return node.name or f"{node.op_type} -> {output or first}"


def named_by_training(proto: onnx.ModelProto) -> Iterator[str]:
    """Yield the names that training reads, sets or declares; they share the model's name space."""
    for training in proto.training_info:
        for binding in (*training.initialization_binding, *training.update_binding):
            yield from (binding.key, binding.value)
        for outermost in (training.initialization, training.algorithm):
            for graph in all_graphs(outermost):
                yield from (v.name for v in (*graph.input, *graph.output, *graph.initializer))
                for node in graph.node:
                    yield from (node.name, *node.input, *node.output)


def write_back(graph: ir.Graph, message: onnx.GraphProto) -> None:
    """Write a changed graph into the message it was read from."""
    nodes = [message_of(node) for node in graph]
    old_outputs = {name for node in message.node for name in node.output}
    del message.node[:]
    message.node.extend(nodes)
    old_names = initializers(message).keys()
    removed_names = old_names - set(graph.initializers)
    new_values = [v for name, v in graph.initializers.items() if name not in old_names]
    retain(message.initializer, lambda tensor: tensor.name not in removed_names)
    retain(message.sparse_initializer, lambda tensor: tensor.values.name not in removed_names)
    removed_names |= old_outputs - {name for node in nodes for name in node.output}
    retain(message.value_info, lambda value: value.name not in removed_names)
    for value in new_values:
        assert value.const_value is not None
        message.initializer.append(ir.serde.serialize_tensor(value.const_value))


def sparse_of(value: ir.Value) -> onnx.SparseTensorProto | None:
    """Return the message of a sparse initializer, None for other values."""
    return value.meta.get(_SPARSE)


def message_of(node: ir.Node) -> onnx.NodeProto:
    """Return a node as ONNX message: the message that was read, if it is unchanged."""
    source: onnx.NodeProto | None = node.meta.get(_SOURCE)
    return ir.serde.serialize_node(node) if source is None else source


_UNREADABLE = (
    AttributeProto.SPARSE_TENSOR,
    AttributeProto.SPARSE_TENSORS,
    AttributeProto.TYPE_PROTO,
    AttributeProto.TYPE_PROTOS,
)
_LOCATING = ("location", "offset", "length")
"""Keys of external data that say where the bytes are."""


def reduced(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model without the parts that onnx_ir cannot read.

    A dense initializer without data takes the place of a sparse one.
    """
    copy = copy_of(model)
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
