"""Faults at the ends of an axis: Pad and Slice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tests.evidence.mutants.convs.moves import Ints, bypassed, constant_of
from tests.evidence.mutants.folded import Fault, Folded, put


def each(step: int) -> Callable[[Ints], Ints]:
    return lambda values: [v + step for v in values]


def at_begin(pads: Ints) -> Ints:
    return [*pads[len(pads) // 2 :], *pads[: len(pads) // 2]]


def moved_to_begin(pads: Ints) -> Ints:
    """One of the positions at the end goes to the begin."""
    half = len(pads) // 2
    return [p + (e > 0) for p, e in zip(pads[:half], pads[half:], strict=True)] + [
        e - (e > 0) for e in pads[half:]
    ]


def pad(change: Callable[[Folded, onnx.NodeProto], None]) -> Fault:
    def fault(folded: Folded) -> bool:
        for node in folded.moves("Pad"):
            change(folded, node)
            return True
        return False

    return fault


def fill(folded: Folded, node: onnx.NodeProto, value: float) -> None:
    if len(node.input) > 1:
        kind = folded.tensor(folded.conv.input[1]).dtype
        node.input.append(folded.constant(np.array(value, kind), "fill"))
    else:
        put(node, "value", value)


def last_dim_by_step(folded: Folded, step: int) -> bool:
    """The Slice takes positions in another order."""
    nodes = folded.moves("Slice")
    if not nodes or len(nodes[0].input) < 4:
        return False
    nodes[0].input.append(folded.constant(np.array([step], np.int64), "steps"))
    if step < 0:
        length = folded.tensor(nodes[0].input[2])
        folded.store(nodes[0].input[1], length - 1)
        folded.store(nodes[0].input[2], np.full_like(length, -(2**31)))
    return True


def shifted_cut(folded: Folded) -> bool:
    """The Slice keeps as many positions, but one later."""
    starts, ends = (constant_of("Slice", 0, index, each(1)) for index in (1, 2))
    return starts(folded) and ends(folded)


FAULTS: dict[str, Fault] = {
    "pad.bypassed": bypassed("Pad", 0),
    "slice.bypassed": bypassed("Slice", 0),
    "slice.shifted": shifted_cut,
    "pad.at_begin": constant_of("Pad", 0, 1, at_begin),
    "pad.one_at_begin": constant_of("Pad", 0, 1, moved_to_begin),
    "pad.edge": pad(lambda folded, node: put(node, "mode", "edge")),
    "pad.reflect": pad(lambda folded, node: put(node, "mode", "reflect")),
    "pad.one": pad(lambda folded, node: fill(folded, node, 1.0)),
    "pad.tiny": pad(lambda folded, node: fill(folded, node, 1e-7)),
    "pad.zero": pad(lambda folded, node: fill(folded, node, 0.0)),
    "slice.starts_later": constant_of("Slice", 0, 1, each(1)),
    "slice.ends_later": constant_of("Slice", 0, 2, each(1)),
    "slice.ends_earlier": constant_of("Slice", 0, 2, each(-1)),
    "slice.other_axis": constant_of("Slice", 0, 3, each(-1)),
    "slice.from_end": constant_of("Slice", 0, 1, each(-2)),
    "slice.backwards": lambda folded: last_dim_by_step(folded, -1),
    "slice.every_second": lambda folded: last_dim_by_step(folded, 2),
}
