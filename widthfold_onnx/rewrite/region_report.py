"""List the regions for reports: nodes between which nothing is unfolded, and where each one ends.

Two nodes belong to one region if one reads a packed tensor that the other returns, or both read the
same value in the same layout. A region ends at every node that reads such a value in another
layout, and at a folded node whose own output is not packed; each end has its reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from widthfold_onnx.fold.packed_layout import PackedLayout
from widthfold_onnx.model.graph.document import Node, Value
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.regions import Region

Packed = tuple[Value, PackedLayout]

RETURNED = Refusal(Code.OUTPUT, "the graph returns what it makes")
OTHERWISE = Refusal(Code.ANOTHER_FOLD, "it is folded in another way")
IN_A_BODY = Refusal(Code.IN_A_BODY, "it stands in the body of another node")
NO_GAIN = Refusal(Code.MOVES_MORE, "carrying it would copy more elements than it saves")


@dataclass(frozen=True)
class Stretch:
    """One region.

    Attributes:
        folded: the folded nodes, in graph order.
        propagated: the ops that run on packed tensors, in graph order.
        stops: the nodes at which it ends, with reasons.
    """

    folded: tuple[Node, ...]
    propagated: tuple[Node, ...]
    stops: tuple[tuple[Node, Refusal], ...]


def stretches(region: Region) -> Iterator[Stretch]:
    """Yield the regions of a graph; folded nodes without a packed tensor make none."""
    ends = {node: list(_ends(region, node)) for node in (*region.sites, *region.propagated)}
    joined: dict[Packed, list[Node]] = defaultdict(list)
    for node, packed in ends.items():
        for item in packed:
            joined[item].append(node)
    seen: set[Node] = set()
    for start in ends:
        if start in seen:
            continue
        seen.add(start)
        group = [start]
        for node in group:  # the loop appends to it
            fresh = dict.fromkeys(n for e in ends[node] for n in joined[e] if n not in seen)
            seen.update(fresh)
            group += fresh
        members = set(group)
        stops = dict.fromkeys(stop for node in group for stop in _stops(region, node))
        if len(group) > 1 or stops:
            yield Stretch(
                tuple(n for n in region.nodes if n in members and n in region.sites),
                tuple(n for n in region.nodes if n in members and n in region.propagated),
                tuple(stops),
            )


def _ends(region: Region, node: Node) -> Iterator[Packed]:
    """Yield the packed tensors that a node reads and returns."""
    ends, propagated_op = region.sites.get(node), region.propagated.get(node)
    if ends is not None:
        data = node.inputs[ends.data]
        if ends.reads is not None and data is not None:
            yield region.origin(data, ends.reads), ends.reads
        if ends.returns is not None:
            yield node.outputs[0], ends.returns
    if propagated_op is not None:
        read = (node.inputs[index] for index in sorted(propagated_op.data))
        layout = propagated_op.layout
        packed = (value for value in (*read, *node.outputs) if value is not None)
        yield from ((region.origin(value, layout), layout) for value in packed)


def _stops(region: Region, node: Node) -> Iterator[tuple[Node, Refusal]]:
    """Yield the nodes at which the packed outputs of a node end, with reasons."""
    ends = region.sites.get(node)
    if ends is not None and ends.logical_because is not None:
        yield node, ends.logical_because
    for value in node.outputs:
        layout = region.home(value)
        if layout is None:
            continue
        forms = region.forms(value, layout)
        if any(map(region.is_fixed, forms)):
            yield node, RETURNED
        for user, index in (use for form in forms for use in form.uses()):
            if user.outputs[0] in forms:
                continue  # a DequantizeLinear of the same region is no end
            if user in region.sites and index == region.sites[user].data:
                if region.sites[user].reads != layout:
                    yield user, OTHERWISE
            elif user not in region.propagated or region.propagated[user].layout != layout:
                inside = user.graph is not node.graph
                yield user, IN_A_BODY if inside else region.refusals.get(user, NO_GAIN)
