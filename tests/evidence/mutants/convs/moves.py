"""Faults in the order of elements: Reshape and Transpose."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from tests.evidence.mutants.folded import Fault, Folded, attribute, put

Ints = list[int]


def permuted(which: int, alter: Callable[[Ints], Ints | None]) -> Fault:
    """Another order in the first or last Transpose; None drops the attribute."""

    def fault(folded: Folded) -> bool:
        nodes = folded.moves("Transpose")
        if not nodes:
            return False
        order = attribute(nodes[which], "perm")
        new = alter(order)
        put(nodes[which], "perm", new)
        return new != order

    return fault


def inverse(order: Ints) -> Ints:
    return [order.index(i) for i in range(len(order))]


def exchanged(order: Ints, first: int, second: int) -> Ints:
    order = list(order)
    order[first], order[second] = order[second], order[first]
    return order


def bypassed(op_type: str, which: int) -> Fault:
    """The move is left out: who read its output reads its input."""

    def fault(folded: Folded) -> bool:
        nodes = folded.moves(op_type)
        if not nodes:
            return False
        gone = nodes[which]
        for node in folded.graph.node:
            node.input[:] = [gone.input[0] if v == gone.output[0] else v for v in node.input]
        folded.graph.node.remove(gone)
        return True

    return fault


def constant_of(op_type: str, which: int, index: int, alter: Callable[[Ints], Ints]) -> Fault:
    """Change an input of a move, or before that was an input the attribute."""
    attributes = {"Pad": {1: "pads"}, "Slice": {1: "starts", 2: "ends", 3: "axes"}}

    def fault(folded: Folded) -> bool:
        nodes = folded.moves(op_type)
        if not nodes:
            return False
        node = nodes[which]
        if len(node.input) > 1:
            old = folded.tensor(node.input[index]).tolist()
            folded.store(node.input[index], np.array(alter(old), np.int64))
        else:
            name = attributes[op_type][index]
            old = attribute(node, name)
            put(node, name, alter(old))
        return alter(old) != old

    return fault


def unequal_swapped(dims: Ints) -> Ints:
    """The first two neighbouring extents that are numbers and differ change places."""
    for i, (first, second) in enumerate(pairwise(dims[1:]), 1):
        if first != second and min(first, second) > 0:
            return exchanged(dims, i, i + 1)
    return dims


def shuffled(name: str, value: int | str) -> Fault:
    """Another order, or another block, of a DepthToSpace."""

    def fault(folded: Folded) -> bool:
        for node in folded.moves("DepthToSpace"):
            put(node, name, value)
            return True
        return False

    return fault


FAULTS: dict[str, Fault] = {
    "shuffle.other_order": shuffled("mode", "DCR"),
    "shuffle.no_block": shuffled("blocksize", 1),
    "shuffle.bypassed": bypassed("DepthToSpace", 0),
    **{
        f"transpose.{name}_{place}": permuted(which, alter)
        for place, which in (("first", 0), ("last", -1))
        for name, alter in {
            "last_two": lambda order: exchanged(order, -1, -2),
            "first_two": lambda order: exchanged(order, 1, 2),
            "inverse": inverse,
            "rotated": lambda order: [order[0], *order[2:], order[1]],
            "identity": sorted,
            "default": lambda order: None,
        }.items()
    },
    **{
        f"{op.lower()}.bypassed_{place}": bypassed(op, which)
        for op in ("Reshape", "Transpose")
        for place, which in (("first", 0), ("last", -1))
    },
    **{
        f"reshape.{name}_{place}": constant_of("Reshape", which, 1, alter)
        for place, which in (("first", 0), ("second", 1), ("last", -1), ("last_but_one", -2))
        for name, alter in {
            "extents_swapped": unequal_swapped,
            "batch_2": lambda dims: [2, *dims[1:]] if dims[0] == 0 else dims,
            "positions_10": lambda dims: [10 if d == -1 else d for d in dims],
            "batch_inferred": lambda dims: [-1, *(abs(d) for d in dims[1:])],
            "last_inferred": lambda dims: [max(dims[0], 2), *dims[1:-1], -1],
        }.items()
    },
}
