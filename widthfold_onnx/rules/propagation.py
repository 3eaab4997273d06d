"""Run ops on packed tensors: find the packed form of an op, or why there is none.

Rule: replaces unpack - op - pack with the op on packed tensors.
Requires: every tensor that the op reads element by element is available in one layout.
Rewrites: constants that differ per channel are packed like the channels, repeated or tiled. Concat
    and Split act along the channels: the packed positions of a channel move with it. Ops along
    other axes run if the layout folds none of these. They stay as they are, but for the sizes of a
    Resize, and for numbers that a pool or a Pad needs for an axis that a lift adds.
Refuses: ops that read or write along a folded axis, results without elements, and operator sets
    below 7, whose broadcasting differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from widthfold_onnx.algebra.layouts import PackedLayout
from widthfold_onnx.algebra.packing import shape_after
from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.model.document import Attributes
from widthfold_onnx.model.proto.walk import operator_of
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.operators.base import read_axes
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.op import (
    BROADCASTING,
    MULTI_INPUT,
    SIZES,
    UNARY,
    Op,
    constant_problem,
    rule_problem,
    statistics_problem,
    uneven_parts,
)


@dataclass(frozen=True)
class OpInLayout(Op):
    """A node, and which of its inputs are available in one layout.

    Attributes:
        shapes: logical extents per input; None where it is not available in the layout.
        layout: the layout.
    """

    layout: PackedLayout

    @property
    def data_shape(self) -> Dims:
        """Extents of input 0, which is available in the layout."""
        shape = self.shapes[0]
        assert shape is not None
        return shape

    @property
    def channel_axis(self) -> int:
        """The axis of the channels of input 0."""
        return self.layout.channel_axis % len(self.data_shape)

    def overflows(self, factor: Array) -> bool:
        """Check whether `factor` times the weight of a linear op before this one overflows.

        A runtime may merge the two when it loads the model.
        """
        largest_factor = np.abs(factor).max(initial=0)
        for value in self.node.inputs:
            maker = None if value is None else value.producer()
            linear = maker is not None and operator_of(maker) in OPERATORS
            operands = maker.inputs[:2] if maker is not None and linear else ()
            for constant in map(self.document.constant, filter(None, operands)):
                if not isinstance(constant, Refusal):
                    array = self.document.read(constant)
                    largest = np.abs(array).max(initial=0).astype(float) * largest_factor
                    with np.errstate(over="ignore"):
                        if not np.isfinite(largest.astype(array.dtype)):
                            return True
        return False


@dataclass(frozen=True)
class PackedOp:
    """The packed form of an op.

    Attributes:
        op: the op.
        shapes: logical extents of every output.
        constants: new numbers for inputs, by index; packed tensors replace the data, and all other
            inputs stay.
        attributes: new attributes, by name; all others stay.
    """

    op: OpInLayout
    shapes: tuple[Dims, ...]
    constants: Mapping[int, Array] = field(default_factory=dict)
    attributes: Attributes = field(default_factory=dict)

    @property
    def layout(self) -> PackedLayout:
        """The layout in which it runs."""
        return self.op.layout

    def reads_packed(self, index: int) -> bool:
        """Check whether it reads an input in its layout."""
        return self.op.shapes[index] is not None


PropagationRule = Callable[[OpInLayout], PackedOp | Refusal]


def propagate(op: OpInLayout) -> PackedOp | Refusal:
    """Return the packed form of an op in a layout, or why it must read the logical tensor."""
    problem = rule_problem(op, PROPAGATION, "no rule runs {} on packed tensors")
    if problem is not None:
        return problem
    node = op.node
    is_packed = [shape is not None for shape in op.shapes]
    if node.op_type not in MULTI_INPUT and (not is_packed[0] or any(is_packed[1:])):
        return Refusal(Code.NOT_PACKED, "the input is not packed in this layout")
    result = PROPAGATION[node.op_type](op)
    if isinstance(result, Refusal):
        return result
    if len(result.shapes) != len(node.outputs):
        return Refusal(Code.MORE_OUTPUTS, f"{node.op_type} has {len(node.outputs)} outputs")
    for shape in result.shapes:
        if any(extent is not None and extent < 1 for extent in shape):
            # A Reshape reads a 0 as "the extent of the input", and infers no -1 beside a 0 extent.
            return Refusal(Code.EMPTY_TENSOR, f"its result would have the extents {list(shape)}")
    return result


def _pointwise(op: OpInLayout) -> PackedOp:
    """Pack an op on input 0; its other inputs are scalars by the definition of the operator."""
    return PackedOp(op, (op.data_shape,))


def _broadcasting(op: OpInLayout) -> PackedOp | Refusal:
    """Pack an op of data of equal extents, and of constants: one number, or one per channel."""
    shapes = [shape for shape in op.shapes if shape is not None]
    if any(shape != shapes[0] for shape in shapes):
        return op.differing_extents
    data, constants = shapes[0], {}
    rank, channel = len(data), op.layout.channel_axis % len(data)
    for index, shape in enumerate(op.shapes):
        if shape is None:
            array = op.constant_array(index)
            if isinstance(array, Refusal):
                return array
            problem = constant_problem(array.shape, rank, channel, data[channel])
            if problem is not None:
                return problem
            axis = channel - rank + array.ndim
            if axis >= 0 and array.shape[axis] == data[channel]:
                constants[index] = op.layout.packed_constant(array, rank)
            elif array.ndim > op.layout.rank(rank):
                constants[index] = array.reshape(())
    return PackedOp(op, (data,), constants)


def _mul(op: OpInLayout) -> PackedOp | Refusal:
    result = _broadcasting(op)
    for index, shape in enumerate(op.shapes):
        factor = op.constant_array(index) if shape is None else None
        if isinstance(factor, np.ndarray) and op.overflows(factor):
            return _OVERFLOW
    return result


_OVERFLOW = Refusal(
    Code.OVERFLOW, "the weight of the layer before it would overflow if the runtime merges the two"
)


def _per_channel(op: OpInLayout, axis: int) -> PackedOp | Refusal:
    """Pack an op on input 0 whose other inputs hold one number, or one per channel on `axis`."""
    is_channel_axis = op.layout.names_channels(axis, len(op.data_shape))
    count = op.data_shape[op.channel_axis] if is_channel_axis else None
    constants = {}
    for index in filter(op.has, range(1, len(op.node.inputs))):
        array = op.constant_array(index)
        if isinstance(array, Refusal):
            return array
        if array.shape == (count,):
            constants[index] = array[op.layout.channel_of_each(array.size)]
        elif array.size > 1:
            return Refusal(Code.CONSTANT_VARIES, f"a constant has the extents {array.shape}")
    return PackedOp(op, (op.data_shape,), constants)


def _normalization(op: OpInLayout) -> PackedOp | Refusal:
    result = statistics_problem(op.node) or _per_channel(op, 1)
    if isinstance(result, PackedOp) and not result.constants:
        return Refusal(Code.OTHER_AXIS, "its channels are another axis")
    scale, variance = op.constant_array(1), op.constant_array(4)
    if isinstance(scale, Refusal) or isinstance(variance, Refusal):
        return result
    with np.errstate(all="ignore"):  # invalid statistics give NaN, which counts as an overflow
        epsilon = op.node.attributes.get_float("epsilon", 1e-5)
        factor = scale / np.sqrt(variance.astype(np.float64) + epsilon)
    return _OVERFLOW if op.overflows(factor) else result


QUANTIZE_AXIS_OPSET = 13
"""First operator set whose quantizers may have one scale per channel (ONNX changelog)."""


def _quantization(op: OpInLayout) -> PackedOp | Refusal:
    if op.document.opset < QUANTIZE_AXIS_OPSET:
        return _pointwise(op)
    if op.node.attributes.get_int("block_size", 0):
        return Refusal(Code.CONSTANT_VARIES, "the scale differs along blocks")
    result = _per_channel(op, op.node.attributes.get_int("axis", 1))
    if isinstance(result, Refusal):
        return result
    # A single number is not repeated: integer kernels of ONNX Runtime take one for the data.
    single = op.layout.channel_of_each(1).size
    return replace(result, constants={i: a for i, a in result.constants.items() if a.size > single})


def _concat(op: OpInLayout) -> PackedOp | Refusal:
    """Pack a Concat of channels, if the packed positions of every channel stay together."""
    shapes = [shape for shape in op.shapes if shape is not None]
    if len(shapes) < len(op.shapes):
        return Refusal(Code.NOT_PACKED, "an input is not packed in this layout")
    if not _acts_along_whole_channels(op):
        return Refusal(Code.OTHER_AXIS, "it joins along another axis, or tiles lie in between")
    total = sum(shape[op.channel_axis] or 0 for shape in shapes)
    results = {_with_channels(op, shape, total) for shape in shapes}
    if len(results) > 1:
        return op.differing_extents
    return PackedOp(op, tuple(results))


def _split(op: OpInLayout) -> PackedOp | Refusal:
    """Pack a Split of channels; every channel takes its packed positions with it."""
    channels = op.data_shape[op.channel_axis] or 0
    if not _acts_along_whole_channels(op):
        return Refusal(Code.OTHER_AXIS, "it splits along another axis, or tiles lie in between")
    if "split" in op.node.attributes:
        return Refusal(Code.NOT_CARRIED, "the sizes of its parts are an attribute")
    sizes = op.split_sizes(channels)
    if isinstance(sizes, Refusal):
        return sizes
    if op.has(1):
        positions = op.layout.channel_of_each(channels).size // channels
        constants = {1: np.array(sizes, np.int64) * positions}
    elif len(set(sizes)) > 1:
        return uneven_parts(channels, len(sizes))
    else:
        constants = {}
    return PackedOp(op, tuple(_with_channels(op, op.data_shape, size) for size in sizes), constants)


def _acts_along_whole_channels(op: OpInLayout) -> bool:
    """Check whether the axis of an op holds the channels, whose packed positions lie together."""
    axis = op.node.attributes.get_int("axis", 0)
    return op.layout.channel_major and op.layout.names_channels(axis, len(op.data_shape))


def _with_channels(op: OpInLayout, shape: Dims, count: int) -> Dims:
    """Return the extents with another number of channels."""
    return (*shape[: op.channel_axis], count, *shape[op.channel_axis + 1 :])


Changes = dict[int, int | None]
"""Axis -> its new extent, None where that is open."""


def _pool(op: OpInLayout) -> Changes | Refusal:
    """Return the extents of the pooled axes: with several kernel positions, a stride or pads."""
    attributes = op.node.attributes
    if attributes.get_string("auto_pad", "NOTSET") != "NOTSET" or attributes.get_int("ceil_mode"):
        return Refusal(Code.IMPLICIT_EXTENT, "auto_pad or ceil_mode decides its output extents")
    axes = read_axes(op.node, op.data_shape[2:], attributes.get_ints("kernel_shape", []))
    if isinstance(axes, Refusal):
        return axes
    return {
        i: axis.out_length
        for i, axis in enumerate(axes, 2)
        if (axis.kernel, axis.stride, axis.pad_begin, axis.pad_end) != (1, 1, 0, 0)
    }


def _pad(op: OpInLayout) -> Changes | Refusal:
    rank = len(op.data_shape)
    pads = op.pads(rank)
    if isinstance(pads, Refusal):
        return pads
    return {
        i: None if extent is None else extent + begin + end
        for i, (extent, begin, end) in enumerate(
            zip(op.data_shape, pads[:rank], pads[rank:], strict=True)
        )
        if (begin, end) != (0, 0)
    }


def _reduce(op: OpInLayout) -> Changes | Refusal:
    axes = op.numbers(1, "axes")
    if isinstance(axes, Refusal):
        return axes
    if not axes or not op.node.attributes.get_int("keepdims", 1):
        return Refusal(Code.OTHER_RANK, "it reduces all axes, or drops them")
    return {axis % len(op.data_shape): 1 for axis in axes}


def _resize(op: OpInLayout) -> Changes | Refusal:
    result = op.scales_or_sizes()
    if isinstance(result, Refusal):
        return result
    index, numbers = result
    if numbers.shape != (len(op.data_shape),):
        subject = f"{numbers.size} {'sizes' if index == SIZES else 'scales'}"
        return Refusal(Code.INCONSISTENT_ATTRIBUTES, f"{subject} for rank {len(op.data_shape)}")
    pairs = list(zip(op.data_shape, numbers, strict=True))
    if index == SIZES:
        return {i: int(size) for i, (extent, size) in enumerate(pairs) if extent != size}
    return {
        i: None if extent is None else int(np.floor(np.float32(extent) * scale))
        for i, (extent, scale) in enumerate(pairs)
        if scale != 1
    }


OPS_ALONG_AXES: Mapping[str, Callable[[OpInLayout], Changes | Refusal]] = {
    "AveragePool": _pool,
    "MaxPool": _pool,
    "Pad": _pad,
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), _reduce),
    "Resize": _resize,
}
"""Functions that return the extents that an op changes, by operator."""


def _along_axes(op: OpInLayout) -> PackedOp | Refusal:
    """Pack an op along axes that the layout does not fold; inputs other than 0 are parameters."""
    rank, function = len(op.data_shape), OPS_ALONG_AXES[op.node.op_type]
    lift = op.layout.rank(rank) - rank
    if lift and (lift < 0 or function not in (_pool, _pad)):
        return Refusal(Code.OTHER_RANK, "it names axes by number, and the packed tensor has others")
    changes = function(op)
    if isinstance(changes, Refusal):
        return changes
    if op.layout.changed_axes(rank) & changes.keys():
        return Refusal(Code.ALONG_FOLDED_AXIS, f"it acts along the axes {sorted(changes)}")
    shape = tuple(changes.get(axis, extent) for axis, extent in enumerate(op.data_shape))
    constants: Mapping[int, Array] = {}
    attributes: Attributes = {}
    if lift and function is _pool:
        attributes = _lifted_pool(op, lift)
    elif lift:
        pads = op.pads(rank)
        assert not isinstance(pads, Refusal)  # else `_pad` has returned this refusal
        constants, attributes = op.with_pads(_inserted(pads, 2, lift))
    elif function is _resize and op.has(SIZES):
        constants = {SIZES: np.array(shape_after(shape, op.layout.moves(shape)), np.int64)}
    return PackedOp(op, (shape,), constants, attributes)


def _lifted_pool(op: OpInLayout, lift: int) -> Attributes:
    """Return the attributes of a pool with axes of extent 1 before its own."""
    result: dict[str, list[int]] = {}
    for name in ("kernel_shape", "strides", "dilations"):
        if numbers := list(op.node.attributes.get_ints(name, [])):
            result[name] = [1] * lift + numbers
    if pads := list(op.node.attributes.get_ints("pads", [])):
        result["pads"] = _inserted(pads, 0, lift)
    return result


def _inserted(pads: list[int], axis: int, lift: int) -> list[int]:
    """Return pads (begins, then ends) with zeros for `lift` new axes before `axis`."""
    half = len(pads) // 2
    begins, ends = pads[:half], pads[half:]
    return [n for side in (begins, ends) for n in (*side[:axis], *[0] * lift, *side[axis:])]


PROPAGATION: Mapping[str, PropagationRule] = {
    **dict.fromkeys(sorted(UNARY), _pointwise),
    **dict.fromkeys(sorted(BROADCASTING), _broadcasting),
    **dict.fromkeys(OPS_ALONG_AXES, _along_axes),
    "Mul": _mul,
    "BatchNormalization": _normalization,
    "Clip": _pointwise,
    "Concat": _concat,
    "DequantizeLinear": _quantization,
    "QuantizeLinear": _quantization,
    "Split": _split,
}
"""The rule that packs an op, by operator."""
