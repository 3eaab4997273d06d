"""Collect the layers of a model: which of them are alike, and which forms each may take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from widthfold_onnx.model.graph.document import Document, Node
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import SMALLEST_FACTOR, FoldOptions, Shapes
from widthfold_onnx.plan.decide.decisions import read_sites
from widthfold_onnx.plan.predict.targets import Target
from widthfold_onnx.plan.workload.candidates import every_form
from widthfold_onnx.plan.workload.layout_edges import Link, links
from widthfold_onnx.plan.workload.packed_workload import inside
from widthfold_onnx.plan.workload.workloads import Unit, cut
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.forms.guarding import unguardable
from widthfold_onnx.rules.match.site import LinearSite, Site
from widthfold_onnx.rules.selection import reformulate, unfit

Place = tuple[str, str]
"""Scope path and first output of a node."""


@dataclass(frozen=True)
class Layers:
    """The layers of a model.

    Attributes:
        units: units by subject.
        subjects: the subject of every site, or why it has none.
        links: the tensors between layers.
        inside: units that run between packed tensors, by the subject of the layer.
    """

    units: Mapping[str, Unit] = field(default_factory=dict)
    subjects: Mapping[Place, str | Refusal] = field(default_factory=dict)
    links: Sequence[Link] = ()
    inside: Mapping[str, Unit] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Document, options: FoldOptions, shapes: Shapes, target: Target) -> Self:
        """Cut every site that has a form out of the model.

        Args:
            document: the model.
            options: select the sites, and limit the forms.
            shapes: shapes of every input, at which layers are measured.
            target: the device for which the forms are ordered.
        """
        measured = ShapeTable(document.proto, shapes)
        units: dict[str, Unit] = {}
        subjects: dict[Place, str | Refusal] = {}
        known: dict[object, list[Reformulation]] = {}
        nodes: dict[Node, str] = {}
        for _, conv in read_sites(document, options):
            if isinstance(conv, Refusal) or unfit(conv, options):
                continue
            geometry = (
                *(conv.op, conv.static, conv.planned, conv.weight_shape, conv.geometry),
                *(conv.itemsize, unguardable(conv)),
            )
            if geometry not in known:
                known[geometry] = list(every_form(conv, options))
            unit = _unit(document, conv, measured, known[geometry], options, target)
            if isinstance(unit, Unit):
                # Layers of one subject may differ in their legal forms if one has an open extent.
                like = units.get(unit.subject)
                units[unit.subject] = unit if like is None else like.joined(unit)
                nodes[conv.node] = unit.subject
            subjects[_place(conv)] = unit.subject if isinstance(unit, Unit) else unit
        found = links(document, nodes)
        return cls(units, subjects, found, inside(units, found))

    def subject(self, site: LinearSite) -> str | Refusal:
        """Return the subject of a site, or why it cannot be measured."""
        return self.subjects[_place(site)]

    def places(self) -> list[Place]:
        """Return every site that can be measured."""
        return sorted(p for p, subject in self.subjects.items() if isinstance(subject, str))

    def count(self, subject: str) -> int:
        """Return how many layers of the model have this subject."""
        return sum(other == subject for other in self.subjects.values())

    def behind(self, units: Iterable[Unit]) -> set[str]:
        """Return the subjects of the layers of units, measured alone or between packed tensors."""
        layer_of = {unit.subject: subject for subject, unit in self.inside.items()}
        return {layer_of.get(unit.subject, unit.subject) for unit in units}

    def in_order(self) -> list[Unit]:
        """Return the units, most work first as time may be short; those inside regions last."""
        every = (*self.units.values(), *self.inside.values())
        return sorted(every, key=lambda unit: (unit.inside, -unit.macs, unit.subject))


def _unit(
    document: Document,
    conv: LinearSite,
    measured: ShapeTable,
    forms: Sequence[Reformulation],
    options: FoldOptions,
    target: Target,
) -> Unit | Refusal:
    if not forms:
        # Any factor gives the reason: no form is legal, or no axis has enough positions.
        outcome = reformulate(conv, replace(options, ragged=True), SMALLEST_FACTOR)
        short = Refusal(Code.TOO_SHORT, f"no axis has {SMALLEST_FACTOR} positions")
        return outcome if isinstance(outcome, Refusal) else short
    return cut(document, conv, measured, forms, options, target)


def _place(site: Site) -> Place:
    return site.scope.path, site.node.outputs[0].name or ""
