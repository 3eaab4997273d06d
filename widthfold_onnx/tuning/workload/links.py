"""Find the tensors that layers could share packed, and measure forms between packed tensors.

Tensors that are joined by ops of `rules.propagation` are all in one layout, or all logical:
they are one link between layers. Only the operator is looked up here; the rewriting decides whether
an op really accepts a layout.

A form alone pays for folding its input and unfolding its output. Between neighbours that agree on
a layout it pays neither. So a form whose layout a neighbour could share is measured a second time
with packed tensors at its ends; the difference is the cost of its folds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from widthfold_onnx.model.graph.document import Document, Graph, Node, Value, graph_of
from widthfold_onnx.model.graph.messages import connected
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.propagation import PROPAGATION
from widthfold_onnx.tuning.identity import canonical
from widthfold_onnx.tuning.workload.workloads import PredictedForm, Workload


@dataclass(frozen=True, order=True)
class Link:
    """Tensors that are in one layout.

    Attributes:
        makers: a subject for every layer that returns one of them.
        readers: a subject for every layer that reads one of them.
        has_other_maker: whether anything else makes one of them, in the logical layout.
        has_other_reader: whether anything else reads one of them, in the logical layout.
    """

    makers: tuple[str, ...]
    readers: tuple[str, ...]
    has_other_maker: bool
    has_other_reader: bool


def links(document: Document, subjects: Mapping[Node, str]) -> list[Link]:
    """Return the links between layers, before the first and behind the last ones.

    Args:
        document: the model.
        subjects: the subject of every node that is a layer.
    """
    graphs = dict.fromkeys(map(graph_of, subjects))
    return sorted(link for graph in graphs for link in _links(document, graph, subjects))


def _links(document: Document, graph: Graph, subjects: Mapping[Node, str]) -> Iterator[Link]:
    """Yield the links of one graph."""
    nodes = list(graph)
    layers = dict.fromkeys(node for node in nodes if node in subjects)
    propagated = dict.fromkeys(
        node for node in nodes if node not in subjects and is_default(node, *PROPAGATION)
    )
    joined = [[value] for node in layers for value in _data(document, node)]
    joined += [list(_data(document, node)) for node in propagated]
    for group in connected(joined):
        origins = [value.producer() for value in group]
        uses = [(node, index) for value in group for node, index in value.uses()]
        makers = [subjects[node] for node in origins if node is not None and node in subjects]
        readers = [subjects[node] for node, _ in uses if node in subjects]
        if makers or readers:
            packed = [node for node, _ in uses if node in propagated or node in layers]
            yield Link(
                tuple(sorted(makers)),
                tuple(sorted(readers)),
                any(node not in layers and node not in propagated for node in origins),
                len(packed) < len(uses) or any(map(document.is_fixed, group)),
            )


def _data(document: Document, node: Node) -> Iterator[Value]:
    """Yield the values that a node returns, and the values that it reads besides constants."""
    for value in (*node.inputs, *node.outputs):
        if value is not None and isinstance(document.constant(value), Refusal):
            yield value


def inside_subject(subject: str) -> str:
    """Return the subject of the same layer between packed tensors."""
    return canonical({**json.loads(subject), "inside": True})


def inside(workloads: Mapping[str, Workload], links: Sequence[Link]) -> dict[str, Workload]:
    """Return the workloads to run between packed tensors as well, with the forms that matter there.

    Args:
        workloads: layers by subject.
        links: the tensors between them.

    Returns:
        Workloads by the subject of the layer; a form is included if another layer, or another of
        its kind, could make or read the same tensor in the same layout.
    """
    shared: dict[str, set[PredictedForm]] = {}
    for link in links:
        returned = [(s, {f: f.output_layout for f in workloads[s].forms}) for s in link.makers]
        read = [(s, {f: f.input_layout for f in workloads[s].forms}) for s in link.readers]
        # A layer counts once for a layout, however many of its forms have it.
        layers = Counter(
            layout for _, layouts in (*returned, *read) for layout in set(layouts.values())
        )
        for subject, layouts in (*returned, *read):
            fitting = {
                f for f, layout in layouts.items() if layout is not None and layers[layout] > 1
            }
            shared.setdefault(subject, set()).update(fitting)
    return {
        subject: replace(
            workloads[subject],
            subject=inside_subject(subject),
            forms=tuple(form for form in workloads[subject].forms if form in forms),
            inside=True,
        )
        for subject, forms in shared.items()
        if forms
    }
