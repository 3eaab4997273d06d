"""Faults in the attributes of the folded Conv."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.evidence.mutants.folded import Fault, Folded, attribute, put

Ints = list[int]


def pads_with(alter: Callable[[Ints, Ints], tuple[Ints, Ints]]) -> Fault:
    """Change begins and ends; they may become negative, which the runtime takes for a crop."""

    def fault(folded: Folded) -> bool:
        pads = attribute(folded.conv, "pads")
        rank = len(pads) // 2
        begins, ends = alter(pads[:rank], pads[rank:])
        put(folded.conv, "pads", [*begins, *ends])
        return [*begins, *ends] != pads

    return fault


def more(values: Ints, axis: int, step: int = 1) -> Ints:
    changed = list(values)
    changed[axis] += step
    return changed


def each(name: str, axis: int, step: int) -> Fault:
    """Strides or dilations of one axis."""

    def fault(folded: Folded) -> bool:
        values = more(attribute(folded.conv, name), axis, step)
        put(folded.conv, name, values)
        return min(values) > 0

    return fault


def stretched(name: str) -> Fault:
    """More stride or dilation of the last axis, and as much more padding as keeps the extent."""

    def fault(folded: Folded) -> bool:
        if not folded.before:
            return False
        source = folded.before[-1]
        length = folded.tensor(source.input[1])[-1] if source.op_type == "Reshape" else 0
        kernel = folded.tensor(folded.conv.input[1]).shape[-1]
        pads, dilations, strides = (
            attribute(folded.conv, n) for n in ("pads", "dilations", "strides")
        )
        room = length + pads[len(pads) // 2 - 1] + pads[-1] - dilations[-1] * (kernel - 1) - 1
        needed = {"dilations": kernel - 1, "strides": room // strides[-1]}[name]
        put(folded.conv, name, more(attribute(folded.conv, name), -1))
        put(folded.conv, "pads", more(pads, -1, int(needed)))
        return bool(length > 0 and needed > 0)

    return fault


def without(name: str) -> Fault:
    def fault(folded: Folded) -> bool:
        had = len(folded.conv.attribute)
        put(folded.conv, name, None)
        return len(folded.conv.attribute) < had

    return fault


def padded_by(auto_pad: str) -> Fault:
    def fault(folded: Folded) -> bool:
        put(folded.conv, "pads", None)
        put(folded.conv, "auto_pad", auto_pad)
        return True

    return fault


def group_of(folded: Folded) -> int:
    return next(a.i for a in folded.conv.attribute if a.name == "group")


def split_groups(folded: Folded) -> bool:
    """Twice as many groups, each with half of the weights of its outputs."""
    name, group = folded.conv.input[1], group_of(folded)
    weight = folded.tensor(name)
    if weight.shape[1] % 2 or weight.shape[0] % (2 * group):
        return False
    folded.store(name, weight[:, : weight.shape[1] // 2])
    put(folded.conv, "group", 2 * group)
    return True


def merged_groups(folded: Folded) -> bool:
    """One group, in which every output reads the inputs of all groups."""
    name, group = folded.conv.input[1], group_of(folded)
    if group == 1:
        return False
    weight = folded.tensor(name)
    folded.store(name, np.concatenate([weight] * group, 1))
    put(folded.conv, "group", 1)
    return True


FAULTS: dict[str, Fault] = {
    "pads.swapped": pads_with(lambda b, e: (e, b)),
    "pads.begin_more": pads_with(lambda b, e: (more(b, -1), e)),
    "pads.end_more": pads_with(lambda b, e: (b, more(e, -1))),
    "pads.begin_less": pads_with(lambda b, e: (more(b, -1, -1), e)),
    "pads.end_less": pads_with(lambda b, e: (b, more(e, -1, -1))),
    "pads.later": pads_with(lambda b, e: (more(b, -1), more(e, -1, -1))),
    "pads.earlier": pads_with(lambda b, e: (more(b, -1, -1), more(e, -1))),
    "pads.first_axis_later": pads_with(lambda b, e: (more(b, 0), more(e, 0, -1))),
    "pads.axes_swapped": pads_with(lambda b, e: (b[::-1], e[::-1])),
    "pads.none": without("pads"),
    "pads.same_upper": padded_by("SAME_UPPER"),
    "pads.same_lower": padded_by("SAME_LOWER"),
    "pads.valid": padded_by("VALID"),
    "strides.more": each("strides", -1, 1),
    "strides.less": each("strides", -1, -1),
    "strides.first_axis_more": each("strides", 0, 1),
    "strides.stretched": stretched("strides"),
    "strides.none": without("strides"),
    "dilations.more": each("dilations", -1, 1),
    "dilations.first_axis_more": each("dilations", 0, 1),
    "dilations.stretched": stretched("dilations"),
    "dilations.none": without("dilations"),
    "group.split": split_groups,
    "group.merged": merged_groups,
}
