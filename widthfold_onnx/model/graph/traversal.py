"""List the graphs in a node, the values that it reads and the values of a graph; group by links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from widthfold_onnx.model.graph.library import ir

T = TypeVar("T", bound=Hashable)


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs in the attributes of a node."""
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type is ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node and the nodes of the graphs in it read."""
    inside = (inner for body in bodies(node) for inner in body.all_nodes())
    yield from (value for each in (node, *inside) for value in each.inputs if value is not None)


def values_of(graph: ir.Graph | ir.Function) -> Iterator[ir.Value]:
    """Yield the values of a graph: its inputs, its initializers and the outputs of its nodes."""
    yield from graph.inputs
    if isinstance(graph, ir.Graph):
        yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def connected(joined: Iterable[Sequence[T]]) -> Iterator[list[T]]:
    """Yield the groups of items that are joined, directly or through others."""
    near: dict[T, list[Sequence[T]]] = defaultdict(list)
    for items in joined:
        for item in items:
            near[item].append(items)
    seen: set[T] = set()
    for start in near:
        if start not in seen:
            seen.add(start)
            group = [start]
            for item in group:  # the loop appends to it
                fresh = dict.fromkeys(i for items in near[item] for i in items if i not in seen)
                seen.update(fresh)
                group += fresh
            yield group
