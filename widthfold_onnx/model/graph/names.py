"""Collects the names that a model uses, and names its nodes for plans and reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import onnx

from widthfold_onnx.model.graph.library import ir
from widthfold_onnx.model.graph.messages import Scope, values_of
from widthfold_onnx.model.proto.walk import all_graphs


class NodeName(NamedTuple):
    """Name a node: the path of its graph ("" for the main graph), and its name there."""

    graph: str
    node: str

    def __str__(self) -> str:
        """Return the name for messages."""
        return f"{self.graph}/{self.node}" if self.graph else self.node


def names_of(scopes: Sequence[Scope]) -> set[str]:
    """Return the names of all values and nodes; `named_by_training` returns names of training."""
    names = {value.name or "" for scope in scopes for value in values_of(scope.graph)}
    names |= {node.name or "" for scope in scopes for node in scope.graph}
    return names | {v.name for s in scopes if s.proto for v in s.proto.value_info}


def shown_name(node: ir.Node, output: str | None = None) -> str:
    """Return the name of a node for reports; of a nameless one its operator and first output.

    Args:
        node: the node.
        output: name of the output, if it is another one than the node's first.
    """
    return node.name or f"{node.op_type} -> {output or node.outputs[0].name}"


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
