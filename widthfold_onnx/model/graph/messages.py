"""Links the graphs of ONNX messages, and writes changed graphs back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.graph.library import ir
from widthfold_onnx.model.graph.reduced import reduced
from widthfold_onnx.model.graph.traversal import bodies
from widthfold_onnx.model.proto.walk import all_graphs, body_path, initializers, retain, subgraphs
from widthfold_onnx.text import printable

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


def write_back(graph: ir.Graph, message: onnx.GraphProto) -> None:
    """Write a changed graph into the message it was read from."""
    nodes = [message_of(node) for node in graph]
    written = {name for node in message.node for name in node.output}
    del message.node[:]
    message.node.extend(nodes)
    before = initializers(message).keys()
    gone = before - set(graph.initializers)
    added = [v for name, v in graph.initializers.items() if name not in before]
    retain(message.initializer, lambda tensor: tensor.name not in gone)
    retain(message.sparse_initializer, lambda tensor: tensor.values.name not in gone)
    gone |= written - {name for node in nodes for name in node.output}
    retain(message.value_info, lambda value: value.name not in gone)
    for value in added:
        assert value.const_value is not None
        message.initializer.append(ir.serde.serialize_tensor(value.const_value))


def sparse_of(value: ir.Value) -> onnx.SparseTensorProto | None:
    """Return the message of a sparse initializer, None for other values."""
    return value.meta.get(_SPARSE)


def message_of(node: ir.Node) -> onnx.NodeProto:
    """Return a node as ONNX message: the message that was read, if it is unchanged."""
    source: onnx.NodeProto | None = node.meta.get(_SOURCE)
    return ir.serde.serialize_node(node) if source is None else source
