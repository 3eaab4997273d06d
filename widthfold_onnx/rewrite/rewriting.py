"""Plan and carry out the replacement of sites by their forms, all at once.

Neighbours share layouts, so that what runs packed between sites and what one guard covers depend on
all forms together. Both are settled before anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx

from widthfold_onnx.model.graph.document import Document, Graph, graph_of
from widthfold_onnx.model.graph.names import NodeName
from widthfold_onnx.model.proto.walk import retain
from widthfold_onnx.rewrite.emission import Emission
from widthfold_onnx.rewrite.guard_groups import GuardGroups, Plans
from widthfold_onnx.rewrite.parameters import Parameters
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.forms.open_extents import needed_extents
from widthfold_onnx.rules.match.site import LinearSite

NONFINITE_KEY = "widthfold.nonfinite"
"""Metadata of a model: ``spread:F`` if folds may spread Inf and NaN, F times at most."""

RUNTIME_KEY = "widthfold.runtime"
"""Metadata of a model: the version of ONNX Runtime that its forms were measured with."""


@dataclass(frozen=True)
class Rewriting:
    """The plan of a rewriting, as a value; the document is unchanged so far.

    Attributes:
        document: the model.
        plans: the forms of the sites that are replaced, by graph.
        groups: the regions and guarded groups that they make, by graph.
        runtime: the version of ONNX Runtime that the forms were measured with; "" if none was.
    """

    document: Document
    plans: Mapping[Graph, Plans]
    groups: Mapping[Graph, GuardGroups]
    runtime: str = ""

    @classmethod
    def of(
        cls,
        document: Document,
        chosen: Iterable[tuple[LinearSite, Reformulation]],
        runtime: str = "",
    ) -> Rewriting:
        """Settle regions and guards for the forms."""
        plans: dict[Graph, Plans] = {}
        for site, form in chosen:
            plans.setdefault(graph_of(site.node), {})[site.node] = (site, form)
        groups = {
            graph: GuardGroups.of(document, list(graph), sites) for graph, sites in plans.items()
        }
        return cls(document, plans, groups, runtime)

    def guarded(self) -> dict[str, set[NodeName]]:
        """Return the layers for which a guard was made, by each value that the guard may return."""
        found: dict[str, set[NodeName]] = {}
        for graph, plans in self.plans.items():
            for group in self.groups[graph].groups:
                sites = [
                    plans[n][0] for n in group.nodes if n in plans and needed_extents(*plans[n])
                ]
                names = {NodeName(site.scope.path, site.name) for site in sites}
                for value in (value for node in group.nodes for value in node.outputs):
                    found.setdefault(value.name or "", set()).update(names)
        return found

    def carry_out(self) -> onnx.ModelProto:
        """Replace all sites and the ops between them; the document is consumed."""
        document = self.document
        parameters = Parameters(document)
        emissions = [
            Emission(document, graph, plans, self.groups[graph], parameters)
            for graph, plans in self.plans.items()
        ]
        for emission in emissions:
            emission.emit()  # all before any is put in place: bodies read values of graphs around
        for emission in emissions:
            emission.put()
        model = document.finish()
        spreads = [spread_of(*plan) for plans in self.plans.values() for plan in plans.values()]
        spread = max(spreads, default=1.0)
        _note(model, NONFINITE_KEY, f"spread:{spread:g}" if spread > 1.0 else "")
        _note(model, RUNTIME_KEY, self.runtime)
        return model


def spread_of(site: LinearSite, form: Reformulation) -> float:
    """Return how many outputs Inf or NaN in one input may reach, after / before the fold.

    A structural zero times Inf is NaN, so a non-finite input reaches every output that shares its
    reduction, within its sample. The mean number of outputs reached grows by the number of elements
    of the folded weight / the number of elements that are no structural zeros.
    """
    return 1.0 if site.is_finite else round(form.fold.spread(), 2)


def _note(model: onnx.ModelProto, key: str, value: str) -> None:
    """Write an entry of the metadata in place of an older entry; remove that if the value is ""."""
    retain(model.metadata_props, lambda entry: entry.key != key)
    if value:
        model.metadata_props.add(key=key, value=value)
