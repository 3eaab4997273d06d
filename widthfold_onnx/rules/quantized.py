"""Read quantized convolutions: find their integers, zero points and scales.

    QLinearConv, ConvInteger    multiply integers, and take zero points and scales as inputs
    DequantizeLinear - Conv     states the same for two tensors of integers (QDQ): if a
                                QuantizeLinear follows, a runtime computes it as a QLinearConv

An integer q stands for (q - zero point) * scale. So the structural zeros of a folded weight are the
zero point of the weight, and data is extended by the zero point of the data. Numbers per output
channel are repeated for every digit; all other scales and zero points stay.

A structural zero adds (zero - zero) * x = 0, so a sum in int32 is that of the original, and
overflows where that does: `accumulator_overflow` bounds it. A kernel that sums q * p and subtracts
the zero points' part afterwards may leave int32 on the way, at other places than the original does.
The result is still right, because both sums are equal modulo 2**32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.domain import is_default
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.dequantized import data_dequantizer, element_type
from widthfold_onnx.rules.parameter import INPUTS, Parameter, dequantizer, input_of

Array = npt.NDArray[Any]

BYTES = ("INT8", "UINT8")
"""Element types that QLinearConv and ConvInteger multiply (operator text)."""
PADDED_SINCE = 11
"""First operator set whose Pad takes integers (operator text)."""
ACCUMULATOR = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class Quantization:
    """The quantization of the data of a convolution.

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


def read_quantization(document: Document, node: Node) -> Quantization | Refusal | None:
    """Return the quantization of a convolution's data; None where it computes in floats."""
    data, zero = node.inputs[0], input_of(node, INPUTS[node.op_type].data_zero)
    maker = data_dequantizer(data) if dequantizer(node.inputs[1]) is not None else None
    if maker is None and node.op_type not in ("QLinearConv", "ConvInteger"):
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


def problem_of(
    document: Document,
    node: Node,
    quantization: Quantization,
    weight: Parameter,
    bias: Parameter | None,
    out_axis: int,
) -> Refusal | None:
    """Refuse a quantized convolution whose parameters do not fold.

    Args:
        document: the model.
        node: the convolution.
        quantization: the quantization of its data.
        weight: its weight.
        bias: its bias.
        out_axis: the axis of the stored weight that counts output channels.
    """
    if not quantization.dequantized and weight.constant.dtype not in BYTES:
        return Refusal(
            Code.DTYPE_UNSUPPORTED, f"ONNX has no {node.op_type} of {weight.constant.dtype}"
        )
    if weight.vectors and quantization.dequantized and weight.axis != out_axis:
        return Refusal(
            Code.QUANTIZED,
            f"scale or zero point of the weight differ along axis {weight.axis}, which counts no "
            "output channels",
        )
    for parameter in (weight, bias):
        scale = None if parameter is None or parameter.scale is None else parameter.scale[1]
        numbers = np.ones(1) if scale is None else document.read(scale).astype(np.float64)
        if not (np.isfinite(numbers).all() and (numbers > 0).all()):
            return Refusal(Code.QUANTIZED, "a scale is not a positive number")
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
    constant = None if quantization.zero is None else document.constant(quantization.zero)
    low, high = limits.min, limits.max
    if isinstance(constant, Constant) and 0 not in constant.shape:
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
