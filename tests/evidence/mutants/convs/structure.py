"""Faults in how nodes hang together: something in between, or another value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx
from onnx import helper

from tests.evidence.mutants.folded import Fault, Folded

OPS: dict[str, dict[str, Any]] = {
    "Identity": {},
    "Neg": {},
    "Relu": {},
    "LeakyRelu": {"alpha": 0.9999},
    "Floor": {},
}
PLACES: dict[str, Callable[[Folded], Sequence[onnx.NodeProto]]] = {
    "front": lambda folded: folded.chain[:1],
    "conv": lambda folded: [folded.conv],
    "unfold": lambda folded: folded.after[:1],
    "last_move": lambda folded: folded.after[-1:],
}
"""One node each, none where nothing is moved behind the Conv."""


def inserted(op: str, place: str) -> Fault:
    """A node more."""

    def fault(folded: Folded) -> bool:
        for where in PLACES[place](folded):
            node = helper.make_node(op, [], [], "more", **OPS[op])
            folded.insert(node, where)
            return True
        return False

    return fault


def reads(place: str, value: str) -> Fault:
    """One of the nodes reads another value."""

    def fault(folded: Folded) -> bool:
        for node in PLACES[place](folded):
            old, node.input[0] = node.input[0], value
            return old != value
        return False

    return fault


def unfold_reads_fold(folded: Folded) -> bool:
    """The Conv is left out."""
    for node in folded.after[:1]:
        node.input[0] = folded.conv.input[0]
    return bool(folded.after)


def second_conv(folded: Folded) -> bool:
    """The folded Conv runs on its own output."""
    again = onnx.NodeProto()
    again.CopyFrom(folded.conv)
    again.name, again.output[0] = "again", "twice"
    again.input[0] = folded.conv.output[0]
    at = list(folded.graph.node).index(folded.conv)
    folded.graph.node.insert(at + 1, again)
    for node in folded.after[:1]:
        node.input[0] = "twice"
    return bool(folded.after)


def later_fold(folded: Folded) -> bool:
    """The site stands behind the node that read it: the two change places."""
    last = folded.graph.node[-1]
    if last.op_type != "Asinh":
        return False
    start, end = folded.chain[0].input[0], folded.chain[-1].output[0]
    folded.chain[0].input[0], last.input[0] = "moved", start
    folded.chain[-1].output[0], last.output[0] = "y", "moved"
    nodes = list(folded.graph.node)
    at = nodes.index(folded.chain[0])
    reordered = [*nodes[:at], last, *nodes[at:-1]]
    del folded.graph.node[:]
    folded.graph.node.extend(reordered)
    return start != end


FAULTS: dict[str, Fault] = {
    **{f"node.{op}_before_{place}": inserted(op, place) for op in OPS for place in PLACES},
    "wire.fold_of_another_value": reads("front", "x"),
    "wire.conv_unfolded": reads("conv", "z"),
    "wire.unfold_of_input": reads("unfold", "z"),
    "wire.conv_left_out": unfold_reads_fold,
    "wire.conv_twice": second_conv,
    "wire.site_after_its_reader": later_fold,
}
