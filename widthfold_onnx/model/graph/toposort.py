"""Puts nodes into an order in which they can run, and lists what they read."""

from __future__ import annotations

from collections.abc import Iterator

from widthfold_onnx.model.graph.library import ir


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
