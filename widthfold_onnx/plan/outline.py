"""What the decisions for a model make of its graph, for reports: regions, and where they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.plan.by_channel import Origin
from widthfold_onnx.plan.decisions import Decision, engine_of
from widthfold_onnx.results import RegionReport, Stop
from widthfold_onnx.rewrite.record import CHANNEL_KEY
from widthfold_onnx.rewrite.stretches import stretches


def outline(
    document: Document,
    decisions: Sequence[Decision],
    options: FoldOptions,
    origins: Mapping[str, Origin],
) -> list[RegionReport]:
    """The regions of all graphs; the document stays as it is.

    Args:
        document: the model.
        decisions: for it.
        options: what is to be guarded.
        origins: what is written channel by channel was, by what it returns.
    """
    paths = {scope.graph: scope.path for scope in document.scopes}
    names = {d.site.node: d.site.name for d in decisions}

    def name(node: Node) -> str:
        of = node.metadata_props.get(CHANNEL_KEY)
        if of is not None:
            return origins[of].name if of in origins else of
        return names.get(node) or node.name or node.outputs[0].name or ""

    def own(node: Node) -> bool:
        """Whether it is an op of the original, and does not split, add up or join its channels."""
        of = node.metadata_props.get(CHANNEL_KEY)
        return of is None or of not in origins or origins[of].op == node.op_type

    return [
        RegionReport(
            graph=paths[graph],
            folded=list(dict.fromkeys(map(name, found.folded))),
            carried=list(dict.fromkeys(f"{n.op_type} {name(n)}" for n in found.carried if own(n))),
            stops=[
                Stop(node=name(node), op=node.op_type, code=why.code, reason=why.reason)
                for node, why in found.stops
            ],
        )
        for graph, region in engine_of(document, decisions, options).regions().items()
        for found in stretches(region)
    ]
