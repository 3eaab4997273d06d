"""Collects the names that a model uses: values, nodes, and all that training reads or sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from widthfold_onnx.model.graph.library import ir
from widthfold_onnx.model.graph.messages import Scope
from widthfold_onnx.model.proto.walk import all_graphs


class Names:
    """The names that a model uses; new names must differ from them.

    Attributes:
        trained: names of values that training reads or sets, and its own.

    Args:
        proto: the model.
        scopes: its graphs.
    """

    def __init__(self, proto: onnx.ModelProto, scopes: Sequence[Scope]) -> None:
        self.trained = frozenset(_named_by_training(proto))
        self._used = {n for scope in scopes for n in _names_in(scope.graph)}
        self._used |= {v.name for s in scopes if s.proto for v in s.proto.value_info}
        self._used |= self.trained

    def fresh(self, base: str) -> str:
        """Return a name that no value or node of the model has yet: `base`, or `base`_2, ..."""
        name, count = base, 1
        while name in self._used:
            count += 1
            name = f"{base}_{count}"
        self._used.add(name)
        return name


def _named_by_training(proto: onnx.ModelProto) -> Iterator[str]:
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
