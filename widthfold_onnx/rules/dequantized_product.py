"""A product of matrices whose operands are dequantized (QDQ), which a runtime computes in integers.

It does so where it finds DequantizeLinear on both operands. So the weight, and C if that is
dequantized, is folded as it is stored, in integers, and dequantized again; and behind the Reshape
of the data stand a QuantizeLinear and a DequantizeLinear with the numbers of that before it. They
change nothing, as every number is one that was dequantized with them: `read_dequantized` tries all.
DequantizeLinear - Reshape - QuantizeLinear is how a runtime knows a Reshape of integers. Without
the pair it moves the DequantizeLinear itself, and fails at int8 from opset 21 on (ONNX Runtime
1.31.1: "output_dtype INT8 does not match y_zero_point type UINT8"); with a Reshape of integers
before the DequantizeLinear it multiplies int8 in floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.model.constants import Constant, is_default
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.refusal import Refusal

Array = npt.NDArray[Any]

INPUTS = 3
"""Of a DequantizeLinear; those of a Gemm are as many."""
BITS_8_AND_16 = ("INT8", "UINT8", "INT16", "UINT16")


def dequantizer(value: Value | None) -> Node | None:
    """The DequantizeLinear that makes a value, if one does."""
    node = None if value is None else value.producer()
    return node if node is not None and is_default(node, "DequantizeLinear") else None


def read_dequantized(
    document: Document, node: Node, data: Value | None, weight: Value | None, *, left: bool
) -> Node | Refusal | None:
    """What dequantizes the data of a MatMul or Gemm, if both operands are dequantized.

    Args:
        document: the model.
        node: the product.
        data: its data.
        weight: its weight; like C it is constant.
        left: the weight is the left operand.

    Returns:
        A refusal where the data has other than one constant scale and zero point, where the two
        do not give back every number, or where weight or C are dequantized in a way that a folded
        one cannot be.
    """
    maker = dequantizer(data)
    if maker is None or dequantizer(weight) is None:
        return None
    given = [document.constant(value) for value in maker.inputs[1:] if value is not None]
    constants = [c for c in given if isinstance(c, Constant) and c.shape in ((), (1,))]
    if len(constants) != INPUTS - 1:
        return _refused("the data is dequantized with other than one constant scale and zero point")
    types = [constant.dtype for constant in constants]
    if types[0] != "FLOAT" or types[1] not in BITS_8_AND_16:
        return _refused(f"the data is dequantized from {types[1]} to {types[0]}")
    if not _gives_back(*map(document.read, constants)):
        return _refused("the scale of the data does not give back every number")
    problem = _problem(document, "the weight", weight, axes=2)
    if problem is None and len(node.inputs) > INPUTS - 1:
        # On the left a C per channel has two axes, which integer kernels do not take.
        problem = _problem(document, "C", node.inputs[-1], axes=0 if left else 1)
    return problem or maker


def axis_of(maker: Node, rank: int) -> int:
    """The axis of a DequantizeLinear's scales, for data of a rank."""
    axis = maker.attributes["axis"].as_int() if "axis" in maker.attributes else 1
    return axis % max(rank, 1)


def _gives_back(scale: Array, zero: Array) -> bool:
    """Whether what is dequantized becomes itself when it is quantized again (operator texts)."""
    limits, scale = np.iinfo(zero.dtype), scale.reshape(())
    every = np.arange(limits.min, limits.max + 1)
    offset = int(zero.reshape(()))
    with np.errstate(all="ignore"):
        again = np.rint((every - offset).astype(np.float32) * scale / scale) + offset
    return bool(scale > 0 and np.isfinite(scale) and np.array_equal(again, every))


def _problem(document: Document, name: str, value: Value | None, *, axes: int) -> Refusal | None:
    """Why a constant is not folded as it is stored; of several numbers it must have `axes`."""
    maker = dequantizer(value)
    if maker is None:
        return None
    numbers, scale = (document.constant(v) for v in maker.inputs[:2] if v is not None)
    assert isinstance(numbers, Constant)  # else what it makes would be none
    assert isinstance(scale, Constant)
    array = document.read(scale)
    if not (np.isfinite(array).all() and (array > 0).all()):
        return _refused(f"a scale of {name} is not a positive number")
    if name == "C" and numbers.shape not in ((), (1,)) and len(numbers.shape) != axes:
        return _refused(f"{name} of extents {list(numbers.shape)} is dequantized")
    if len(numbers.shape) < axes and array.size > 1:
        return _refused(f"{name} is a vector with a scale for each of its numbers")
    return None


def _refused(reason: str) -> Refusal:
    return Refusal("quantized", f"a runtime computes it in integers, and {reason}")
