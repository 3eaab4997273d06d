"""Pad ops that act along the positions: pools, reductions, resizes, slices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
from widthfold_onnx.rules.padding.runs import Line

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
    given = op.node.attributes
    plain = (
        given.get_string("coordinate_transformation_mode", "") != "tf_crop_and_resize"
        and given.get_string("keep_aspect_ratio_policy", "stretch") == "stretch"
        and "axes" not in given
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
