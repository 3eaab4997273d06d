"""Put nodes into an order in which they can run, list what they read, group what is joined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from widthfold_onnx.model.graph.library import ir

T = TypeVar("T", bound=Hashable)


def nodes_of(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a graph, each after those whose outputs it reads itself."""
    done: set[ir.Node] = set()
    for node in graph:
        waiting = [node]
        while waiting:
            top = waiting[-1]
            sources = (value.producer() for value in top.inputs if value is not None)
            missing = [s for s in sources if s and s.graph is graph and s not in done]
            waiting.extend(missing)
            if not missing:
                waiting.pop()
                if top not in done:
                    done.add(top)
                    yield top


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node and the nodes of the graphs in it read."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            single = attribute.type == ir.AttributeType.GRAPH
            for body in [attribute.as_graph()] if single else attribute.as_graphs():
                for inner in ir.traversal.RecursiveGraphIterator(body):
                    yield from (value for value in inner.inputs if value is not None)


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
