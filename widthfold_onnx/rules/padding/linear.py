"""Pad Conv, ConvTranspose and BatchNormalization: zero rows, zero columns, zero groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.padding.op import Laid, Op, PaddedNode, Rule
from widthfold_onnx.rules.padding.runs import Line, Run, count_of, cut


def _channels(op: Op) -> tuple[int, int, int] | Refusal:
    """Return groups, input channels and output channels of a Conv or ConvTranspose."""
    group = op.node.attributes.get_int("group", 1)
    weight, bias = op.stored(1), op.stored(2) if op.has(2) else None
    if isinstance(weight, Refusal):
        return weight
    if isinstance(bias, Refusal):
        return bias
    rank = len(weight.shape)
    first, second = (*weight.shape, 0, 0)[:2]
    inputs, outputs = second * group, first
    if op.node.op_type == "ConvTranspose":
        inputs, outputs = first, second * group
    if rank < 3 or group < 1 or inputs % group or outputs % group or not inputs or not outputs:
        return Refusal(
            Code.INCONSISTENT_SHAPES, f"a weight of {list(weight.shape)} in {group} groups"
        )
    if bias is not None and bias.shape != (outputs,):
        return Refusal(Code.INCONSISTENT_SHAPES, f"a bias of {list(bias.shape)}")
    if op.lines[0] is not None and count_of(op.data) != inputs:
        return Refusal(
            Code.INCONSISTENT_SHAPES, f"{inputs} input channels, but {count_of(op.data)} are read"
        )
    return group, inputs, outputs


def _relate(op: Op) -> Sequence[Line] | Refusal:
    channels = _channels(op)
    if isinstance(channels, Refusal):
        return channels
    group, inputs, outputs = channels
    if group == 1:
        return [(Run(outputs, [op.node]),)]
    if op.lines[0] is None:
        return Refusal(Code.UNKNOWN_SHAPE, "the channels of its input are not known")
    if group == inputs == outputs:
        return [op.data]
    if group in (inputs, outputs):
        return Refusal(
            Code.GROUPS_OF_ONE, f"{inputs} -> {outputs} channels in {group} groups of a single one"
        )
    line = (Run(outputs, [op.node]),)
    cut(op.data, range(0, inputs, inputs // group))
    cut(line, range(0, outputs, outputs // group))
    return [line]


def _pad(op: Laid) -> PaddedNode | Refusal:
    channels, weight = _channels(op), op.constant(1)
    if isinstance(channels, Refusal) or isinstance(weight, Refusal):
        return channels if isinstance(channels, Refusal) else weight  # type: ignore[return-value]
    group, inputs, outputs = channels
    (rows,), columns = op.outputs, op.inputs[0]
    attributes = {}
    if 1 < group == inputs == outputs:
        assert columns is not None
        weight, attributes = columns.expanded(weight, 0), {"group": columns.width}
    else:
        transposed = op.node.op_type == "ConvTranspose"
        whole, per_group = (columns, rows) if transposed else (rows, columns)
        part = None if per_group is None else per_group.of_each(group)
        is_even = whole is None or whole.of_each(group) is not None
        if (part is None and per_group is not None) or not is_even:
            return Refusal(Code.UNEVEN_PARTS, f"its {group} groups would have unequal padding")
        weight = weight if whole is None else whole.expanded(weight, 0)
        weight = weight if part is None else part.expanded(weight, 1)
    constants = {1: weight}
    if op.has(2):
        bias = op.constant(2)
        if isinstance(bias, Refusal):
            return bias
        constants[2] = rows.expanded(bias, 0)
    zero = np.zeros((), weight.dtype) if rows.is_padded else None
    return PaddedNode(zero, constants, attributes)


LINEAR = Rule(_relate, _pad)

NORMALIZED = {1: 0.0, 2: 0.0, 3: 0.0, 4: 1.0}
"""Scale, shift, mean and variance at padding, of which a BatchNormalization makes 0."""


def _relate_normalization(op: Op) -> Sequence[Line] | Refusal:
    attributes = op.node.attributes
    if attributes.get_int("training_mode") or not attributes.get_int("spatial", 1):
        return Refusal(Code.NOT_INFERENCE, "statistics are computed, or differ per position")
    for index in NORMALIZED:
        constant = op.stored(index)
        if isinstance(constant, Refusal):
            return constant
        if constant.shape != (count_of(op.data),):
            return Refusal(
                Code.CONSTANT_VARIES, f"a constant has the extents {list(constant.shape)}"
            )
    return [op.data]


def _pad_normalization(op: Laid) -> PaddedNode | Refusal:
    (layout,) = op.outputs
    constants = {}
    for index, number in NORMALIZED.items():
        array = op.constant(index)
        if isinstance(array, Refusal):
            return array
        constants[index] = layout.expanded(array, 0, number)
    return PaddedNode(None if op.padding is None else np.zeros_like(op.padding), constants)


NORMALIZATION = Rule(_relate_normalization, _pad_normalization)
