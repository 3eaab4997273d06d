"""Collects the names that a model uses: values, nodes, and all that training reads or sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from widthfold_onnx.model.graph.library import ir
from widthfold_onnx.model.graph.messages import Scope
from widthfold_onnx.model.proto.walk import all_graphs


def names_of(scopes: Sequence[Scope]) -> set[str]:
    """Return the names of all values and nodes; those of training are `named_by_training`."""
    names = {name for scope in scopes for name in _names_in(scope.graph)}
    return names | {v.name for s in scopes if s.proto for v in s.proto.value_info}


def named_by_training(proto: onnx.ModelProto) -> Iterator[str]:
    """Yield names that training reads, sets or declares: all graphs together are one name space."""
    for training in proto.training_info:
        for binding in (*training.initialization_binding, *training.update_binding):
            yield from (binding.key, binding.value)
        for outermost in (training.initialization, training.algorithm):
            for graph in all_graphs(outermost):
                yield from (v.name for v in (*graph.input, *graph.output, *graph.initializer))
                for node in graph.node:
                    yield from (node.name, *node.input, *node.output)


def _names_in(graph: ir.Graph | ir.Function) -> Iterator[str]:
    for node in graph:
        yield node.name or ""
        yield from (value.name or "" for value in node.outputs)
    yield from (value.name or "" for value in graph.inputs)
    if isinstance(graph, ir.Graph):
        yield from graph.initializers
