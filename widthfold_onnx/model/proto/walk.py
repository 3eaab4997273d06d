"""Walks every graph and every tensor of a model, at any depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx


def attribute_graphs(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that an attribute holds, whatever its declared type is."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def attribute_tensors(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors of an attribute: dense ones, then both parts of sparse ones."""
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    if attribute.HasField("sparse_tensor"):
        yield from _sparse_tensors([attribute.sparse_tensor])
    yield from _sparse_tensors(attribute.sparse_tensors)


def _sparse_tensors(tensors: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    for sparse in tensors:
        yield sparse.values
        yield sparse.indices


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


def all_initializers(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the dense initializers of a graph and of all graphs in it."""
    for inner in all_graphs(graph):
        yield from inner.initializer


def all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every TensorProto of a model: initializers, sparse parts and attributes.

    Includes subgraphs, local functions with their attribute defaults, and training graphs.
    """
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from node_tensors(function.node)
        yield from _attributes_tensors(function.attribute_proto)
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _sparse_tensors(graph.sparse_initializer)
    yield from node_tensors(graph.node)


def node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    """Yield every TensorProto in the attributes of nodes, and in the graphs there."""
    for node in nodes:
        yield from _attributes_tensors(node.attribute)


def _attributes_tensors(
    attributes: Iterable[onnx.AttributeProto],
) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        yield from attribute_tensors(attribute)
        for graph in attribute_graphs(attribute):
            yield from _graph_tensors(graph)
