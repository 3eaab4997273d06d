"""Pad Concat, Split and Pad, which join channels, part them and append channels of zeros."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.document import Attribute
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.padding.op import CHANNELS, Laid, Op, PaddedNode, Rule, number_stays
from widthfold_onnx.rules.padding.runs import Line, Run, count_of, merge, taken

UNKNOWN_RANK = Refusal(Code.UNKNOWN_SHAPE, "the rank of its input is not known")


def _is_along_channels(op: Op, default: int) -> bool | None:
    """Check whether an op acts along the channels; None if the rank is not known."""
    shape = next((s for s, line in zip(op.shapes, op.lines, strict=True) if line and s), None)
    axis = op.node.attributes.get_int("axis", default)
    return None if shape is None else axis % len(shape) == CHANNELS


def _joined(op: Op) -> Sequence[Line] | Refusal:
    lines = [line for line in op.lines if line is not None]
    along = _is_along_channels(op, 1)
    if along is None:
        return UNKNOWN_RANK
    if len(lines) < len(op.lines):
        return Refusal(Code.NOT_CARRIED, "it joins a constant, or a tensor of unknown extents")
    if along:
        return [tuple(run for line in lines for run in line)]
    if len({count_of(line) for line in lines}) > 1:
        return Refusal(Code.SHAPES_DIFFER, f"extents {list(map(str, op.shapes))}")
    for line in lines[1:]:
        merge(lines[0], line)
    return [lines[0]]


def _pad_joined(op: Laid) -> PaddedNode | Refusal:
    paddings = [padding for padding in op.paddings if padding is not None]
    if len({float(padding) for padding in paddings}) > 1:
        return Refusal(Code.PADDING_VARIES, "the padding of its inputs differs")
    return PaddedNode(paddings[0] if paddings else None)


JOINED = Rule(_joined, _pad_joined)

SPLIT_INPUT = 13
"""First operator set in which the sizes of a Split are an input."""


def _parted(op: Op) -> Sequence[Line] | Refusal:
    along = _is_along_channels(op, 0)
    if along is None:
        return UNKNOWN_RANK
    if not along:
        return [op.data] * len(op.node.outputs)
    channels, count = count_of(op.data), len(op.node.outputs)
    sizes = op.numbers(1, "split", SPLIT_INPUT)
    if sizes is None:
        most = -(-channels // count)
        sizes = [min(most, channels - most * i) for i in range(count)]
    if isinstance(sizes, Refusal):
        return sizes
    if len(sizes) != count or sum(sizes) != channels or min(sizes) < 1:
        return Refusal(Code.UNEVEN_PARTS, f"{channels} channels are split into {count} parts")
    borders = [0, *accumulate(sizes)]
    return [taken(op.data, begin, end) for begin, end in pairwise(borders)]


def _pad_parted(op: Laid) -> PaddedNode | Refusal:
    if not _is_along_channels(op, 0):
        return number_stays(op)
    widths = [layout.width for layout in op.outputs]
    constants: dict[int, Array] = {}
    attributes: dict[str, Attribute | None] = {"num_outputs": None}
    if op.document.opset < SPLIT_INPUT:
        attributes["split"] = widths
    else:
        constants[1] = np.array(widths, np.int64)
    return PaddedNode(op.padding, constants, attributes)


PARTED = Rule(_parted, _pad_parted)

NO_CHANNELS = Refusal(
    Code.PADDING_NOT_ZERO, "that its padding is 0 does not follow from sums and products alone"
)

PADS_INPUT = 11
"""First operator set in which the pads of a Pad are an input."""


def _pads(op: Op) -> list[int] | Refusal:
    """Return the pads at the begin of every axis, then those at the end."""
    if op.has(3):
        return Refusal(Code.NOT_CARRIED, "an input selects the axes that it pads")
    pads = op.numbers(1, "pads", PADS_INPUT)
    if isinstance(pads, list) and (op.shapes[0] is None or len(pads) != 2 * op.rank):
        return Refusal(Code.UNKNOWN_SHAPE, "the rank of its input is not known")
    return [] if pads is None else pads


def _value(op: Op) -> float | Refusal:
    """Return the number that a Pad appends; 0 if it repeats its input."""
    if op.document.opset < PADS_INPUT:
        return op.node.attributes.get_float("value", 0.0)
    array = op.constant(2) if op.has(2) else np.zeros(1)
    return array if isinstance(array, Refusal) else float(array.reshape(-1)[0])


def _appended(op: Op) -> Sequence[Line] | Refusal:
    pads, value = _pads(op), _value(op)
    if isinstance(pads, Refusal):
        return pads
    if isinstance(value, Refusal):
        return value
    begin, end = pads[CHANNELS], pads[op.rank + CHANNELS]
    if begin == end == 0:
        return [op.data]
    is_constant = op.node.attributes.get_string("mode", "constant") == "constant"
    if begin or end < 0 or value or not is_constant:
        return Refusal(Code.ACROSS_CHANNELS, "it does more to channels than to append zeros")
    # Not tied to the input: zeros of the padding may serve as the channels that it appends.
    return [(Run(count_of(op.data) + end, [op.node]),)]


def _pad_appended(op: Laid) -> PaddedNode | Refusal:
    pads, value = _pads(op), _value(op)
    if isinstance(pads, Refusal):
        return pads
    if isinstance(value, Refusal):
        return value
    before, (after,) = op.inputs[0], op.outputs
    assert before is not None
    mode, padding = op.node.attributes.get_string("mode", "constant"), op.padding
    if mode == "constant" and any(pads) and padding is not None and padding != value:
        return Refusal(Code.PADDING_VARIES, f"it appends {value:g}, and the padding is {padding}")
    ends = op.rank + CHANNELS
    if pads[ends]:
        if before.is_padded and not op.zeros[0]:
            return NO_CHANNELS
        appended = after.width - before.width
        if appended < 0 or (after.kept[: before.channels] != before.kept).any():
            return Refusal(Code.UNEVEN_PARTS, "the padding of its result lies elsewhere")
        pads[ends] = appended
        padding = op.zero if after.is_padded else None
    if not any(pads):
        return PaddedNode(padding, vanishes=True)
    if op.document.opset < PADS_INPUT:
        return PaddedNode(padding, attributes={"pads": pads})
    return PaddedNode(padding, {1: np.array(pads, np.int64)})


APPENDED = Rule(_appended, _pad_appended)
