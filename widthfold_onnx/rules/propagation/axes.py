"""Run ops that act along axes on packed tensors: Concat, Split, pools, pads, reductions, Resize.

Concat and Split act along the channels: the packed positions of a channel move with it. All others
run unchanged if the layout folds none of their axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from widthfold_onnx.algebra.packing import after
from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.document import Attributes
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.operators.base import read_axes
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


Changed = dict[int, int | None]
"""Axis -> its new extent, None where that is open."""


def _pool(op: Op, shape: Dims) -> Changed | Refusal:
    """Return the pooled axes: axes with several kernel positions, a stride or pads."""
    attributes = op.node.attributes
    if attributes.get_string("auto_pad", "NOTSET") != "NOTSET" or attributes.get_int("ceil_mode"):
        return Refusal(Code.IMPLICIT_EXTENT, "auto_pad or ceil_mode decides its output extents")
    axes = read_axes(op.node, shape[2:], attributes.get_ints("kernel_shape", []))
    if isinstance(axes, Refusal):
        return axes
    return {
        i: axis.out_length
        for i, axis in enumerate(axes, 2)
        if (axis.kernel, axis.stride, axis.pad_begin, axis.pad_end) != (1, 1, 0, 0)
    }


def _pad(op: Op, shape: Dims) -> Changed | Refusal:
    pads = _pads(op)
    if isinstance(pads, Refusal):
        return pads
    if len(pads) != 2 * len(shape):
        return Refusal(Code.INCONSISTENT_ATTRIBUTES, f"{len(pads)} pads for rank {len(shape)}")
    ends = zip(shape, pads[: len(shape)], pads[len(shape) :], strict=True)
    return {
        i: None if extent is None else extent + begin + end
        for i, (extent, begin, end) in enumerate(ends)
        if (begin, end) != (0, 0)
    }


def _pads(op: Op) -> list[int] | Refusal:
    """Return the pads at the begin of every axis, then those at the end."""
    if op.document.opset < PADS_INPUT:
        return list(op.node.attributes.get_ints("pads", []))
    if len(op.node.inputs) > 3 and op.node.inputs[3] is not None:
        return Refusal(Code.NOT_CARRIED, "an input selects the axes that it pads")
    array = op.constant(1)
    return array if isinstance(array, Refusal) else array.ravel().tolist()


PADS_INPUT = 11
"""First operator set in which the pads of a Pad are an input."""


def _reduce(op: Op, shape: Dims) -> Changed | Refusal:
    axes = op.node.attributes.get_ints("axes", [])
    if len(op.node.inputs) > 1 and op.node.inputs[1] is not None:
        array = op.constant(1)
        if isinstance(array, Refusal):
            return array
        axes = array.ravel().tolist()
    if not axes or not op.node.attributes.get_int("keepdims", 1):
        return Refusal(Code.OTHER_RANK, "it reduces all axes, or drops them")
    return {axis % len(shape): 1 for axis in axes}


SIZES = 3
"""Index of the input of a Resize that gives the output extents."""


def _resize(op: Op, shape: Dims) -> Changed | Refusal:
    attributes, inputs = op.node.attributes, op.node.inputs
    plain = (
        attributes.get_string("coordinate_transformation_mode", "") != "tf_crop_and_resize"
        and attributes.get_string("keep_aspect_ratio_policy", "stretch") == "stretch"
        and "axes" not in attributes
    )
    index = len(inputs) - 1
    has_sizes = index == SIZES and inputs[2] is None
    if not plain or not (has_sizes or index == (2 if op.document.opset >= 11 else 1)):
        return Refusal(Code.NOT_CARRIED, "it is not given scales or sizes of all axes")
    numbers = op.constant(index)
    if isinstance(numbers, Refusal):
        return numbers
    if numbers.shape != (len(shape),):
        what = "sizes" if has_sizes else "scales"
        return Refusal(Code.INCONSISTENT_ATTRIBUTES, f"{numbers.size} {what} for rank {len(shape)}")
    pairs = list(zip(shape, numbers, strict=True))
    if has_sizes:
        return {i: int(size) for i, (extent, size) in enumerate(pairs) if extent != size}
    return {
        i: None if extent is None else int(np.floor(np.float32(extent) * scale))
        for i, (extent, scale) in enumerate(pairs)
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


def along(op: Op) -> PackedOp | Refusal:
    """Carry an op along axes that the layout does not fold; inputs other than 0 are parameters."""
    shape, function = op.data, ALONG[op.node.op_type]
    lift = op.layout.rank(len(shape)) - len(shape)
    if lift and (lift < 0 or function not in (_pool, _pad)):
        return Refusal(Code.OTHER_RANK, "it names axes by number, and the packed tensor has others")
    changed = function(op, shape)
    if isinstance(changed, Refusal):
        return changed
    if op.layout.involved(len(shape)) & changed.keys():
        return Refusal(Code.ALONG_FOLDED_AXIS, f"it acts along the axes {sorted(changed)}")
    result_shape = tuple(changed.get(axis, extent) for axis, extent in enumerate(shape))
    pads = _pads(op) if lift and function is _pad else None
    if isinstance(pads, list):
        return _lifted_pad(op, result_shape, _inserted(pads, 2, lift))
    return PackedOp((result_shape,), _sizes(op, result_shape), _lifted(op, lift) if lift else {})


def _lifted_pad(op: Op, shape: Dims, pads: list[int]) -> PackedOp:
    if op.document.opset < PADS_INPUT:
        return PackedOp((shape,), attributes={"pads": pads})
    return PackedOp((shape,), {1: np.array(pads, np.int64)})


def _lifted(op: Op, lift: int) -> Attributes:
    """Return the attributes of a pool with axes of extent 1 before its own."""
    result: dict[str, list[int]] = {}
    for name in ("kernel_shape", "strides", "dilations"):
        if numbers := list(op.node.attributes.get_ints(name, [])):
            result[name] = [1] * lift + numbers
    if pads := list(op.node.attributes.get_ints("pads", [])):
        result["pads"] = _inserted(pads, 0, lift)
    return result


def _inserted(pads: list[int], axis: int, lift: int) -> list[int]:
    """Return begins and ends of pads with none of so many axes before one of them."""
    half = len(pads) // 2
    begins, ends = pads[:half], pads[half:]
    return [n for side in (begins, ends) for n in (*side[:axis], *[0] * lift, *side[axis:])]


def _sizes(op: Op, shape: Dims) -> Mapping[int, Array]:
    """Return the output extents that a Resize reads, as extents of the packed tensor."""
    if op.node.op_type != "Resize" or len(op.node.inputs) <= SIZES:
        return {}
    return {SIZES: np.array(after(shape, op.layout.steps(shape)), np.int64)}
