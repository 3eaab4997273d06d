"""Pad ops that leave a vector of channels, and the products that read it: rows of zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.padding.op import CHANNELS, Laid, Op, PaddedNode, Rule, number_stays
from widthfold_onnx.rules.padding.runs import Line, Run, count_of

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
