"""Read quantized operators: find their integers, zero points and scales.

    QLinearConv, ConvInteger, ...   multiply integers, and take zero points and scales as inputs
    DequantizeLinear - Conv, ...    states the same for two tensors of integers (QDQ): if a
                                    QuantizeLinear follows, a runtime computes it as a QLinearConv

An integer q stands for (q - zero point) * scale. So the structural zeros of a folded weight are the
zero point of the weight, and data is extended by the zero point of the data. Numbers per output
channel are repeated for every tile; all other scales and zero points stay. The weight is folded
as stored integers, and dequantized behind the fold. Numbers per position (operator texts,
MatMulInteger-10 and QLinearMatMul-21) cannot be folded, as one folded position is several.

A structural zero adds (zero - zero) * x = 0, so a sum in int32 equals the sum of the original, and
overflows where that does: `accumulator_overflow` bounds it. A kernel that sums q * p and subtracts
the zero points' part afterwards may leave int32 on the way, at other places than the original does.
The result is still right, because both sums are equal modulo 2**32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.constants import Constant
from widthfold_onnx.model.graph.document import Document, Node, Value
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.operators.base import Operator
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.match.dequantized import (
    Parameter,
    constant_of,
    data_dequantizer,
    dequantizer,
    element_type,
    exact_dequantizer,
    input_of,
    is_single,
    refused,
)

Extents = Callable[[Value], Dims | None]
"""Extents of a value; None where not even the rank is known."""

BYTES = ("INT8", "UINT8")
"""Element types that operators of integers multiply (operator texts)."""
PADDED_SINCE = 11
"""First operator set whose Pad takes integers (operator text)."""
ACCUMULATOR = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class Quantization:
    """The quantization of the data of a node.

    Attributes:
        dequantized: data (`data_dequantizer`) and weight are dequantized; else the operator itself
            takes integers.
        dtype: ONNX name of the element type of the integers that the data is.
        zero: zero point of the data; None where that is 0.
        extends: whether the operator set has a Pad for the data, which may be integers.
        cuts: whether a runtime still computes in integers with a Slice behind the node: if the
            data is dequantized, a QuantizeLinear must follow directly (a Relu between keeps
            floats).
    """

    dequantized: bool
    dtype: str
    zero: Value | None
    extends: bool
    cuts: bool


def read_quantization(
    document: Document, node: Node, operator: Operator
) -> Quantization | Refusal | None:
    """Return the quantization of a node's data; None where it computes in floats."""
    inputs = operator.inputs
    data, zero = node.inputs[inputs.data], input_of(node, inputs.data_zero)
    maker = data_dequantizer(data) if dequantizer(node.inputs[inputs.weight]) is not None else None
    if maker is None and not operator.integers:
        return None
    if maker is not None:
        data, zero = maker.inputs[0], input_of(maker, 2)
    dtype = element_type(document, data, zero)
    if isinstance(dtype, Refusal):
        return dtype
    if maker is None:
        return Quantization(False, dtype, zero, document.opset >= PADDED_SINCE, True)
    result = node.outputs[0]
    quantized = all(is_default(user, "QuantizeLinear") for user, _ in result.uses())
    return Quantization(True, dtype, zero, True, quantized and not result.is_graph_output())


def read_scales(
    document: Document,
    node: Node,
    operator: Operator,
    extents: Extents,
    weight: tuple[int, ...],
) -> dict[int, Parameter] | Refusal:
    """Read the scales and zero points that an operator of integers takes as inputs.

    Args:
        document: the model.
        node: the node.
        operator: its description.
        extents: extents of computed inputs.
        weight: extents of the stored weight.

    Returns:
        The inputs with one number per output channel, and the weight's zero point, by index; a
        refusal if that zero point is computed, so that structural zeros have no value, or an input
        differs between positions, or is computed per channel.
    """
    inputs = operator.inputs
    axis = operator.out_axis(node, len(weight))
    parameters: dict[int, Parameter] = {}
    for owner, indices, of_channels in operator.scales:
        for what, index in zip(("scale", "zero point"), indices, strict=True):
            value = input_of(node, index)
            if value is None or index is None:
                continue
            name = f"the {what} of the {owner}"
            constant = document.constant(value)
            if isinstance(constant, Refusal) and index == inputs.zero:
                return Refusal(
                    Code.WEIGHT_ZERO_POINT_COMPUTED,
                    f"{name} {constant.reason}: what fills the gaps of the weight is not known",
                )
            shape = constant.shape if isinstance(constant, Constant) else extents(value)
            if shape is None or None in shape:
                return Refusal(Code.UNKNOWN_SHAPE, f"how many numbers {name} has is not known")
            if not is_single(shape):
                fits = axis is not None and _is_of_channels(shape, weight, axis)
                problem = _vector_problem(name, constant, shape, of_channels=of_channels, fits=fits)
                if problem is not None:
                    return problem
            if isinstance(constant, Constant) and (index == inputs.zero or not is_single(shape)):
                parameters[index] = Parameter(constant)
    return parameters


def _is_of_channels(shape: Dims, weight: tuple[int, ...], axis: int) -> bool:
    """Check whether numbers are one per output channel of the weight, or of each of its matrices.

    They are a vector, or have the last axes of the weight; input channels share one number.
    """
    extents = [e if i == axis or i < len(weight) - 2 else 1 for i, e in enumerate(weight)]
    return list(shape) in ([weight[axis]], extents[-len(shape) :])


def _vector_problem(
    name: str, constant: Constant | Refusal, shape: Dims, *, of_channels: bool, fits: bool
) -> Refusal | None:
    """Refuse several numbers that are no constants per output channel."""
    if not of_channels:
        return Refusal(
            Code.QUANTIZED_PER_POSITION,
            f"{name} has the extents {list(shape)}, so it differs between positions that become "
            "one",
        )
    if isinstance(constant, Refusal):
        return Refusal(Code.QUANTIZED_NOT_CONSTANT, f"{name} {constant.reason}")
    if fits:
        return None
    return Refusal(
        Code.INCONSISTENT_SHAPES,
        f"{name} has the extents {list(shape)}, which are not those of output channels",
    )


def quantization_problem(
    document: Document,
    node: Node,
    quantization: Quantization,
    parameters: Mapping[int, Parameter],
    operator: Operator,
) -> Refusal | None:
    """Refuse a quantized node whose parameters do not fold.

    Args:
        document: the model.
        node: the node.
        quantization: the quantization of its data.
        parameters: its weight and bias, by index.
        operator: its description.
    """
    inputs = operator.inputs
    weight = parameters[inputs.weight]
    if not quantization.dequantized and weight.constant.dtype not in BYTES:
        return Refusal(
            Code.DTYPE_UNSUPPORTED, f"ONNX has no {node.op_type} of {weight.constant.dtype}"
        )
    bias = None if inputs.bias is None else parameters.get(inputs.bias)
    rank = len(weight.constant.shape)
    if any(weight.vectors) and weight.axis != operator.out_axis(node, rank):
        return Refusal(
            Code.QUANTIZED,
            f"scale or zero point of the weight differ along axis {weight.axis}, which counts no "
            "output channels",
        )
    scales = [p.scale for p in (weight, bias) if p is not None and p.scale is not None]
    data_scale = constant_of(document, input_of(node, inputs.scale))
    for scale in scales if data_scale is None else (*scales, data_scale):
        numbers = document.read(scale).astype(np.float64)
        if not (np.isfinite(numbers).all() and (numbers > 0).all()):
            return Refusal(Code.QUANTIZED, "a scale is not a positive number")
    if operator.moves_integers or not quantization.dequantized:
        return None
    # The data is quantized again behind its moves.
    exact = exact_dequantizer(document, node.inputs[inputs.data])
    if isinstance(exact, Refusal):
        return exact
    shape = () if bias is None else bias.constant.shape
    several = not is_single(shape) and bias is not None and bias.maker is not None
    # On the left a C per channel has two axes, which integer kernels do not take.
    if several and (operator.weight_on_left or len(shape) > 1):
        return refused(f"C of extents {list(shape)} is dequantized")
    return None


def accumulator_overflow(
    document: Document,
    quantization: Quantization,
    weight: Array,
    zero: Array,
    bias: Array | None,
) -> Refusal | None:
    """Refuse a weight with which a sum of 8-bit products may leave int32 for some data.

    Args:
        document: the model.
        quantization: the quantization of the data.
        weight: integers [O, C/group, *kernel].
        zero: its zero point, broadcasting.
        bias: integers [O], or None.
    """
    if quantization.dtype not in BYTES or weight.dtype.itemsize > 1:
        return None  # no runtime sums such products in int32
    limits = np.iinfo(quantization.dtype.lower())
    constant = constant_of(document, quantization.zero)
    low, high = limits.min, limits.max
    if constant is not None and 0 not in constant.shape:
        low, high = (int(f(document.read(constant))) for f in (np.min, np.max))
    elif quantization.zero is None:
        low = high = 0
    largest = max(limits.max - low, high - limits.min)
    less = np.abs(weight.astype(np.int64) - zero.astype(np.int64))
    sums = largest * less.sum(axis=tuple(range(1, weight.ndim)))
    if bias is not None and bias.dtype.kind in "iu":
        sums = sums + np.abs(bias.astype(np.int64))
    if sums.max(initial=0) <= ACCUMULATOR:
        return None
    return Refusal(
        Code.ACCUMULATOR_OVERFLOW,
        f"a sum may reach {int(sums.max())}, more than the {ACCUMULATOR} that int32 holds",
    )
