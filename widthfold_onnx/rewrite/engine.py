"""Apply reformulations to a document."""

from __future__ import annotations

import onnx

from widthfold_onnx.model.graph import Document, Graph, graph_of
from widthfold_onnx.model.order import nodes_of
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.rewrite.emission import Emission
from widthfold_onnx.rewrite.guard_groups import GuardGroups, Plans
from widthfold_onnx.rewrite.guards import put_guards
from widthfold_onnx.rewrite.parameters import Parameters
from widthfold_onnx.rewrite.regions import Region
from widthfold_onnx.rules.form import Reformulation
from widthfold_onnx.rules.site import LinearSite


class Engine:
    """Applies reformulations to a document, all at once, so that neighbours can share states.

    Args:
        document: the model.
        options: tell which extents are to be guarded.
    """

    def __init__(self, document: Document, options: FoldOptions) -> None:
        self._document = document
        self._options = options
        self._plans: dict[Graph, Plans] = {}

    def apply(self, site: LinearSite, plan: Reformulation) -> None:
        """Register a site's node to be replaced by `finish`."""
        self._plans.setdefault(graph_of(site.node), {})[site.node] = (site, plan)

    def regions(self) -> dict[Graph, Region]:
        """Return the region of every graph that has sites to replace; the graph is unchanged."""
        return {graph: self._groups(graph, plans).region for graph, plans in self._plans.items()}

    def finish(self) -> onnx.ModelProto:
        """Replace all sites and the ops between them; the document is consumed."""
        document = self._document
        parameters = Parameters(document)
        guards = []
        for graph, plans in self._plans.items():
            groups = self._groups(graph, plans)  # now, as earlier graphs may have changed values
            guards += Emission(document, graph, plans, groups, parameters).run()
        model = document.finish()
        put_guards(model, guards, document.fresh)
        return model

    def _groups(self, graph: Graph, plans: Plans) -> GuardGroups:
        nodes = list(nodes_of(graph))
        ends = {node: plan.ends for node, (_, plan) in plans.items()}
        return GuardGroups(self._document, nodes, plans, ends, self._options)
