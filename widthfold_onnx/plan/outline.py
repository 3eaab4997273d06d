"""List the regions that the decisions make in a model, and where they end, for reports."""

from __future__ import annotations

from collections.abc import Sequence

from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.plan.decisions import Decision, engine_of
from widthfold_onnx.results import RegionReport, Stop
from widthfold_onnx.rewrite.stretches import stretches


def outline(
    document: Document,
    decisions: Sequence[Decision],
    options: FoldOptions,
) -> list[RegionReport]:
    """Return the regions of all graphs; the document is not changed.

    Args:
        document: the model.
        decisions: the decisions for it.
        options: tell which extents are to be guarded.
    """
    paths = {scope.graph: scope.path for scope in document.scopes}
    names = {d.site.node: d.site.name for d in decisions}

    def name(node: Node) -> str:
        return names.get(node) or node.name or node.outputs[0].name or ""

    return [
        RegionReport(
            graph=paths[graph],
            folded=[name(node) for node in found.folded],
            carried=[f"{node.op_type} {name(node)}" for node in found.carried],
            stops=[
                Stop(node=name(node), op=node.op_type, code=why.code, reason=why.reason)
                for node, why in found.stops
            ],
        )
        for graph, region in engine_of(document, decisions, options).regions().items()
        for found in stretches(region)
    ]
