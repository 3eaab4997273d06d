"""Pad ops that return the channels that they read.

Elementwise ops, broadcast or not; ops along positions: pools, reductions, resizes, slices; and ops
that leave a vector of channels: Flatten, Squeeze, Reshape and Gather. A product that reads such a
vector gets rows of zeros in its matrix, and makes no padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.padding.op import (
    CHANNELS,
    Laid,
    Op,
    PaddedNode,
    Rule,
    number_stays,
    same,
    zero_stays,
)
from widthfold_onnx.rules.padding.runs import Line, Run, count_of, merge

FILLED_WITH_ONE = frozenset({"Div", "Mul", "Pow", "PRelu"})
"""Ops of which a constant per channel is 1 at padding: 0 / 0 is no number, and a slope of 0 would
keep the proof from seeing that Max(x, slope * x) is a PRelu. Other constants are 0 there."""


def _relate(op: Op) -> Sequence[Line] | Refusal:
    """Tie all inputs together that are no constants; constants vary per channel at most."""
    lines = [line for line in op.lines if line is not None]
    ranks = {len(shape) for shape, line in zip(op.shapes, op.lines, strict=True) if line and shape}
    if len(ranks) > 1 or len({count_of(line) for line in lines}) > 1:
        shapes = [list(shape) for shape in op.shapes if shape is not None]
        return Refusal(Code.SHAPES_DIFFER, f"extents {shapes}")
    for index, line in enumerate(op.lines):
        if line is None and op.has(index):
            constant = op.stored(index)
            if isinstance(constant, Refusal):
                return constant
            misfit = _misfit(constant.shape, ranks, count_of(lines[0]))
            if misfit is not None:
                return misfit
    for line in lines[1:]:
        merge(lines[0], line)
    return [lines[0]]


def _misfit(extents: tuple[int, ...], ranks: set[int], channels: int) -> Refusal | None:
    """Refuse a constant that varies along another axis than the channels."""
    rank = max(ranks, default=0)
    if not rank and np.prod(extents) != 1:
        return Refusal(Code.UNKNOWN_SHAPE, "the rank of its input is not known")
    axes = (1,) * (rank - len(extents)) + extents
    others = axes[:CHANNELS] + axes[CHANNELS + 1 :]
    if rank and (len(axes) > rank or set(others) - {1} or axes[CHANNELS] not in (1, channels)):
        return Refusal(Code.CONSTANT_VARIES, f"a constant has the extents {list(extents)}")
    return None


def _pad(op: Laid) -> PaddedNode | Refusal:
    (layout,) = op.outputs
    shapes = zip(op.shapes, op.lines, strict=True)
    rank = max((len(shape) for shape, line in shapes if line is not None and shape), default=0)
    operands: list[Array | None] = []
    constants = {}
    for index in range(len(op.node.inputs)):
        padding = op.paddings[index]
        if padding is not None or not op.has(index):
            operands.append(padding)
            continue
        array = op.constant(index)
        if isinstance(array, Refusal):
            return array
        if array.size == 1:
            operands.append(array.reshape(()))
            continue
        fill = 1 if op.node.op_type in FILLED_WITH_ONE else 0
        constants[index] = layout.expanded(array, array.ndim - rank + CHANNELS, fill)
        operands.append(np.full((), fill, array.dtype))
    result = op.applied(operands)
    return result if isinstance(result, Refusal) else PaddedNode(result, constants)


BROADCAST = Rule(_relate, _pad)


def _relate_numbers(op: Op) -> Sequence[Line] | Refusal:
    """Keep the channels of an op of one tensor whose other inputs are single numbers."""
    for index in range(1, len(op.node.inputs)):
        if op.has(index) and isinstance(constant := op.stored(index), Refusal):
            return constant
    return [op.data]


POINTWISE = Rule(_relate_numbers, _pad)


AVERAGE = Rule(same, zero_stays)
LARGEST = Rule(same, number_stays)


def _without_channels(op: Op, axes: Sequence[int] | Refusal | None) -> Refusal | None:
    """Refuse axes that are not known, or that are not all axes of positions."""
    if isinstance(axes, Refusal):
        return axes
    if op.shapes[0] is None:
        return Refusal(Code.UNKNOWN_SHAPE, "the rank of its input is not known")
    if not axes or CHANNELS in (axis % op.rank for axis in axes):
        return Refusal(Code.ACROSS_CHANNELS, "it acts along the channels")
    return None


def _reduced(op: Op) -> Sequence[Line] | Refusal:
    since = 13 if op.node.op_type == "ReduceSum" else 18
    refusal = _without_channels(op, op.numbers(1, "axes", since))
    if refusal is None and not op.node.attributes.get_int("keepdims", 1):
        refusal = Refusal(Code.OTHER_RANK, "it drops axes")
    return refusal or [op.data]


REDUCED = Rule(_reduced, zero_stays)
REDUCED_TO_LARGEST = Rule(_reduced, number_stays)


def _sliced(op: Op) -> Sequence[Line] | Refusal:
    axes = op.numbers(3, "axes", 10)
    if axes is None:
        starts = op.numbers(1, "starts", 10)
        axes = list(range(len(starts))) if isinstance(starts, list) else starts
    return _without_channels(op, axes) or [op.data]


SLICED = Rule(_sliced, number_stays)

SIZES = 3
"""Index of the input of a Resize that gives the output extents."""


def _resized(op: Op) -> Sequence[Line] | Refusal:
    attributes = op.node.attributes
    plain = (
        attributes.get_string("coordinate_transformation_mode", "") != "tf_crop_and_resize"
        and attributes.get_string("keep_aspect_ratio_policy", "stretch") == "stretch"
        and "axes" not in attributes
    )
    index = len(op.node.inputs) - 1
    numbers = op.constant(index) if index and op.has(index) else None
    if isinstance(numbers, Refusal):
        return numbers
    if not plain or numbers is None or numbers.ndim != 1 or numbers.size <= CHANNELS:
        return Refusal(Code.NOT_CARRIED, "it is not given scales or sizes of all axes")
    channels = sum(run.count for run in op.data)
    if numbers[CHANNELS] != (channels if index == SIZES else 1):
        return Refusal(Code.ACROSS_CHANNELS, "it acts along the channels")
    return [op.data]


def _pad_resized(op: Laid) -> PaddedNode | Refusal:
    node = zero_stays(op)
    if isinstance(node, Refusal) or len(op.node.inputs) <= SIZES:
        return node
    sizes = op.constant(SIZES)
    if isinstance(sizes, Refusal):
        return sizes
    sizes = np.array(sizes)
    sizes[CHANNELS] = op.outputs[0].width
    return PaddedNode(node.padding, {SIZES: sizes})


RESIZED = Rule(_resized, _pad_resized)


NOT_PADDED = Refusal(Code.NOT_CARRIED, "a product of matrices makes no padding")


def _flat(op: Op) -> Sequence[Line] | Refusal:
    """Keep the channels of [N, C, 1, ...], which becomes [N, C]."""
    after = op.document.shapes.get("", op.node.outputs[0].name or "")
    shape = op.shapes[0]
    if shape is None or after is None or any(extent != 1 for extent in shape[CHANNELS + 1 :]):
        return Refusal(Code.ACROSS_CHANNELS, "it joins channels with positions")
    if len(after) != CHANNELS + 1 or after[CHANNELS] != count_of(op.data):
        return Refusal(Code.ACROSS_CHANNELS, "its result is no vector of the channels")
    return [op.data]


def _reshaped(op: Op) -> Sequence[Line] | Refusal:
    numbers = op.constant(1)
    return numbers if isinstance(numbers, Refusal) else _flat(op)


def _pad_reshaped(op: Laid) -> PaddedNode | Refusal:
    numbers = op.constant(1)
    if isinstance(numbers, Refusal):
        return numbers
    extents = np.array(numbers)
    if extents[CHANNELS] > 0:
        extents[CHANNELS] = op.outputs[0].width
    return PaddedNode(op.padding, {1: extents})


def _picked(op: Op) -> Sequence[Line] | Refusal:
    axis = op.node.attributes.get_int("axis", 0)
    if op.shapes[0] is None or axis % op.rank <= CHANNELS:
        return Refusal(Code.ACROSS_CHANNELS, "it acts along the channels")
    indices = op.constant(1)
    return indices if isinstance(indices, Refusal) else [op.data]


def _product(op: Op) -> Sequence[Line] | Refusal:
    if op.lines[0] is None or len(op.shapes[0] or ()) != CHANNELS + 1:
        return Refusal(Code.NOT_CARRIED, "its rows are no vectors of padded channels")
    attributes, weight = op.node.attributes, op.stored(1)
    if isinstance(weight, Refusal):
        return weight
    axis = attributes.get_int("transB", 0)
    if attributes.get_int("transA", 0) or len(weight.shape) != 2:
        return Refusal(Code.NOT_CARRIED, "its rows are no vectors of padded channels")
    if weight.shape[axis] != count_of(op.data):
        return Refusal(Code.INCONSISTENT_SHAPES, f"a weight of {list(weight.shape)}")
    return [(Run(weight.shape[1 - axis], ends={op.node: NOT_PADDED}),)]


def _pad_product(op: Laid) -> PaddedNode | Refusal:
    weight, layout = op.constant(1), op.inputs[0]
    if isinstance(weight, Refusal):
        return weight
    assert layout is not None
    axis = op.node.attributes.get_int("transB", 0)
    return PaddedNode(None, {1: layout.expanded(weight, axis)})


FLAT = Rule(_flat, number_stays)
RESHAPED = Rule(_reshaped, _pad_reshaped)
PICKED = Rule(_picked, number_stays)
PRODUCT = Rule(_product, _pad_product)
