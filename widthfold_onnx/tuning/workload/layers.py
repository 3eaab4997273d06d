"""Collect the layers of a model: which of them are alike, and which forms each may take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from widthfold_onnx.decide.decisions import read_sites
from widthfold_onnx.model.graph.document import Node
from widthfold_onnx.model.graph.messages import NodeName, connected
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import FoldOptions, Shapes
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.apply import Reading
from widthfold_onnx.rewrite.plan import LayerPlan, Plan, structure_of
from widthfold_onnx.rules.forms.form import FormSpec, Reformulation
from widthfold_onnx.rules.forms.legality import needed_extents, unguardable
from widthfold_onnx.rules.match.sites import LinearSite
from widthfold_onnx.rules.selection import site_problem
from widthfold_onnx.tuning.targets import Target
from widthfold_onnx.tuning.workload.candidates import every_form
from widthfold_onnx.tuning.workload.cut import cut
from widthfold_onnx.tuning.workload.links import Link, inside, links
from widthfold_onnx.tuning.workload.workloads import Workload, joined

ELSEWHERE = Refusal(Code.NO_GAIN, "layers were measured in the model with companions only")
"""Refusal for a layer whose node has another name there, because a companion inlined functions."""


@dataclass(frozen=True)
class Layers:
    """The layers of a model.

    Attributes:
        workloads: workloads by subject.
        subjects: the subject of every site, or why it has none.
        structures: `rewrite.plan.structure_of` every site that has a subject.
        links: the tensors between layers.
        inside: workloads that run between packed tensors, by the subject of the layer.
    """

    workloads: Mapping[str, Workload] = field(default_factory=dict)
    subjects: Mapping[NodeName, str | Refusal] = field(default_factory=dict)
    links: Sequence[Link] = ()
    inside: Mapping[str, Workload] = field(default_factory=dict)
    structures: Mapping[NodeName, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, reading: Reading, options: FoldOptions, shapes: Shapes, target: Target) -> Self:
        """Cut every site that has a form out of the model.

        Args:
            reading: the model.
            options: select the sites, and limit the forms.
            shapes: shapes of every input, at which layers are measured.
            target: the device for which the forms are ordered.
        """
        document = reading.document
        measured = ShapeTable(document.proto, shapes)
        cuts: list[Workload] = []
        subjects: dict[NodeName, str | Refusal] = {}
        structures: dict[NodeName, dict[str, Any]] = {}
        forms: dict[object, list[Reformulation]] = {}
        nodes: dict[Node, str] = {}
        for _, site in read_sites(reading, options):
            if isinstance(site, Refusal):
                continue
            name = NodeName(site.scope.path, site.name)
            problem = site_problem(site, options)
            if problem is not None:
                subjects[name] = problem
                continue
            geometry = (
                *(site.op, site.static, site.planned, site.weight_shape, site.geometry),
                *(site.itemsize, unguardable(site)),
            )
            if geometry not in forms:
                forms[geometry] = _preferred(site, every_form(site, options))
            workload = cut(document, site, measured, forms[geometry], options, target)
            if isinstance(workload, Refusal):
                subjects[name] = workload
                continue
            cuts.append(workload)
            subjects[name] = nodes[site.node] = workload.subject
            structures[name] = structure_of(site)
        # Layers of one subject may differ in their legal forms if one has an open extent.
        workloads, between = joined(cuts), links(document, nodes)
        return cls(workloads, subjects, between, inside(workloads, between), structures)

    def subject(self, site: LinearSite) -> str | Refusal:
        """Return the subject of a site, or why it was not measured."""
        return self.subjects.get(NodeName(site.scope.path, site.name), ELSEWHERE)

    def planned(self, draft: Plan, forms: Mapping[str, FormSpec]) -> Plan:
        """Return a plan in which every layer of a subject takes the form of the subject.

        A form that one of these layers does not allow is left out where the plan is applied.
        """
        layers = [
            LayerPlan(
                graph=name.graph,
                node=name.node,
                structure=self.structures[name],
                form=forms[subject],
            )
            for name, subject in sorted(self.subjects.items(), key=lambda item: item[0])
            if isinstance(subject, str) and subject in forms
        ]
        return msgspec.structs.replace(draft, layers=tuple(layers))

    @property
    def neighbours(self) -> list[list[str]]:
        """Groups of layers that share tensors, by subject; a lone layer is in none."""
        shared = (link for link in self.links if link.makers and link.readers)
        return [sorted(group) for group in connected((*k.makers, *k.readers) for k in shared)]

    def count(self, subject: str) -> int:
        """Return how many layers of the model have this subject."""
        return sum(other == subject for other in self.subjects.values())

    def behind(self, workloads: Iterable[Workload]) -> set[str]:
        """Return the subjects of the layers that were measured, alone or between packed tensors."""
        layer_of = {workload.subject: subject for subject, workload in self.inside.items()}
        return {layer_of.get(workload.subject, workload.subject) for workload in workloads}


def _preferred(site: LinearSite, forms: Iterable[Reformulation]) -> list[Reformulation]:
    """Leave out forms that need a guard where a fold of fixed extents runs at every size.

    A guard keeps the weights of both branches, and gains at some sizes only.
    """
    every = list(forms)
    unguarded = [form for form in every if not needed_extents(site, form)]
    return unguarded if any(form.folded_axes for form in unguarded) else every
