"""Derive the extents of outputs for operators where onnx's inference errs or knows less.

Inference needs shapes whose numbers are all known. Here a shape with some open elements gives
the extents of the others. For some operators inference says too much: measured on onnx 1.23.2 and
onnxruntime 1.31.1 (tests/model/shapes/test_extents.py).

The extents of a value that a Loop or Scan carries must be invariants, since a declared extent may
hold for one turn only. An extent is an invariant if the first value has it, and the body returns it
for an input that has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.proto.tensors import MAX_RANK
from widthfold_onnx.model.shapes.fact import Fact, either

Attributes = Mapping[str, Any]
Inputs = Sequence[Fact | None]


def extents(op_type: str, attributes: Attributes, inputs: Inputs) -> Dims | None:
    """Return the extents of the first output of a node of the default domain, as far as known.

    Args:
        op_type: the operator.
        attributes: of the node, without defaults.
        inputs: by position; None where one is left out.
    """
    rule = RULES.get(op_type)
    dims = rule(attributes, [*inputs, *[None] * 4]) if rule else None
    return dims and tuple(None if n is None or n < 0 else n for n in dims)


WEIGHTS = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "FusedConv": 1, "QLinearConv": 3}
"""Which input of an operator has the rank of its data."""


def rank_by_weight(node: onnx.NodeProto, facts: Mapping[str, Fact]) -> int | None:
    """Return the rank of the data of a node, if only its weight tells the rank."""
    place = WEIGHTS.get(node.op_type, len(node.input))
    if place >= len(node.input):
        return None
    data, weight = (facts.get(node.input[i]) for i in (0, place))
    if weight is None or weight.dims is None or (data is not None and data.dims is not None):
        return None
    return len(weight.dims)


def _numbers(fact: Fact | None) -> list[Any] | None:
    """Return the elements of a vector, with None for an unknown element."""
    if fact is None or fact.dims is None or len(fact.dims) != 1:
        return None
    if fact.numbers is not None:
        return list(fact.numbers.tolist()) if fact.numbers.size <= 2 * MAX_RANK else None
    (size,) = fact.dims
    return None if size is None or size > 2 * MAX_RANK else [None] * size


def _dims(fact: Fact | None, rank: int) -> Dims:
    """Return the extents of a value that has a rank."""
    dims = fact.dims if fact else None
    return dims if dims is not None and len(dims) == rank else (None,) * rank


def _reshaped(attributes: Attributes, inputs: Inputs) -> Dims | None:
    """Return the extents of a Reshape; a single unknown extent follows from the element count."""
    data, target = inputs[0], _numbers(inputs[1])
    if target is None:
        return None
    dims = data.dims if data else None
    copies = not attributes.get("allowzero", 0)
    for i, n in enumerate(target):
        if n == 0 and copies:
            target[i] = dims[i] if dims is not None and i < len(dims) else None
    open_axes = [i for i, n in enumerate(target) if n is None or n < 0]
    rest = math.prod(n for i, n in enumerate(target) if i not in open_axes)
    if dims is not None and None not in dims and len(open_axes) == 1 and rest:
        target[open_axes[0]] = math.prod(n or 0 for n in dims) // rest
    return tuple(target)


def _expanded(_: Attributes, inputs: Inputs) -> Dims | None:
    """Return the extents of an Expand: an extent of 1 gives way, another one is the result."""
    data, target = inputs[0], _numbers(inputs[1])
    if target is None or data is None or data.dims is None:
        return None
    rank = max(len(target), len(data.dims))
    own = [1] * (rank - len(data.dims)) + [*data.dims]
    target = [1] * (rank - len(target)) + target
    pairs = zip(own, target, strict=True)
    return tuple(
        a if b == 1 or a not in (None, 1) else b if a == 1 or b not in (None, 1) else None
        for a, b in pairs
    )


def _filled(_: Attributes, inputs: Inputs) -> Dims | None:
    """Return the extents of a ConstantOfShape."""
    target = _numbers(inputs[0])
    return None if target is None else tuple(target)


def _pooled(attributes: Attributes, inputs: Inputs) -> Dims | None:
    """Return the extents of a pool with ceil_mode.

    A window that would begin in the pad behind the data is left out (ONNX operator text,
    MaxPool-22); inference counts it.
    """
    kernel, data = attributes.get("kernel_shape", ()), inputs[0]
    if not attributes.get("ceil_mode") or data is None or len(data.dims or ()) != len(kernel) + 2:
        return None
    unit, side = [1] * len(kernel), attributes.get("auto_pad", b"NOTSET")
    strides, dilations = (attributes.get(name, unit) for name in ("strides", "dilations"))
    pads = attributes.get("pads") if side == b"NOTSET" else None
    pads = pads or [0] * 2 * len(kernel)
    batch, channels, *extents = data.dims or ()
    spatial: list[int | None] = []
    # Attributes that do not fit leave extents out, and the rank differs then.
    for n, k, s, d, begin, end in zip(
        extents, kernel, strides, dilations, pads, pads[len(kernel) :], strict=False
    ):
        if n is None or s < 1:
            spatial.append(None)
        elif side.startswith(b"SAME"):
            spatial.append(-(-n // s))
        else:
            count = -(-(begin + n + end - d * (k - 1) - 1) // s) + 1
            spatial.append(min(count, -(-(begin + n) // s)))
    return (batch, channels, *spatial) if len(spatial) == len(kernel) else None


def _resized(attributes: Attributes, inputs: Inputs) -> Dims | None:
    """Return the extents of a Resize to sizes of all axes."""
    target = _numbers(inputs[3])
    is_complete = {"axes", "keep_aspect_ratio_policy"}.isdisjoint(attributes)
    return tuple(target) if target and is_complete else None


def _unchanged(_: Attributes, inputs: Inputs) -> Dims | None:
    """Return the extents of the data: inference derives none for some operators."""
    return inputs[0].dims if inputs[0] else None


def _cut(_: Attributes, inputs: Inputs) -> Dims | None:
    """Return the extents of a Slice: an axis that it does not name keeps its extent."""
    data, axes = inputs[0], _numbers(inputs[3])
    if data is None or not data.dims or axes is None or None in axes:
        return None
    named = {axis % len(data.dims) for axis in axes}
    return tuple(None if i in named else n for i, n in enumerate(data.dims))


def _transposed(attributes: Attributes, inputs: Inputs) -> Dims | None:
    """Return the extents of a ConvTranspose with an output_shape, or with output_padding.

    SAME padding keeps stride times the input's extent (ONNX operator text, ConvTranspose-11), so
    output_padding only fills what the kernel does not reach of that; inference adds all of it. At
    an output_shape below an input's extent inference stops.
    """
    spatial: Dims = tuple(attributes.get("output_shape", ()))
    more = attributes.get("output_padding", ())
    rank = len(spatial or more) + 2
    data, weight = (_dims(fact, rank) for fact in inputs[:2])
    if not spatial and attributes.get("auto_pad", b"").startswith(b"SAME"):
        unit = [1] * len(more)
        strides, dilations = (attributes.get(name, unit) for name in ("strides", "dilations"))
        kernel = attributes.get("kernel_shape") or weight[2:]
        # Attributes that do not fit leave extents out, and the rank differs then.
        spatial = tuple(
            None if n is None or k is None else s * n + min(0, d * (k - 1) + 1 + m - s)
            for n, k, s, d, m in zip(data[2:], kernel, strides, dilations, more, strict=False)
        )
    if not spatial or len(spatial) + 2 < rank:
        return None
    channels = None if weight[1] is None else weight[1] * attributes.get("group", 1)
    return (data[0], channels, *spatial)


def _transformed(attributes: Attributes, inputs: Inputs) -> Dims | None:
    """Return the extents of an STFT: [batch, frames, bins, 2] (ONNX operator text, STFT-17).

    Inference knows no rank unless the signal's length is known, on which only the frames depend.
    """
    signal, _, window, count = inputs[:4]
    length = window.dims[0] if window and window.dims else None
    if count is not None:
        numbers = count.numbers if count.is_whole else None
        length = int(numbers.item()) if numbers is not None and numbers.size == 1 else None
    if signal is None or not signal.dims or length is None:
        return None
    bins = length // 2 + 1 if attributes.get("onesided", 1) else length
    return (signal.dims[0], None, bins, 2)


RULES: Mapping[str, Callable[[Attributes, Inputs], Dims | None]] = {
    "AveragePool": _pooled,
    "ConstantOfShape": _filled,
    "ConvTranspose": _transposed,
    "Expand": _expanded,
    "GroupNormalization": _unchanged,
    "LpPool": _pooled,
    "MaxPool": _pooled,
    "MeanVarianceNormalization": _unchanged,
    "Reshape": _reshaped,
    "Resize": _resized,
    "STFT": _transformed,
    "Slice": _cut,
}


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
