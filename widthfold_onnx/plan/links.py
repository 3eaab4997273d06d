"""Which layers could share a folded tensor: what passes a fold on between them.

All tensors that are joined by ops of the table of `rules.carry` are in one state, or all are
natural: they are one link between the layers that make them and the layers that read them. The
table is asked for the kind of op only; whether an op really takes a state, the rewriting decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from widthfold_onnx.model.domain import is_default
from widthfold_onnx.model.graph import Document, Graph, Node, Value, graph_of
from widthfold_onnx.model.order import nodes_of
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.carry import CARRY


@dataclass(frozen=True, order=True)
class Link:
    """Tensors that are in one state.

    Attributes:
        makers: a subject for every layer that returns one.
        readers: a subject for every layer that reads one.
        made: whether something else makes one, naturally.
        read: whether something else reads one, naturally.
    """

    makers: tuple[str, ...]
    readers: tuple[str, ...]
    made: bool
    read: bool


def links(document: Document, subjects: Mapping[Node, str]) -> list[Link]:
    """What lies between layers, before the first and behind the last ones.

    Args:
        document: the model.
        subjects: of every node that is a layer.
    """
    graphs = dict.fromkeys(map(graph_of, subjects))
    return sorted(link for graph in graphs for link in _links(document, graph, subjects))


def _links(document: Document, graph: Graph, subjects: Mapping[Node, str]) -> Iterator[Link]:
    """The links of one graph."""
    nodes = list(nodes_of(graph))
    layers = dict.fromkeys(node for node in nodes if node in subjects)
    carried = dict.fromkeys(
        node for node in nodes if node not in subjects and is_default(node, *CARRY)
    )
    joined = [[value] for node in layers for value in _data(document, node)]
    joined += [list(_data(document, node)) for node in carried]
    for group in _connected(joined):
        origins = [value.producer() for value in group]
        uses = [(node, index) for value in group for node, index in value.uses()]
        makers = [subjects[node] for node in origins if node is not None and node in subjects]
        readers = [subjects[node] for node, _ in uses if node in subjects]
        if makers or readers:
            known = [node for node, _ in uses if node in carried or node in layers]
            yield Link(
                tuple(sorted(makers)),
                tuple(sorted(readers)),
                any(node not in layers and node not in carried for node in origins),
                len(known) < len(uses) or any(map(document.is_fixed, group)),
            )


def _connected(joined: Sequence[Sequence[Value]]) -> Iterator[list[Value]]:
    """Values that are joined, directly or by others."""
    near: dict[Value, list[Sequence[Value]]] = defaultdict(list)
    for values in joined:
        for value in values:
            near[value].append(values)
    seen: set[Value] = set()
    for start in near:
        if start not in seen:
            seen.add(start)
            group = [start]
            for value in group:  # which grows meanwhile
                fresh = dict.fromkeys(v for vs in near[value] for v in vs if v not in seen)
                seen.update(fresh)
                group += fresh
            yield group


def _data(document: Document, node: Node) -> Iterator[Value]:
    """What a node returns, and what it reads besides constants."""
    for value in (*node.inputs, *node.outputs):
        if value is not None and isinstance(document.constant(value), Refusal):
            yield value
