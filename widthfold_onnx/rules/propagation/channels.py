"""Run Concat and Split of channels on packed tensors."""

from __future__ import annotations

import numpy as np

from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.propagation.op import Op, PackedOp


def concat(op: Op) -> PackedOp | Refusal:
    """Carry a Concat of channels, if the packed positions of every channel stay together."""
    shapes = [shape for shape in op.shapes if shape is not None]
    if len(shapes) < len(op.shapes):
        return Refusal(Code.NOT_PACKED, "an input is not packed in this layout")
    first = shapes[0]
    joins = op.layout.names_channels(op.node.attributes.get_int("axis", 0), len(first))
    if not joins or not op.layout.channel_major:
        return Refusal(Code.OTHER_AXIS, "it joins along another axis, or tiles lie in between")
    channel = op.layout.channel_axis % len(first)
    total = sum(shape[channel] or 0 for shape in shapes)
    joined = {_with(shape, channel, total) for shape in shapes}
    if len(joined) > 1:
        return Refusal(Code.SHAPES_DIFFER, f"extents {[list(shape) for shape in shapes]}")
    return PackedOp(tuple(joined))


def _with(shape: Dims, axis: int, extent: int | None) -> Dims:
    """Return the extents with another one at an axis."""
    return (*shape[:axis], extent, *shape[axis + 1 :])


def split(op: Op) -> PackedOp | Refusal:
    """Carry a Split of channels; every channel takes its packed positions with it."""
    shape, count = op.data, len(op.node.outputs)
    channel = op.layout.channel_axis % len(shape)
    channels = shape[channel] or 0
    splits = op.layout.names_channels(op.node.attributes.get_int("axis", 0), len(shape))
    if not splits or not op.layout.channel_major:
        return Refusal(Code.OTHER_AXIS, "it splits along another axis, or tiles lie in between")
    if "split" in op.node.attributes:
        return Refusal(Code.NOT_CARRIED, "the sizes of its parts are an attribute")
    sizes, constants = np.full(count, channels // count), {}
    if len(op.node.inputs) > 1 and op.node.inputs[1] is not None:
        array = op.constant(1)
        if isinstance(array, Refusal):
            return array
        sizes, constants = array, {1: array * (op.layout.channels(channels).size // channels)}
    if sizes.shape != (count,) or sizes.sum() != channels or sizes.min() < 1:
        return Refusal(Code.UNEVEN_PARTS, f"{channels} channels are split into {count} parts")
    return PackedOp(tuple(_with(shape, channel, int(size)) for size in sizes), constants)
