"""Walks every graph and every tensor of a model, at any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import TypeVar

import onnx
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)


def attribute_graphs(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that an attribute holds, whatever its declared type is."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs in the attributes of a node, in the order of the file."""
    found: list[onnx.GraphProto] = []
    for attribute in node.attribute:  # without a generator: this runs for every node, many times
        if attribute.HasField("g"):
            found.append(attribute.g)
        found.extend(attribute.graphs)
    return found


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield these nodes and those of all graphs in them; a node comes before its subgraphs'."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def model_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of a model, also of its local functions."""
    for body in (model.graph, *model.functions):
        yield from all_nodes(body.node)


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all graphs in it."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from all_graphs(inner)


def placed_graphs(graph: onnx.GraphProto, path: str = "") -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield a graph and all graphs in it, each with its path, see `body_path`."""
    yield path, graph
    for node in graph.node:
        for attribute in node.attribute:
            single = attribute.HasField("g")
            for i, body in enumerate(attribute_graphs(attribute)):
                yield from placed_graphs(
                    body, body_path(path, node, attribute.name, None if single else i)
                )


def body_path(path: str, node: onnx.NodeProto, attribute: str, index: int | None) -> str:
    """Name a subgraph by what leads to it: ``y/then_branch``, within the subgraph `path`.

    Args:
        path: of the graph that holds the node; "" for the main graph.
        node: the node that holds the subgraph; its first output names it.
        attribute: name of the attribute.
        index: position in a list of graphs; None where the attribute holds one.
    """
    owner = next((name for name in node.output if name), node.name)
    place = "" if index is None else f"[{index}]"
    return f"{path}/{owner}/{attribute}{place}".lstrip("/")


def retain(items: MutableSequence[M], is_kept: Callable[[M], bool]) -> None:
    """Keep some messages of a repeated field."""
    kept = [item for item in items if is_kept(item)]
    if len(kept) < len(items):
        del items[:]
        items.extend(kept)


def all_tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Yield every TensorProto in a message: initializers, attributes, parts of sparse tensors.

    Includes subgraphs, local functions with their attribute defaults, and training graphs.
    """
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.name in _HOLDERS:
            for item in [value] if isinstance(value, Message) else value:
                if isinstance(item, onnx.TensorProto):
                    yield item
                else:
                    yield from all_tensors(item)


_HOLDERS = frozenset(
    {
        *("AttributeProto", "FunctionProto", "GraphProto", "NodeProto", "SparseTensorProto"),
        *("TensorProto", "TrainingInfoProto"),
    }
)
"""The messages that are tensors or may hold some."""
