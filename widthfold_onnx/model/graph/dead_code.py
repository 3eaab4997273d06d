"""Removes constants, and the nodes that compute them, when their last reader has gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from widthfold_onnx.model.graph.constants import Constant, computed_from
from widthfold_onnx.model.graph.library import ir
from widthfold_onnx.refusal import Refusal


def drop_unused(
    values: Iterable[ir.Value],
    constant: Callable[[ir.Value], Constant | Refusal],
) -> Iterator[ir.Graph]:
    """Remove constants that are no longer read, and the nodes that compute them from others.

    Args:
        values: the inputs of removed nodes.
        constant: the constant behind a value.

    Returns:
        The changed graphs, one for each removal.
    """
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value.uses() or value.is_graph_output() or value.is_graph_input():
            continue
        producer = value.producer()
        if producer is None and value.is_initializer() and isinstance(value.graph, ir.Graph):
            yield value.graph
            del value.graph.initializers[value.name or ""]
        elif producer is None or producer.graph is None:
            continue  # no constant that a node makes, or gone with another reader
        elif not isinstance(constant(value), Refusal):
            waiting += computed_from(value)
            graph = producer.graph
            assert isinstance(graph, ir.Graph)
            yield graph
            graph.remove(producer, safe=True)
