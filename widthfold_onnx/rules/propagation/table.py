"""Run ops on packed tensors: find the packed form of an op, or why there is none.

Rule: replaces unfold - op - fold with the op on packed tensors.
Requires: every tensor that the op reads element by element is available in one layout.
Rewrites: constants that differ per channel are packed like the channels, repeated or tiled; the
    operator and its attributes stay.
Refuses: ops that read or write along a folded axis, results without elements, and operator sets
    below 7, whose broadcasting differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.propagation.axes import ALONG, along, concat, split
from widthfold_onnx.rules.propagation.op import Op, PackedOp, pointwise

MIN_OPSET = 7
UNARY = frozenset(
    {
        *("Abs", "Cast", "Ceil", "Celu", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"),
        *("HardSwish", "Identity", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu"),
        *("Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Tanh"),
        "ThresholdedRelu",
    }
)
"""Ops of one input; each element of the output depends on the same element of the input."""
BROADCASTING = frozenset(
    {"Add", "Div", "Less", "Max", "Min", "Mul", "PRelu", "Pow", "Sub", "Sum", "Where"}
)
"""Ops of several inputs that are broadcast; each output element depends on the same elements."""


Rule = Callable[[Op], PackedOp | Refusal]


def propagate(op: Op) -> PackedOp | Refusal:
    """Return the packed form of an op in a layout, or why it must read the logical tensor."""
    node, rule = op.node, PROPAGATION.get(op.node.op_type)
    if rule is None or not is_default(node, *PROPAGATION):
        return Refusal(Code.NOT_CARRIED, f"no rule runs {node.op_type} on packed tensors")
    if op.document.opset < MIN_OPSET:
        return Refusal(Code.OPSET_TOO_OLD, f"opset {op.document.opset} is below {MIN_OPSET}")
    if node.device_configurations:
        return Refusal(Code.SHARDED, "the node is configured to run on several devices")
    data, *others = op.shapes
    several = node.op_type in BROADCASTING or node.op_type == "Concat"
    if not several and (data is None or any(other is not None for other in others)):
        return Refusal(Code.NOT_PACKED, "the input is not packed in this layout")
    result = rule(op)
    if isinstance(result, Refusal):
        return result
    if len(result.shapes) != len(node.outputs):
        return Refusal(Code.MORE_OUTPUTS, f"{node.op_type} has {len(node.outputs)} outputs")
    for shape in result.shapes:
        if any(extent is not None and extent < 1 for extent in shape):
            # A Reshape reads a 0 as "the extent of the input", and infers no -1 beside a 0 extent.
            return Refusal(Code.EMPTY_TENSOR, f"its result would have the extents {list(shape)}")
    return result


def _broadcasting(op: Op) -> PackedOp | Refusal:
    """Carry an op whose inputs are data of equal extents, or constants, per channel at most."""
    shapes = [shape for shape in op.shapes if shape is not None]
    if any(shape != shapes[0] for shape in shapes):
        return Refusal(Code.SHAPES_DIFFER, f"extents {[list(shape) for shape in shapes]}")
    constants = {}
    for index, shape in enumerate(op.shapes):
        if shape is None:
            array = op.constant(index)
            if isinstance(array, Refusal):
                return array
            packed = _constant(op, array, shapes[0])
            if isinstance(packed, Refusal):
                return packed
            if packed is not None:
                constants[index] = packed
    return PackedOp((shapes[0],), constants)


def _constant(op: Op, array: Array, shape: Dims) -> Array | Refusal | None:
    """Pack a constant that is read beside a tensor of extents `shape`; None if it stays."""
    rank, channel = len(shape), op.layout.channel_axis % len(shape)
    axes = (1,) * (rank - array.ndim) + array.shape
    others = axes[:channel] + axes[channel + 1 :]
    if len(axes) > rank or set(others) - {1} or axes[channel] not in (1, shape[channel]):
        return Refusal(Code.CONSTANT_VARIES, f"a constant has the extents {list(axes)}")
    if channel >= rank - array.ndim and axes[channel] == shape[channel]:
        return op.layout.constant(array, rank)
    return array.reshape(()) if array.ndim > op.layout.rank(rank) else None


def _per_channel(op: Op, axis: int) -> PackedOp | Refusal:
    """Carry an op on input 0 whose other inputs hold one number, or one per channel on `axis`."""
    shape = op.data
    named = op.layout.names_channels(axis, len(shape))
    count = shape[op.layout.channel_axis] if named else None
    constants = {}
    for index in range(1, len(op.node.inputs)):
        if op.node.inputs[index] is not None:
            array = op.constant(index)
            if isinstance(array, Refusal):
                return array
            if array.shape == (count,):
                constants[index] = array[op.layout.channels(array.size)]
            elif array.size > 1:
                return Refusal(Code.CONSTANT_VARIES, f"a constant has the extents {array.shape}")
    return PackedOp((shape,), constants)


def _product(op: Op) -> PackedOp | Refusal:
    result = _broadcasting(op)
    for index, shape in enumerate(op.shapes):
        factor = op.constant(index) if shape is None else None
        if isinstance(factor, np.ndarray) and op.overflows(factor):
            return _OVERFLOW
    return result


_OVERFLOW = Refusal(
    Code.OVERFLOW, "the weight of the layer before it would overflow if the runtime merges the two"
)


def _normalization(op: Op) -> PackedOp | Refusal:
    attributes = op.node.attributes
    if attributes.get_int("training_mode") or not attributes.get_int("spatial", 1):
        return Refusal(Code.NOT_INFERENCE, "statistics are computed, or differ per position")
    result = _per_channel(op, 1)
    if isinstance(result, PackedOp) and not result.constants:
        return Refusal(Code.OTHER_AXIS, "its channels are another axis")
    scale, variance = op.constant(1), op.constant(4)
    if isinstance(scale, Refusal) or isinstance(variance, Refusal):
        return result
    with np.errstate(all="ignore"):  # invalid statistics give NaN, which counts as an overflow
        epsilon = attributes.get_float("epsilon", 1e-5)
        factor = scale / np.sqrt(variance.astype(np.float64) + epsilon)
    return _OVERFLOW if op.overflows(factor) else result


def _quantization(op: Op) -> PackedOp | Refusal:
    if op.document.opset < 13:
        return pointwise(op)
    if op.node.attributes.get_int("block_size", 0):
        return Refusal(Code.CONSTANT_VARIES, "the scale differs along blocks")
    result = _per_channel(op, op.node.attributes.get_int("axis", 1))
    if isinstance(result, Refusal):
        return result
    # A single number is not repeated: integer kernels of ONNX Runtime take one for the data.
    single = op.layout.channels(1).size
    return PackedOp(result.shapes, {i: a for i, a in result.constants.items() if a.size > single})


PROPAGATION: Mapping[str, Rule] = {
    **dict.fromkeys(sorted(UNARY), pointwise),
    **dict.fromkeys(sorted(BROADCASTING), _broadcasting),
    **dict.fromkeys(ALONG, along),
    "Mul": _product,
    "BatchNormalization": _normalization,
    "Clip": pointwise,
    "Concat": concat,
    "DequantizeLinear": _quantization,
    "QuantizeLinear": _quantization,
    "Split": split,
}
"""The rule that makes an op packed, by operator."""
