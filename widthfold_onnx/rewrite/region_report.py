"""List the regions for reports: nodes between which nothing is unfolded, and where each one ends.

Two nodes belong to one region if one reads a packed tensor that the other returns, or both read the
same value in the same layout. A region ends at every node that reads such a value in another
layout, and at a folded node whose own output is not packed; each end has its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from widthfold_onnx.model.graph.document import Node
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import RegionReport, Stop
from widthfold_onnx.rewrite.regions import Regions
from widthfold_onnx.rewrite.rewriting import Rewriting

RETURNED = Refusal(Code.OUTPUT, "the graph returns its output")
OTHERWISE = Refusal(Code.ANOTHER_FOLD, "it is folded in another way")
IN_A_BODY = Refusal(Code.IN_A_BODY, "it lies in the body of another node")
NO_GAIN = Refusal(Code.MOVES_MORE, "running it packed would copy more elements than it saves")


def region_reports(rewriting: Rewriting, names: Mapping[Node, str]) -> list[RegionReport]:
    """Return the regions of all graphs; folded nodes without a packed tensor make none.

    Args:
        rewriting: what is to be done with the model.
        names: names of its sites, for nodes without one.
    """
    paths = {scope.graph: scope.path for scope in rewriting.document.scopes}

    def name(node: Node) -> str:
        return names.get(node) or node.name or node.outputs[0].name or ""

    found = []
    for graph, groups in rewriting.groups.items():
        for nodes in groups.regions.connected():
            stops = dict.fromkeys(s for node in nodes for s in _stops(groups.regions, node))
            if len(nodes) > 1 or stops:
                propagated = [node for node in nodes if node in groups.regions.propagated]
                found.append(
                    RegionReport(
                        graph=paths[graph],
                        folded=[name(node) for node in nodes if node in groups.regions.sites],
                        carried=[f"{node.op_type} {name(node)}" for node in propagated],
                        stops=[
                            Stop(node=name(n), op=n.op_type, code=why.code.value, reason=why.reason)
                            for n, why in stops
                        ],
                    )
                )
    return found


def _stops(regions: Regions, node: Node) -> Iterator[tuple[Node, Refusal]]:
    """Yield the nodes at which the packed outputs of a node end, with reasons."""
    ends = regions.sites.get(node)
    if ends is not None and ends.logical_because is not None:
        yield node, ends.logical_because
    for value in node.outputs:
        layout = regions.home(value)
        if layout is None:
            continue
        forms = regions.forms(value, layout)
        if any(map(regions.is_fixed, forms)):
            yield node, RETURNED
        for user, index in (use for form in forms for use in form.uses()):
            if user.outputs[0] in forms:
                continue  # a DequantizeLinear of the same region is no end
            if user in regions.sites and index == regions.sites[user].data:
                if regions.sites[user].reads != layout:
                    yield user, OTHERWISE
            elif user not in regions.propagated or regions.propagated[user].layout != layout:
                inside = user.graph is not node.graph
                yield user, IN_A_BODY if inside else regions.refusals.get(user, NO_GAIN)
