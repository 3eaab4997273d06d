"""Find the axes along which an op acts, and their new extents; all other axes stay as they are.

Such an op runs unchanged on packed tensors whose layout leaves these axes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from widthfold_onnx.fold.conv_axis import ConvAxis
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.propagation.op import Op

Changed = dict[int, int | None]
"""Axis -> its new extent, None where that is open."""


def _pool(op: Op, shape: Dims) -> Changed | Refusal:
    """Return the pooled axes: those with several kernel positions, a stride or pads."""
    if op.text("auto_pad", "NOTSET") != "NOTSET" or op.integer("ceil_mode", 0):
        return Refusal(Code.IMPLICIT_EXTENT, "auto_pad or ceil_mode")
    kernel = op.integers("kernel_shape", [])
    rank = len(kernel)
    strides, dilations = op.integers("strides", [1] * rank), op.integers("dilations", [1] * rank)
    pads = op.integers("pads", [0] * (2 * rank))
    lengths = (rank + 2, len(strides), len(dilations), len(pads))
    if lengths != (len(shape), rank, rank, 2 * rank):
        return Refusal(Code.INCONSISTENT_ATTRIBUTES, f"{lengths} for an input of rank {len(shape)}")
    changed: Changed = {}
    for i, extent in enumerate(shape[2:]):
        begin, end = pads[i], pads[rank + i]
        if (kernel[i], strides[i], begin, end) != (1, 1, 0, 0):
            changed[i + 2] = ConvAxis(
                length=extent,
                kernel=kernel[i],
                stride=strides[i],
                dilation=dilations[i],
                pad_begin=begin,
                pad_end=end,
            ).out_length
    return changed


def _pad(op: Op, shape: Dims) -> Changed | Refusal:
    if op.document.opset < 11:
        pads = op.integers("pads", [])
    else:
        array = op.constant(1)
        if isinstance(array, Refusal):
            return array
        if len(op.node.inputs) > 3 and op.node.inputs[3] is not None:
            return Refusal(Code.NOT_CARRIED, "pads of chosen axes")
        pads = array.ravel().tolist()
    if len(pads) != 2 * len(shape):
        return Refusal(Code.INCONSISTENT_ATTRIBUTES, f"{len(pads)} pads for rank {len(shape)}")
    ends = zip(shape, pads[: len(shape)], pads[len(shape) :], strict=True)
    return {
        i: None if extent is None else extent + begin + end
        for i, (extent, begin, end) in enumerate(ends)
        if (begin, end) != (0, 0)
    }


def _reduce(op: Op, shape: Dims) -> Changed | Refusal:
    axes = op.integers("axes", [])
    if len(op.node.inputs) > 1 and op.node.inputs[1] is not None:
        array = op.constant(1)
        if isinstance(array, Refusal):
            return array
        axes = array.ravel().tolist()
    if not axes or not op.integer("keepdims", 1):
        return Refusal(Code.OTHER_RANK, "it reduces all axes, or drops them")
    return {axis % len(shape): 1 for axis in axes}


SIZES = 3
"""Index of the input of a Resize that gives the output extents."""


def _resize(op: Op, shape: Dims) -> Changed | Refusal:
    index = 2 if op.document.opset >= 11 else 1
    plain = (
        op.text("coordinate_transformation_mode", "") != "tf_crop_and_resize"
        and op.text("keep_aspect_ratio_policy", "stretch") == "stretch"
        and "axes" not in op.node.attributes
    )
    if plain and len(op.node.inputs) == SIZES + 1 and op.node.inputs[2] is None:
        sizes = op.constant(SIZES)
        if isinstance(sizes, Refusal):
            return sizes
        if sizes.shape != (len(shape),):
            return Refusal(
                Code.INCONSISTENT_ATTRIBUTES, f"{sizes.size} sizes for rank {len(shape)}"
            )
        ends = enumerate(zip(shape, sizes.tolist(), strict=True))
        return {i: size for i, (extent, size) in ends if extent != size}
    if len(op.node.inputs) != index + 1 or not plain:
        return Refusal(Code.NOT_CARRIED, "only scales or sizes of all axes are")
    scales = op.constant(index)
    if isinstance(scales, Refusal):
        return scales
    if scales.shape != (len(shape),):
        return Refusal(Code.INCONSISTENT_ATTRIBUTES, f"{scales.size} scales for rank {len(shape)}")
    return {
        i: None if extent is None else int(np.floor(np.float32(extent) * scale))
        for i, (extent, scale) in enumerate(zip(shape, scales, strict=True))
        if scale != 1
    }


ALONG: Mapping[str, Callable[[Op, Dims], Changed | Refusal]] = {
    "AveragePool": _pool,
    "MaxPool": _pool,
    "Pad": _pad,
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), _reduce),
    "Resize": _resize,
}
"""Functions that return the extents that an op changes, by operator."""
