"""Derive the facts of the outputs of Loop and Scan: of a carried value, only invariants hold.

A declared extent may hold for one turn only. An extent of a carried value is an invariant if the
first value has it, and the body returns it for an input that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import TensorProto, helper

from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.shapes.fact import Fact, either

TURNS = 3
"""Turns after which a type that still changes counts as unknown."""

Body = Callable[[Sequence[Fact]], list[Fact]]
"""Returns the facts of the outputs of a body for the facts of its inputs."""


def loop(body: Body, inputs: Sequence[Fact]) -> list[Fact]:
    """Return the facts of the outputs of a Loop."""
    counters = [Fact(TensorProto.INT64, ()), Fact(TensorProto.BOOL, ())]

    def turn(states: Sequence[Fact]) -> list[Fact]:
        return body([*counters, *states])[1:]

    states, stacked = _invariant(turn, inputs[2:])
    return [*states, *(_with_axis(fact, 0, None) for fact in stacked)]


def scan(body: Body, node: onnx.NodeProto, inputs: Sequence[Fact]) -> list[Fact]:
    """Return the facts of the outputs of a Scan (since operator set 9)."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    carried = max(len(inputs) - attributes.get("num_scan_inputs", 0), 0)
    axes = attributes.get("scan_input_axes") or [0] * len(inputs)
    cut = [_without_axis(*pair) for pair in zip(inputs[carried:], axes, strict=False)]
    length = next((n for _, n in cut if n is not None), None)

    def turn(states: Sequence[Fact]) -> list[Fact]:
        return body([*states, *(fact for fact, _ in cut)])

    states, stacked = _invariant(turn, inputs[:carried])
    axes = attributes.get("scan_output_axes") or [0] * len(stacked)
    pairs = zip(stacked, axes, strict=False)
    return [*states, *(_with_axis(fact, axis, length) for fact, axis in pairs)]


def _invariant(
    turn: Callable[[Sequence[Fact]], list[Fact]], first: Sequence[Fact]
) -> tuple[list[Fact], list[Fact]]:
    """Return the facts of the carried values in every turn, and of the other results of a turn."""
    states, turns = [fact.typed() for fact in first], 0
    while True:
        results = turn(states)
        turns += 1
        after = [either(*pair) for pair in zip(states, results, strict=False)]
        after += [Fact()] * (len(states) - len(after))
        if [fact.type for fact in after] == [fact.type for fact in states]:
            return states, results[len(states) :]
        if turns >= TURNS:
            pairs = zip(states, after, strict=True)
            after = [new if new.type == old.type else Fact(new.kind) for old, new in pairs]
        states = after


def _without_axis(fact: Fact, axis: int) -> tuple[Fact, int | None]:
    """Return the fact of a slice of a value along an axis, and the number of slices."""
    dims = fact.dims
    if dims is None or not -len(dims) <= axis < len(dims):
        return Fact(fact.kind), None
    axis %= len(dims)
    return Fact(fact.kind, (*dims[:axis], *dims[axis + 1 :])), dims[axis]


def _with_axis(fact: Fact, axis: int, length: int | None) -> Fact:
    """Return the fact of stacked slices."""
    dims: Dims | None = fact.dims
    if dims is not None:
        axis = axis % (len(dims) + 1)
        dims = (*dims[:axis], length, *dims[axis:])
    return Fact(fact.kind, dims)
