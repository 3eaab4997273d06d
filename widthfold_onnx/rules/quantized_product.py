"""Read the inputs of a product of matrices that quantize its operands and its result.

Each is one number, or has one number per row of A, column of B or row of the result (operator
texts, MatMulInteger-10 and QLinearMatMul-21). Rows and columns are positions or channels, depending
on the side of the weight. Numbers per channel are repeated by a fold; numbers per position cannot
be folded, as one folded position is several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.fold.matmul import MatMulFold, fold_per_channel
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.base import Extents, product
from widthfold_onnx.rules.quantized import ACCUMULATOR

Array = npt.NDArray[Any]

INTEGERS = {"INT8": 1, "UINT8": 1}
"""Bytes of the elements of a quantized weight."""

MAX_DATA = 255
"""Largest distance of a quantized number of 8 bits from its zero point."""


@dataclass(frozen=True)
class ProductInputs:
    """The indices of a product's inputs.

    Attributes:
        operands: A and B.
        zeros: their zero points.
        scales: their scales.
        result: scale and zero point of the result.
    """

    operands: tuple[int, int] = (0, 1)
    zeros: tuple[int, ...] = ()
    scales: tuple[int, ...] = ()
    result: tuple[int, ...] = ()


PRODUCT_INPUTS: Mapping[str, ProductInputs] = {
    "Gemm": ProductInputs(),
    "MatMul": ProductInputs(),
    "MatMulInteger": ProductInputs(zeros=(2, 3)),
    "QLinearMatMul": ProductInputs(operands=(0, 3), zeros=(2, 5), scales=(1, 4), result=(6, 7)),
}


MATRIX = 2
"""Axes of a matrix."""

RESULT = ("scale", "zero point")


@dataclass(frozen=True)
class ProductQuantization:
    """The quantization of a product.

    Attributes:
        zero: zero point of the weight, broadcasts against the weight as a matrix.
        beside: the constant inputs with one number per output channel, and the weight's zero
            point, by index.
    """

    zero: Array
    beside: Mapping[int, Constant]


@dataclass(frozen=True)
class _Input:
    """One of these inputs: its index, its name, and whether it belongs to output channels."""

    index: int
    name: str
    of_channels: bool


def quantization(
    document: Document, node: Node, extents: Extents, matrix: tuple[int, ...], *, left: bool
) -> ProductQuantization | Refusal:
    """Read the quantization of a product.

    Args:
        document: the model.
        node: the product.
        extents: extents of computed inputs.
        matrix: extents of the weight as a matrix.
        left: the weight is the left operand.

    Returns:
        The quantization; a refusal if the zero point of the weight is computed, so that structural
        zeros have no value, or an input differs between positions, or is computed per channel.
    """
    beside: dict[int, Constant] = {}
    zero = np.zeros((), np.int8)
    of_weight = _zero_input(node, left=left)
    for given in _inputs(node, left=left):
        value = node.inputs[given.index]
        assert value is not None
        constant = document.constant(value)
        shape = constant.shape if isinstance(constant, Constant) else extents(value)
        mine = given.index == of_weight
        if isinstance(constant, Refusal) and mine:
            return Refusal(
                Code.WEIGHT_ZERO_POINT_COMPUTED,
                f"{given.name} {constant.reason}: what fills the gaps of the weight is not known",
            )
        problem = _problem(given, constant, shape, matrix, left=left)
        if problem is not None:
            return problem
        if isinstance(constant, Constant) and (mine or not is_single(constant.shape)):
            beside[given.index] = constant
        if isinstance(constant, Constant) and mine:
            zero = across(document.read(constant), left=left)
    return ProductQuantization(zero, beside)


def _zero_input(node: Node, *, left: bool) -> int | None:
    """Return the index of the weight's zero point; None for an operator without one."""
    zeros = PRODUCT_INPUTS[node.op_type].zeros
    return zeros[not left] if zeros else None


def across(array: Array, *, left: bool) -> Array:
    """Return numbers per output channel so that they broadcast against weight and result.

    A vector beside a weight on the left has one number per row; all else broadcasts as it is.
    """
    return array[:, None] if left and array.ndim == 1 else array


def per_channel(array: Array, fold: MatMulFold) -> Array:
    """Return numbers per output channel for a folded product; a single number stays as it is."""
    if is_single(array.shape):
        return array
    return fold_per_channel(array, fold, -2 if fold.left and array.ndim > 1 else -1)


def is_single(shape: Dims) -> bool:
    """Check whether an input is one number for all; one with two axes is of a single channel."""
    return len(shape) < MATRIX and product(shape) == 1


def accumulator_overflow(weight: Array, zero: Array, *, left: bool) -> Refusal | None:
    """Refuse a weight with which a sum could leave 32 bits, where kernels may differ.

    The bound is for the products of the original: structural zeros add nothing to them. A kernel
    that sums raw numbers, structural zeros included, and subtracts the zero points later is exact
    modulo 2**32, so its result is right if it fits.

    Args:
        weight: [.., rows, columns].
        zero: its zero point.
        left: the weight is the left operand, so that its rows are output channels.
    """
    distance = np.abs(weight.astype(np.int64) - zero.astype(np.int64))
    largest = MAX_DATA * int(distance.sum(axis=-1 if left else -2).max(initial=0))
    if largest <= ACCUMULATOR:
        return None
    return Refusal(
        Code.ACCUMULATOR_OVERFLOW, f"a sum could reach {largest}, which is more than {ACCUMULATOR}"
    )


def _inputs(node: Node, *, left: bool) -> Iterator[_Input]:
    """Yield a node's inputs: the weight's are of output channels, the data's of positions."""
    inputs = PRODUCT_INPUTS[node.op_type]
    found = [
        *(
            _Input(index, f"the zero point of {'AB'[i]}", left != i)
            for i, index in enumerate(inputs.zeros)
        ),
        *(
            _Input(index, f"the scale of {'AB'[i]}", left != i)
            for i, index in enumerate(inputs.scales)
        ),
        *(
            _Input(index, f"the {RESULT[i]} of the result", left)
            for i, index in enumerate(inputs.result)
        ),
    ]
    for given in found:
        if given.index < len(node.inputs) and node.inputs[given.index] is not None:
            yield given


def _problem(
    given: _Input, constant: Constant | Refusal, shape: Dims | None, matrix: Dims, *, left: bool
) -> Refusal | None:
    if shape is None or None in shape:
        return Refusal(Code.UNKNOWN_SHAPE, f"how many numbers {given.name} has is not known")
    if is_single(shape):
        return None
    if not given.of_channels:
        return Refusal(
            Code.QUANTIZED_PER_POSITION,
            f"{given.name} has the extents {list(shape)}, so it differs between positions that "
            "become one",
        )
    if isinstance(constant, Refusal):
        return Refusal(Code.QUANTIZED_NOT_CONSTANT, f"{given.name} {constant.reason}")
    # Input channels share one number; all other axes have the extents of the weight.
    natural = (*shape, 1) if left and len(shape) == 1 else shape
    wanted = (*matrix[:-1], 1) if left else (*matrix[:-2], 1, matrix[-1])
    pairs = zip(reversed(natural), reversed(wanted), strict=False)
    if len(natural) <= len(wanted) and all(n == w for n, w in pairs):
        return None
    return Refusal(
        Code.INCONSISTENT_SHAPES,
        f"{given.name} has the extents {list(shape)}, the weight {list(matrix)}",
    )
