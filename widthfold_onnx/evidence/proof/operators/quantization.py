"""Evaluate quantized operators: sums of products of integers, and integers on a grid of floats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.proof.field import inverse, key_of, remainder
from widthfold_onnx.evidence.proof.operators.arithmetic import (
    along,
    for_each_prime,
    function_of,
    map_arrays,
    matrix_product,
    minus,
    plus,
    reshaped,
    times,
)
from widthfold_onnx.evidence.proof.operators.polynomials import convolution, with_bias
from widthfold_onnx.evidence.proof.values import (
    EPSILONS,
    Call,
    Elements,
    KnownValue,
    Meaning,
    Shape,
    Tensor,
    UnevaluableError,
    Value,
    from_first,
)

_ZERO = KnownValue(np.zeros((), np.int64))


def _shifted(call: Call, data: int, zero: int, axis: int) -> Tensor:
    """Subtract the zero point from integers: one number, or one per position of an axis."""
    integers, point = call.tensor(data), call.optional(zero)
    if point is None:
        return integers
    if len(point.shape) < 2:
        point = along(point, axis, len(integers.shape))
    return minus(integers, point)


def _conv_integer(call: Call) -> list[Value]:
    return [convolution(call, _shifted(call, 0, 2, 1), _shifted(call, 1, 3, 0))]


def _qlinear_conv(call: Call) -> list[Value]:
    weight = _shifted(call, 3, 5, 0)
    total = with_bias(convolution(call, _shifted(call, 0, 2, 1), weight), call.optional(8))
    scale = along(call.tensor(4), 1, len(total.shape))
    return [_requantized(call, total, call.tensor(1), scale)]


def _matmul_integer(call: Call) -> list[Value]:
    return [matrix_product(_shifted(call, 0, 2, -2), _shifted(call, 1, 3, -1))]


def _qlinear_matmul(call: Call) -> list[Value]:
    total = matrix_product(_shifted(call, 0, 2, -2), _shifted(call, 3, 5, -1))
    scales = [call.tensor(1), call.tensor(4)]
    rank = len(total.shape)
    if rank < 2 and any(math.prod(scale.shape) > 1 for scale in scales):
        raise UnevaluableError("a vector has several scales")
    rows, columns = (
        along(scale, axis, rank) if len(scale.shape) < 2 else scale
        for scale, axis in zip(scales, (-2, -1), strict=True)
    )
    return [_requantized(call, total, rows, columns)]


def _requantized(call: Call, total: Elements, data_scale: Tensor, weight_scale: Tensor) -> Elements:
    """Return a random function of an exact sum, its scales, and the output's grid."""
    operands = [total, data_scale, weight_scale, call.tensor(6), call.tensor(7)]
    return function_of(key_of("requantize", call.element_type(7)), operands)


def _parameter(call: Call, value: Tensor, shape: Shape) -> Tensor:
    """Return a scale or zero point, per tensor, axis or block, for data of these extents."""
    axis, block = call.attributes.get("axis", 1), call.attributes.get("block_size", 0)
    if math.prod(value.shape) == 1 or not block:
        return along(value, axis, len(shape))
    axis = from_first(axis, len(shape))
    if block < 0 or len(value.shape) != len(shape):
        raise UnevaluableError(f"{list(value.shape)} for blocks of {block} in {list(shape)}")
    positions = np.arange(min(shape[axis], value.shape[axis] * block)) // block
    return map_arrays(value, lambda a: a.take(positions, axis))


def _grid(scale: Tensor, zero: Tensor | None, element_type: int) -> bytes:
    """Name the grid of a scale, a zero point and a type; empty unless both are single numbers."""
    if math.prod(scale.shape) != 1 or (zero is not None and math.prod(zero.shape) != 1):
        return b""
    point = reshaped(zero, ()) if zero is not None else _ZERO
    return repr((reshaped(scale, ()).digest(), point.digest(), element_type)).encode()


def _dequantize(call: Call) -> list[Value]:
    data, scale, zero = call.tensor(0), call.tensor(1), call.optional(2)
    factor = _parameter(call, scale, data.shape)
    shifted = data if zero is None else minus(data, _parameter(call, zero, data.shape))
    return [replace(times(shifted, factor), grid=_grid(scale, zero, call.element_type(0)))]


def _quantize(call: Call) -> list[Value]:
    """Quantize; a value that was dequantized with the same numbers gives the integers back."""
    data, scale, zero = call.tensor(0), call.tensor(1), call.optional(2)
    element_type = call.output_types[0]
    grid = _grid(scale, zero, element_type)
    is_on_grid = grid and element_type and _keeps_integers(scale, element_type)
    if is_on_grid and isinstance(data, Elements) and data.grid == grid:
        inverse_scale = Elements(for_each_prime(_inverses, reshaped(scale, ())))
        quotient = replace(data, draws=times(data, inverse_scale).draws, grid=b"")
        return [quotient if zero is None else plus(quotient, reshaped(zero, ()))]
    operands = [data, *(_parameter(call, value, data.shape) for value in (scale, zero or _ZERO))]
    saturate = call.attributes.get("saturate", 1)
    return [function_of(key_of("QuantizeLinear", element_type, saturate), operands)]


def _keeps_integers(scale: Tensor, element_type: int) -> bool:
    """Check whether every integer comes back when it is dequantized and quantized again.

    65,535 at a scale of 0.1 does not in float16, and 100 at a scale of 1e37 becomes Inf in float32.
    """
    levels = 2.0 ** (8 * helper.tensor_dtype_to_np_dtype(element_type).itemsize)
    if levels * EPSILONS.get(scale.element_type, 1.0) > 1 / 2:
        return False
    with np.errstate(over="ignore"):
        return not isinstance(scale, KnownValue) or bool(np.isfinite(scale.array * levels).all())


def _inverses(array: Array, prime: int) -> Array:
    number = int(array) % prime
    return remainder(np.array(float(inverse(number, prime) if number else 0)), prime)


QUANTIZATION: Mapping[str, Meaning] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
}
