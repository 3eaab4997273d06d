"""Collect the layers of a model: equal layers, the forms of each, and the links between them.

Tensors that are joined by ops of `rules.propagation` are all in one layout, or all logical:
they are one link between layers. Only the operator is looked up here; the rewriting decides whether
an op really accepts a layout.

A form alone pays for packing its input and unpacking its output. Between neighbours that agree on
a layout it pays neither. So a form whose layout a neighbour could share is measured a second time
with packed tensors at its ends; the difference is the cost of its moves.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from widthfold_onnx.arrays import connected
from widthfold_onnx.decide.decisions import read_sites
from widthfold_onnx.model.document import Document, Graph, Node, Value, graph_of
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import FoldOptions, Shapes
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rules.enumeration import form_of
from widthfold_onnx.rules.form import Answer, Form, FormSpec
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.legality import guard_problem
from widthfold_onnx.rules.propagation import PROPAGATION
from widthfold_onnx.rules.selection import forms_to_race, search_problem
from widthfold_onnx.tuning.identity import canonical
from widthfold_onnx.tuning.targets import Target
from widthfold_onnx.tuning.workloads import CutLayer, PredictedForm, Workload, cut, joined

NOT_IN_DRAFT = Refusal(Code.NO_GAIN, "layers were measured in the model with companions only")
"""Refusal for a layer with another name in the measured model: a companion inlined a function."""


@dataclass(frozen=True)
class Layers:
    """The layers of a model.

    Attributes:
        target: the device for which forms are predicted and ordered.
        fold_options: limits of the forms.
        cut_layers: the layers as cut out: one for a subject and its forms.
        subjects: the subject of every layer, or why it has none.
        measured: the layers that have a subject.
        links: the tensors between layers.
    """

    target: Target
    fold_options: FoldOptions
    cut_layers: Sequence[CutLayer] = ()
    subjects: Mapping[NodeName, str | Refusal] = field(default_factory=dict)
    measured: Mapping[NodeName, Layer] = field(default_factory=dict)
    links: Sequence[Link] = ()
    _answers: dict[tuple[NodeName, FormSpec], Answer] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, reading: Reading, options: FoldOptions, shapes: Shapes, target: Target) -> Self:
        """Cut every layer that has a form out of the model.

        Args:
            reading: the model.
            options: select the layers, and limit the forms.
            shapes: shapes of every input, at which layers are measured.
            target: the device for which the forms are ordered.
        """
        document = reading.document
        table = ShapeTable(document.proto, shapes)
        # A cut layer holds its weights: equal layers of a large model would fill the memory.
        cut_layers: dict[tuple[str, frozenset[FormSpec]], CutLayer] = {}
        subjects: dict[NodeName, str | Refusal] = {}
        measured: dict[NodeName, Layer] = {}
        forms: dict[object, list[Form]] = {}
        nodes: dict[Node, str] = {}
        for _, layer in read_sites(reading, options.selection):
            if isinstance(layer, Refusal):
                continue
            name = layer.node_name
            problem = search_problem(layer, options)
            if problem is not None:
                subjects[name] = problem
                continue
            forms_key = layer.forms_key, guard_problem(layer)
            if forms_key not in forms:
                forms[forms_key] = forms_to_race(layer, options)
            cut_layer = cut(document, layer, table, forms[forms_key], options, target)
            if isinstance(cut_layer, Refusal):
                subjects[name] = cut_layer
                continue
            key = cut_layer.subject, frozenset(form.spec for form, _ in cut_layer.forms)
            cut_layers.setdefault(key, cut_layer)
            subjects[name] = nodes[layer.node] = cut_layer.subject
            measured[name] = layer
        links = links_of(document, nodes)
        return cls(target, options, [*cut_layers.values()], subjects, measured, links)

    def at(self, target: Target) -> Self:
        """Return the layers with their forms predicted and ordered for another target."""
        return replace(self, target=target)

    @cached_property
    def workloads(self) -> dict[str, Workload]:
        """Workloads by subject."""
        # Layers of one subject may differ in their legal forms if one has an open extent.
        return joined(layer.workload(self.target) for layer in self.cut_layers)

    @cached_property
    def workloads_inside(self) -> dict[str, Workload]:
        """Workloads that run between packed tensors, by the subject of the layer."""
        return workloads_inside(self.workloads, self.links)

    def subject(self, layer: Layer) -> str | Refusal:
        """Return the subject of a layer, or why it was not measured."""
        return self.subjects.get(layer.node_name, NOT_IN_DRAFT)

    def forms_of(self, specs: Mapping[str, FormSpec]) -> dict[NodeName, Form]:
        """Return the form of every layer whose subject has a spec.

        A layer that does not allow the form is left out: its open extents may not fit.
        """
        answers = {
            name: self._answer(name, specs[subject])
            for name, subject in self.subjects.items()
            if isinstance(subject, str) and subject in specs
        }
        return {name: form for name, form in answers.items() if isinstance(form, Form)}

    def _answer(self, name: NodeName, spec: FormSpec) -> Answer:
        """Return the form of a layer, made once: a search asks for it in dozens of drafts."""
        if (name, spec) not in self._answers:
            answer = form_of(self.measured[name], spec, self.fold_options)
            self._answers[name, spec] = answer
        return self._answers[name, spec]

    @property
    def neighbours(self) -> list[list[str]]:
        """Groups of layers that share tensors, by subject; a lone layer is in none."""
        shared = (link for link in self.links if link.makers and link.readers)
        return [sorted(group) for group in connected((*k.makers, *k.readers) for k in shared)]

    def layer_count(self, subject: str) -> int:
        """Return how many layers of the model have this subject."""
        return [*self.subjects.values()].count(subject)

    def subjects_of(self, workloads: Iterable[Workload]) -> set[str]:
        """Return the subjects of the layers that were measured, alone or between packed tensors."""
        layer_of = {w.subject: subject for subject, w in self.workloads_inside.items()}
        return {layer_of.get(workload.subject, workload.subject) for workload in workloads}


@dataclass(frozen=True, order=True)
class Link:
    """Tensors that are in one layout.

    Attributes:
        makers: a subject for every layer that returns one of them.
        readers: a subject for every layer that reads one of them.
        has_other_maker: True if anything else makes one of them, in the logical layout.
        has_other_reader: True if anything else reads one of them, in the logical layout.
    """

    makers: tuple[str, ...]
    readers: tuple[str, ...]
    has_other_maker: bool
    has_other_reader: bool


def links_of(document: Document, subjects: Mapping[Node, str]) -> list[Link]:
    """Return the links between layers, before the first and behind the last ones.

    Args:
        document: the model.
        subjects: the subject of every node that is a layer.
    """
    graphs = dict.fromkeys(map(graph_of, subjects))
    return sorted(link for graph in graphs for link in _links_of_graph(document, graph, subjects))


def _links_of_graph(
    document: Document, graph: Graph, subjects: Mapping[Node, str]
) -> Iterator[Link]:
    """Yield the links of one graph."""
    nodes = list(graph)
    layers = dict.fromkeys(node for node in nodes if node in subjects)
    propagated = dict.fromkeys(
        node for node in nodes if node not in subjects and is_default(node, *PROPAGATION)
    )
    groups = [[value] for node in layers for value in _data(document, node)]
    groups += [list(_data(document, node)) for node in propagated]
    for group in connected(groups):
        origins = [value.producer() for value in group]
        uses = [(node, index) for value in group for node, index in value.uses()]
        makers = [subjects[node] for node in origins if node is not None and node in subjects]
        readers = [subjects[node] for node, _ in uses if node in subjects]
        if makers or readers:
            layout_readers = [node for node, _ in uses if node in propagated or node in layers]
            yield Link(
                tuple(sorted(makers)),
                tuple(sorted(readers)),
                any(node not in layers and node not in propagated for node in origins),
                len(layout_readers) < len(uses) or any(map(document.must_stay, group)),
            )


def _data(document: Document, node: Node) -> Iterator[Value]:
    """Yield the values that a node returns, and the values that it reads besides constants."""
    for value in (*node.inputs, *node.outputs):
        if value is not None and isinstance(document.constant(value), Refusal):
            yield value


def subject_inside(subject: str) -> str:
    """Return the subject of the same layer between packed tensors."""
    return canonical({**json.loads(subject), "inside": True})


def workloads_inside(
    workloads: Mapping[str, Workload], links: Sequence[Link]
) -> dict[str, Workload]:
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
        outputs = [(s, {f: f.output_layout for f in workloads[s].forms}) for s in link.makers]
        inputs = [(s, {f: f.input_layout for f in workloads[s].forms}) for s in link.readers]
        # A layer counts once for a layout, however many of its forms have it.
        layers = Counter(
            layout for _, layouts in (*outputs, *inputs) for layout in set(layouts.values())
        )
        for subject, layouts in (*outputs, *inputs):
            shared_forms = {
                f for f, layout in layouts.items() if layout is not None and layers[layout] > 1
            }
            shared.setdefault(subject, set()).update(shared_forms)
    return {
        subject: replace(
            workloads[subject],
            subject=subject_inside(subject),
            forms=tuple(form for form in workloads[subject].forms if form in forms),
            is_inside=True,
        )
        for subject, forms in shared.items()
        if forms
    }
