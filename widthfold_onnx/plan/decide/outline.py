"""List the regions that the decisions make in a model, and where they end, for reports."""

from __future__ import annotations

from collections.abc import Sequence

from widthfold_onnx.model.graph.document import Node
from widthfold_onnx.plan.decide.decisions import Decision
from widthfold_onnx.results import RegionReport, Stop
from widthfold_onnx.rewrite.engine import Rewriting
from widthfold_onnx.rewrite.region_report import stretches


def outline(rewriting: Rewriting, decisions: Sequence[Decision]) -> list[RegionReport]:
    """Return the regions of all graphs; the decisions name the nodes."""
    paths = {scope.graph: scope.path for scope in rewriting.document.scopes}
    names = {d.site.node: d.site.name for d in decisions}

    def name(node: Node) -> str:
        return names.get(node) or node.name or node.outputs[0].name or ""

    return [
        RegionReport(
            graph=paths[graph],
            folded=[name(node) for node in found.folded],
            carried=[f"{node.op_type} {name(node)}" for node in found.propagated],
            stops=[
                Stop(node=name(node), op=node.op_type, code=why.code.value, reason=why.reason)
                for node, why in found.stops
            ],
        )
        for graph, groups in rewriting.groups.items()
        for found in stretches(groups.region)
    ]
