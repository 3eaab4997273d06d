"""Report the regions of a model: the ops that run packed, and the nodes at which packing ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from widthfold_onnx.model.graph.document import Node
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import RegionReport, Stop
from widthfold_onnx.rewrite.regions import Regions
from widthfold_onnx.rules.op import IN_A_BODY, RETURNED

OTHERWISE = Refusal(Code.ANOTHER_FOLD, "it is folded in another way")
NO_GAIN = Refusal(Code.MOVES_MORE, "running it packed would copy more elements than it saves")


def region_reports(
    regions: Regions, path: str, names: Mapping[Node, str]
) -> Iterator[RegionReport]:
    """Yield the regions of a graph with their ends; a lone folded node without ends makes none.

    Args:
        regions: the folded nodes of the graph, and the ops that run packed.
        path: path of the graph.
        names: names of the folded nodes, for nodes without one.
    """

    def name(node: Node) -> str:
        return names.get(node) or node.name or node.outputs[0].name or ""

    for nodes in regions.node_groups():
        stops = dict.fromkeys(stop for node in nodes for stop in _stops(regions, node))
        if len(nodes) > 1 or stops:
            propagated = [node for node in nodes if node in regions.propagated]
            yield RegionReport(
                graph=path,
                folded=[name(node) for node in nodes if node in regions.sites],
                carried=[f"{node.op_type} {name(node)}" for node in propagated],
                stops=[
                    Stop(node=name(n), op=n.op_type, code=r.code.value, reason=r.reason)
                    for n, r in stops
                ],
            )


def _stops(regions: Regions, node: Node) -> Iterator[tuple[Node, Refusal]]:
    """Yield the nodes at which the packed outputs of a node end, with reasons."""
    ends = regions.sites.get(node)
    if ends is not None and ends.logical_reason is not None:
        yield node, ends.logical_reason
    for value in node.outputs:
        layout = regions.home(value)
        if layout is None:
            continue
        values = regions.values_in(value, layout)
        if any(map(regions.document.must_stay, values)):
            yield node, RETURNED
        for user, index in (use for v in values for use in v.uses()):
            if user.outputs[0] in values:
                continue  # a DequantizeLinear of the same region is no end
            if user in regions.sites and index == regions.sites[user].data:
                if regions.sites[user].input_layout != layout:
                    yield user, OTHERWISE
            elif user not in regions.propagated or regions.propagated[user].layout != layout:
                is_in_body = user.graph is not node.graph
                yield user, IN_A_BODY if is_in_body else regions.refusals.get(user, NO_GAIN)
