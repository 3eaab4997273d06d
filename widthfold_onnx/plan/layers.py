"""The layers of a model: which of them are alike, and what each may become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from widthfold_onnx.model.graph import Document
from widthfold_onnx.model.shapes import ShapeTable
from widthfold_onnx.options import FoldOptions, Provider, Shapes
from widthfold_onnx.plan.decisions import read_sites
from widthfold_onnx.plan.units import Unit, cut, every_form
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.base import ConvSite, Site
from widthfold_onnx.rules.conv import is_wide
from widthfold_onnx.runtime.feeds import find_shapes
from widthfold_onnx.runtime.session import open_session

Place = tuple[str, str]
"""Scope path and first output of a node."""


@dataclass(frozen=True)
class Layers:
    """Units by subject, and the subject of every site that can be measured."""

    units: Mapping[str, Unit] = field(default_factory=dict)
    subjects: Mapping[Place, str] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Document, options: FoldOptions, shapes: Shapes) -> Self:
        """Cut every site that has a form out of the model.

        Args:
            document: the model.
            options: which sites, and limits.
            shapes: of every input, at which layers are measured.
        """
        measured = ShapeTable(document.proto, shapes)
        units: dict[str, Unit] = {}
        subjects: dict[Place, str] = {}
        for _, conv in read_sites(document, options):
            if isinstance(conv, Refusal) or is_wide(conv, options):
                continue
            forms = list(every_form(conv, options))
            unit = cut(document, conv, measured, forms) if forms else None
            if unit is not None:
                # Alike layers may differ in what is legal, where one has an open extent.
                known = units.get(unit.subject)
                units[unit.subject] = unit if known is None else known.joined(unit)
                subjects[_place(conv)] = unit.subject
        return cls(units, subjects)

    def subject(self, site: ConvSite) -> str | None:
        """The subject of a site, None where it cannot be measured."""
        return self.subjects.get(_place(site))

    def count(self, subject: str) -> int:
        """How many layers of the model are this one."""
        return sum(other == subject for other in self.subjects.values())

    def in_order(self) -> list[Unit]:
        """Those with the most work first: time may be short."""
        return sorted(self.units.values(), key=lambda unit: (-unit.macs, unit.subject))


def running(model: Path, provider: Provider, fixed: Shapes) -> tuple[Provider, Shapes]:
    """Where a model runs and at which shapes; what is open is found by trying.

    Meant to run in `runtime.worker.isolated`.

    Raises:
        UnverifiedError: the provider cannot be used, or no shapes were found.
    """
    session = open_session(model, provider)
    return session.provider, dict(find_shapes(session, fixed))


def _place(site: Site) -> Place:
    return site.scope.path, site.node.outputs[0].name or ""
