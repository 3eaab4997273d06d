"""Finds what Loop and Scan return: of what they carry, only what no turn changes is known.

Declared extents may be those of one turn. One of a carried value is an invariant if the first value
has it, and the body, given it, returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import TensorProto, helper

from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.shapes.fact import Fact, either

TURNS = 3
"""Turns after which nothing is known of what still changes."""

Body = Callable[[Sequence[Fact]], list[Fact]]
"""Returns what is known of the outputs of a body, by what is known of its inputs."""


def loop(body: Body, inputs: Sequence[Fact]) -> list[Fact]:
    """Return what is known of the outputs of a Loop."""
    counters = [Fact(TensorProto.INT64, ()), Fact(TensorProto.BOOL, ())]

    def turn(states: Sequence[Fact]) -> list[Fact]:
        return body([*counters, *states])[1:]

    states, stacked = _invariant(turn, inputs[2:])
    return [*states, *(_with_axis(fact, 0, None) for fact in stacked)]


def scan(body: Body, node: onnx.NodeProto, inputs: Sequence[Fact]) -> list[Fact]:
    """Return what is known of the outputs of a Scan (since operator set 9)."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    carried = max(len(inputs) - given.get("num_scan_inputs", 0), 0)
    axes = given.get("scan_input_axes") or [0] * len(inputs)
    cut = [_without_axis(*pair) for pair in zip(inputs[carried:], axes, strict=False)]
    length = next((n for _, n in cut if n is not None), None)

    def turn(states: Sequence[Fact]) -> list[Fact]:
        return body([*states, *(fact for fact, _ in cut)])

    states, stacked = _invariant(turn, inputs[:carried])
    axes = given.get("scan_output_axes") or [0] * len(stacked)
    pairs = zip(stacked, axes, strict=False)
    return [*states, *(_with_axis(fact, axis, length) for fact, axis in pairs)]


def _invariant(
    turn: Callable[[Sequence[Fact]], list[Fact]], first: Sequence[Fact]
) -> tuple[list[Fact], list[Fact]]:
    """Return what holds of the carried values in every turn, and what else the turns return."""
    states, turns = [fact.typed() for fact in first], 0
    while True:
        made = turn(states)
        turns += 1
        after = [either(*pair) for pair in zip(states, made, strict=False)]
        after += [Fact()] * (len(states) - len(after))
        if [fact.type for fact in after] == [fact.type for fact in states]:
            return states, made[len(states) :]
        if turns >= TURNS:
            pairs = zip(states, after, strict=True)
            after = [new if new.type == old.type else Fact(new.kind) for old, new in pairs]
        states = after


def _without_axis(fact: Fact, axis: int) -> tuple[Fact, int | None]:
    """Return what is known of one slice of a value, and of how many there are."""
    dims = fact.dims
    if dims is None or not -len(dims) <= axis < len(dims):
        return Fact(fact.kind), None
    axis %= len(dims)
    return Fact(fact.kind, (*dims[:axis], *dims[axis + 1 :])), dims[axis]


def _with_axis(fact: Fact, axis: int, length: int | None) -> Fact:
    """Return what is known of slices that are stacked."""
    dims: Dims | None = fact.dims
    if dims is not None:
        axis = axis % (len(dims) + 1)
        dims = (*dims[:axis], length, *dims[axis:])
    return Fact(fact.kind, dims)
