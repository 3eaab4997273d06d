"""Pad ops whose elements depend on the same elements of their inputs, broadcast or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.padding.op import CHANNELS, Laid, Op, PaddedNode, Rule
from widthfold_onnx.rules.padding.runs import Line, count_of, merge

FILLED_WITH_ONE = frozenset({"Div", "Pow"})
"""Ops whose second operand is 1 at padding, if it is a constant per channel: 0 / 0 is no number."""


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
    """Refuse a constant that varies along another axis than that of the channels."""
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
        fill = 1 if op.node.op_type in FILLED_WITH_ONE and index == 1 else 0
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
