"""Apply reformulations to a document."""

from __future__ import annotations

from widthfold_onnx.model.graph import Document, Graph, graph_of
from widthfold_onnx.rewrite.emission import Emission, Plans
from widthfold_onnx.rewrite.parameters import Parameters
from widthfold_onnx.rewrite.regions import Region
from widthfold_onnx.rules.base import LinearSite, Reformulation


class Engine:
    """Applies reformulations to a document, all at once, so that neighbours know of each other."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._plans: dict[Graph, Plans] = {}

    def apply(self, site: LinearSite, plan: Reformulation) -> None:
        """Let `finish` replace the site's node."""
        self._plans.setdefault(graph_of(site.node), {})[site.node] = (site, plan)

    def regions(self) -> dict[Graph, Region]:
        """Of every graph in which something is to be replaced, before it is."""
        return {graph: self._region(graph, plans) for graph, plans in self._plans.items()}

    def finish(self) -> None:
        """Replace all sites, and the ops between them."""
        parameters = Parameters(self._document)
        for graph, plans in self._plans.items():
            region = self._region(graph, plans)  # of values as the graphs before it left them
            Emission(self._document, graph, plans, region, parameters).run()

    def _region(self, graph: Graph, plans: Plans) -> Region:
        ends = {node: plan.ends(site) for node, (site, plan) in plans.items()}
        return Region(self._document, self._document.nodes_of(graph), ends)
