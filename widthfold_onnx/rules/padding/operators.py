"""Pad the channels of an op: the rule of each operator.

A Conv makes padding by rows of zeros in its weight, and ignores padding by columns of zeros. Other
ops pass channels on: elementwise ops, broadcast or not; ops along positions, such as pools; Concat,
Split and Pad, which join, part and append channels; and ops that leave a vector of channels, such
as Flatten. A product that reads such a vector gets rows of zeros in its matrix, and makes no
padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from widthfold_onnx.algebra.channels import Grouping
from widthfold_onnx.algebra.layouts import PaddedLayout
from widthfold_onnx.arrays import Array
from widthfold_onnx.operators.matmul import flag
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.op import (
    BROADCASTING,
    PARTS_OPSET,
    SIZES,
    UNARY,
    as_inputs,
    constant_problem,
    statistics_problem,
)
from widthfold_onnx.rules.padding.channels import (
    CHANNELS,
    OpInPadding,
    OpWithChannels,
    PaddedOp,
    PaddingRule,
    Segment,
    Segments,
    channel_range,
    count_of,
    cut,
    merge,
)

UNKNOWN_RANK = Refusal(Code.UNKNOWN_SHAPE, "the rank of its input is not known")
UNKNOWN_CHANNELS = Refusal(Code.UNKNOWN_SHAPE, "the channels of its input are not known")
ACROSS_CHANNELS = Refusal(Code.ACROSS_CHANNELS, "it acts along the channels")


def _tied(operands: Sequence[Segments]) -> list[Segments]:
    """Let operands of equally many channels share their segments, which the output has, too."""
    for segments in operands[1:]:
        merge(operands[0], segments)
    return [operands[0]]


def _relate_data(op: OpWithChannels) -> Sequence[Segments] | Refusal:
    """Return the channels of input 0 as the channels of the output."""
    return [op.data]


def _pad_weighted_sum(op: OpInPadding) -> PaddedOp | Refusal:
    """Pad an op that returns weighted sums of positions: only padding of 0 stays what it is."""
    if op.padding is not None and op.padding != 0:
        return Refusal(Code.PADDING_NOT_ZERO, f"its padding is {op.padding}, not 0")
    return PaddedOp(op.padding)


def _pad_selection(op: OpInPadding) -> PaddedOp | Refusal:
    """Pad an op that returns one of the positions that it reads."""
    return PaddedOp(op.padding)


# Conv, ConvTranspose: zero rows, zero columns, zero groups.


def _channels(op: OpWithChannels) -> Grouping | Refusal:
    """Return the channels and groups of a Conv or ConvTranspose."""
    group = op.node.attributes.get_int("group", 1)
    weight = op.constant(1).shape
    first, second = (*weight, 0, 0)[:2]
    inputs, outputs = second * group, first
    if op.node.op_type == "ConvTranspose":
        inputs, outputs = first, second * group
    if len(weight) < 3 or group < 1 or inputs % group or outputs % group or not inputs * outputs:
        return Refusal(Code.INCONSISTENT_SHAPES, f"a weight of {list(weight)} in {group} groups")
    if op.has(2) and op.constant(2).shape != (outputs,):
        return Refusal(Code.INCONSISTENT_SHAPES, f"a bias of {list(op.constant(2).shape)}")
    if op.channels[0] is not None and count_of(op.data) != inputs:
        return Refusal(
            Code.INCONSISTENT_SHAPES, f"{inputs} input channels, but {count_of(op.data)} are read"
        )
    return Grouping(inputs, outputs, group)


def _relate_linear(op: OpWithChannels) -> Sequence[Segments] | Refusal:
    channels = _channels(op)
    if isinstance(channels, Refusal):
        return channels
    group, inputs, outputs = channels.group, channels.inputs, channels.outputs
    if group == 1:
        return [(Segment(outputs, {op.node: None}),)]
    if op.channels[0] is None:
        return UNKNOWN_CHANNELS
    if group == inputs == outputs:
        return [op.data]
    if group in (inputs, outputs):
        return Refusal(
            Code.GROUPS_OF_ONE, f"{inputs} -> {outputs} channels in {group} groups of a single one"
        )
    segments = (Segment(outputs, {op.node: None}),)
    cut(op.data, range(0, inputs, inputs // group))
    cut(segments, range(0, outputs, outputs // group))
    return [segments]


def _pad_linear(op: OpInPadding) -> PaddedOp | Refusal:
    """Pad weight [O, C/group, *kernel] (ConvTranspose: [C, O/group, *kernel]) and bias [O] by 0."""
    group = op.node.attributes.get_int("group", 1)
    weight = op.array(1)
    transposed = op.node.op_type == "ConvTranspose"
    count = weight.shape[0 if transposed else 1]
    (out_layout,) = op.outputs
    in_layout = op.inputs[0] or PaddedLayout(((count, count),))
    attributes = {}
    if 1 < group == out_layout.channels == in_layout.channels:
        weight = in_layout.expand(weight, 0)
        attributes = {"group": in_layout.width}
    else:
        all_groups, per_group = (in_layout, out_layout) if transposed else (out_layout, in_layout)
        part = per_group.layout_of_group(group)
        if part is None or all_groups.layout_of_group(group) is None:
            return Refusal(Code.UNEVEN_PARTS, f"its {group} groups would have unequal padding")
        weight = part.expand(all_groups.expand(weight, 0), 1)
    constants = {1: weight}
    if op.has(2):
        constants[2] = out_layout.expand(op.array(2), 0)
    zero = np.zeros((), weight.dtype) if out_layout.is_padded else None
    return PaddedOp(zero, constants, attributes)


NORMALIZED = {1: 0.0, 2: 0.0, 3: 0.0, 4: 1.0}
"""Scale, shift, mean and variance at padding: with these a BatchNormalization returns 0."""


def _relate_normalization(op: OpWithChannels) -> Sequence[Segments] | Refusal:
    problem = statistics_problem(op.node)
    if problem is not None:
        return problem
    for shape in (op.constant(index).shape for index in NORMALIZED):
        if shape != (count_of(op.data),):
            return Refusal(Code.CONSTANT_VARIES, f"a constant has the extents {list(shape)}")
    return [op.data]


def _pad_normalization(op: OpInPadding) -> PaddedOp | Refusal:
    (layout,) = op.outputs
    constants = {i: layout.expand(op.array(i), 0, fill) for i, fill in NORMALIZED.items()}
    return PaddedOp(None if op.padding is None else np.zeros_like(op.padding), constants)


# Elementwise ops.

FILLED_WITH_ONE = frozenset({"Div", "Mul", "Pow", "PRelu"})
"""Ops whose constant per channel is 1 at padding: 0 / 0 is no number, and a slope of 0 would
keep the proof from seeing that Max(x, slope * x) is a PRelu. Other constants are 0 there."""


def _relate_broadcast(op: OpWithChannels) -> Sequence[Segments] | Refusal:
    """Tie all inputs together that are no constants; constants vary per channel at most."""
    operands = [segments for segments in op.channels if segments is not None]
    ranks = {
        len(shape)
        for shape, segments in zip(op.shapes, op.channels, strict=True)
        if segments and shape
    }
    if len(ranks) > 1 or len({count_of(segments) for segments in operands}) > 1:
        return op.differing_extents
    for index, segments in enumerate(op.channels):
        if segments is None and op.has(index):
            problem = _operand_problem(op, index, count_of(operands[0]))
            if problem is not None:
                return problem
    return _tied(operands)


def _operand_problem(op: OpWithChannels, index: int, channels: int) -> Refusal | None:
    """Refuse an operand that is no constant, or varies along another axis than the channels."""
    array = op.constant_array(index)
    if isinstance(array, Refusal):
        return array
    if op.rank:
        return constant_problem(array.shape, op.rank, CHANNELS, channels)
    return None if array.size == 1 else UNKNOWN_RANK


def _pad_broadcast(op: OpInPadding) -> PaddedOp | Refusal:
    (layout,) = op.outputs
    operands: list[Array | None] = []
    constants = {}
    for index, padding in enumerate(op.paddings):
        if padding is not None or not op.has(index):
            operands.append(padding)
            continue
        array = op.array(index)
        if array.size == 1:
            operands.append(array.reshape(()))
            continue
        fill = 1 if op.node.op_type in FILLED_WITH_ONE else 0
        constants[index] = layout.expand(array, array.ndim - op.rank + CHANNELS, fill)
        operands.append(np.full((), fill, array.dtype))
    result = op.apply_to_padding(operands)
    return result if isinstance(result, Refusal) else PaddedOp(result, constants)


# Ops along positions.


def _without_channels(op: OpWithChannels, axes: Sequence[int] | Refusal | None) -> Refusal | None:
    """Refuse axes that are not known, or among which are the channels; no axes mean all."""
    if isinstance(axes, Refusal):
        return axes
    if not op.rank:
        return UNKNOWN_RANK
    return None if axes and CHANNELS not in (a % op.rank for a in axes) else ACROSS_CHANNELS


def _relate_reduce(op: OpWithChannels) -> Sequence[Segments] | Refusal:
    refusal = _without_channels(op, op.numbers(1, "axes"))
    if refusal is None and not op.node.attributes.get_int("keepdims", 1):
        refusal = Refusal(Code.OTHER_RANK, "it drops axes")
    return refusal or [op.data]


def _relate_slice(op: OpWithChannels) -> Sequence[Segments] | Refusal:
    axes = op.numbers(3, "axes")
    if axes is None:
        starts = op.numbers(1, "starts")
        axes = list(range(len(starts))) if isinstance(starts, list) else starts
    return _without_channels(op, axes) or [op.data]


def _relate_resize(op: OpWithChannels) -> Sequence[Segments] | Refusal:
    result = op.scales_or_sizes()
    if isinstance(result, Refusal):
        return result
    index, numbers = result
    if numbers.ndim != 1 or numbers.size <= CHANNELS:
        return Refusal(Code.NOT_CARRIED, "it is not given scales or sizes of all axes")
    if numbers[CHANNELS] != (count_of(op.data) if index == SIZES else 1):
        return ACROSS_CHANNELS
    return [op.data]


def _pad_resize(op: OpInPadding) -> PaddedOp | Refusal:
    node = _pad_weighted_sum(op)
    if isinstance(node, Refusal) or not op.has(SIZES):
        return node
    return PaddedOp(node.padding, {SIZES: _padded_extents(op, SIZES)})


def _padded_extents(op: OpInPadding, index: int) -> Array:
    """Return the extents that an input gives, with the padded channels of the result."""
    extents = np.array(op.array(index))
    if extents[CHANNELS] > 0:  # else a Reshape copies or infers them
        extents[CHANNELS] = op.outputs[0].width
    return extents


# Concat, Split and Pad.


def _acts_along_channels(op: OpWithChannels) -> bool:
    """Check whether an op acts along the channels; its rank is known."""
    return op.node.attributes.get_int("axis", 0) % op.rank == CHANNELS


def _relate_concat(op: OpWithChannels) -> Sequence[Segments] | Refusal:
    operands = [segments for segments in op.channels if segments is not None]
    if not op.rank:
        return UNKNOWN_RANK
    if len(operands) < len(op.channels):
        return Refusal(Code.NOT_CARRIED, "it joins a constant, or a tensor of unknown extents")
    if _acts_along_channels(op):
        return [tuple(segment for segments in operands for segment in segments)]
    if len({count_of(segments) for segments in operands}) > 1:
        return op.differing_extents
    return _tied(operands)


def _pad_concat(op: OpInPadding) -> PaddedOp | Refusal:
    paddings = [padding for padding in op.paddings if padding is not None]
    if len({float(padding) for padding in paddings}) > 1:
        return Refusal(Code.PADDING_VARIES, "the padding of its inputs differs")
    return PaddedOp(paddings[0] if paddings else None)


def _relate_split(op: OpWithChannels) -> Sequence[Segments] | Refusal:
    if not op.rank:
        return UNKNOWN_RANK
    if not _acts_along_channels(op):
        return [op.data] * len(op.node.outputs)
    sizes = op.split_sizes(count_of(op.data))
    if isinstance(sizes, Refusal):
        return sizes
    borders = [0, *accumulate(sizes)]
    return [channel_range(op.data, begin, end) for begin, end in pairwise(borders)]


def _pad_split(op: OpInPadding) -> PaddedOp | Refusal:
    if not _acts_along_channels(op):
        return _pad_selection(op)
    widths = [layout.width for layout in op.outputs]
    inputs, attributes = as_inputs(op.document, PARTS_OPSET, {"split": widths})
    constants = {1: np.array(widths, np.int64)} if inputs else {}
    return PaddedOp(op.padding, constants, {"num_outputs": None, **attributes})


ZERO_UNPROVED = Refusal(
    Code.PADDING_NOT_ZERO, "that its padding is 0 does not follow from sums and products alone"
)


def _pad_settings(op: OpWithChannels) -> tuple[list[int], float, str] | Refusal:
    """Return the pads of a Pad, the number that it appends, and its mode."""
    pads = op.pads(op.rank) if op.rank else UNKNOWN_RANK
    attributes = op.node.attributes
    number = float(op.array(2).reshape(-1)[0]) if op.has(2) else attributes.get_float("value", 0.0)
    mode = attributes.get_string("mode", "constant")
    return pads if isinstance(pads, Refusal) else (pads, number, mode)


def _relate_pad(op: OpWithChannels) -> Sequence[Segments] | Refusal:
    settings = _pad_settings(op)
    if isinstance(settings, Refusal):
        return settings
    pads, number, mode = settings
    begin, end = pads[CHANNELS], pads[op.rank + CHANNELS]
    if begin == end == 0:
        return [op.data]
    if begin or end < 0 or number or mode != "constant":
        return Refusal(Code.ACROSS_CHANNELS, "it does more to channels than to append zeros")
    # Not tied to the input: zeros of the padding may serve as the channels that it appends.
    return [(Segment(count_of(op.data) + end, {op.node: None}),)]


def _pad_pad(op: OpInPadding) -> PaddedOp | Refusal:
    settings = _pad_settings(op)
    if isinstance(settings, Refusal):
        return settings
    pads, number, mode = settings
    data, (result,), padding = op.inputs[0], op.outputs, op.padding
    assert data is not None
    if mode == "constant" and any(pads) and padding is not None and padding != number:
        return Refusal(Code.PADDING_VARIES, f"it appends {number:g}, and the padding is {padding}")
    end_pad = op.rank + CHANNELS
    if pads[end_pad]:
        if data.is_padded and not op.zeros[0]:
            return ZERO_UNPROVED
        growth = result.width - data.width
        if growth < 0 or (result.places[: data.channels] != data.places).any():
            return Refusal(Code.UNEVEN_PARTS, "the padding of its result lies elsewhere")
        pads[end_pad] = growth
        padding = op.zero if result.is_padded else None
    if not any(pads):
        return PaddedOp(padding, vanishes=True)
    return PaddedOp(padding, *op.with_pads(pads))


# A vector of channels, and a product that reads it.

MAKES_NO_PADDING = Refusal(Code.NOT_CARRIED, "a product of matrices makes no padding")
NO_VECTORS = Refusal(Code.NOT_CARRIED, "its rows are no vectors of padded channels")


def _relate_flatten(op: OpWithChannels) -> Sequence[Segments] | Refusal:
    """Keep the channels of [N, C, 1, ...], which becomes [N, C]."""
    result = op.document.dims(op.document.main, op.node.outputs[0])
    shape = op.shapes[0]
    if shape is None or result is None or any(extent != 1 for extent in shape[CHANNELS + 1 :]):
        return Refusal(Code.ACROSS_CHANNELS, "it joins channels with positions")
    if len(result) != CHANNELS + 1 or result[CHANNELS] != count_of(op.data):
        return Refusal(Code.ACROSS_CHANNELS, "its result is no vector of the channels")
    return [op.data]


def _pad_reshape(op: OpInPadding) -> PaddedOp | Refusal:
    return PaddedOp(op.padding, {1: _padded_extents(op, 1)})


def _relate_gather(op: OpWithChannels) -> Sequence[Segments] | Refusal:
    axis = op.node.attributes.get_int("axis", 0)
    return [op.data] if op.rank and axis % op.rank > CHANNELS else ACROSS_CHANNELS


def _relate_product(op: OpWithChannels) -> Sequence[Segments] | Refusal:
    weight = op.constant(1).shape
    axis = int(flag(op.node, "transB"))
    is_vector = op.channels[0] is not None and len(op.shapes[0] or ()) == CHANNELS + 1
    if not is_vector or flag(op.node, "transA") or len(weight) != 2:
        return NO_VECTORS
    if weight[axis] != count_of(op.data):
        return Refusal(Code.INCONSISTENT_SHAPES, f"a weight of {list(weight)}")
    return [(Segment(weight[1 - axis], stops={op.node: MAKES_NO_PADDING}),)]


def _pad_product(op: OpInPadding) -> PaddedOp | Refusal:
    layout = op.inputs[0]
    assert layout is not None
    return PaddedOp(None, {1: layout.expand(op.array(1), int(flag(op.node, "transB")))})


PADDING: Mapping[str, PaddingRule] = {
    **dict.fromkeys(
        (*sorted(UNARY), "Clip"), PaddingRule(_relate_data, _pad_broadcast, slice(1, None))
    ),
    **dict.fromkeys(sorted(BROADCASTING), PaddingRule(_relate_broadcast, _pad_broadcast)),
    **dict.fromkeys(
        ("AveragePool", "GlobalAveragePool"), PaddingRule(_relate_data, _pad_weighted_sum)
    ),
    **dict.fromkeys(("GlobalMaxPool", "MaxPool"), PaddingRule(_relate_data, _pad_selection)),
    **dict.fromkeys(("ReduceMean", "ReduceSum"), PaddingRule(_relate_reduce, _pad_weighted_sum)),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), PaddingRule(_relate_reduce, _pad_selection)),
    **dict.fromkeys(
        ("Conv", "ConvTranspose"), PaddingRule(_relate_linear, _pad_linear, slice(1, 3))
    ),
    **dict.fromkeys(("Flatten", "Squeeze"), PaddingRule(_relate_flatten, _pad_selection)),
    **dict.fromkeys(("Gemm", "MatMul"), PaddingRule(_relate_product, _pad_product, slice(1, 2))),
    "BatchNormalization": PaddingRule(_relate_normalization, _pad_normalization, slice(1, 5)),
    "Concat": PaddingRule(_relate_concat, _pad_concat),
    "Gather": PaddingRule(_relate_gather, _pad_selection, slice(1, 2)),
    "Pad": PaddingRule(_relate_pad, _pad_pad, slice(2, 3)),
    "Reshape": PaddingRule(_relate_flatten, _pad_reshape, slice(1, 2)),
    "Resize": PaddingRule(_relate_resize, _pad_resize),
    "Slice": PaddingRule(_relate_slice, _pad_selection),
    "Split": PaddingRule(_relate_split, _pad_split),
}
"""The rule that pads an operator, by its type."""
