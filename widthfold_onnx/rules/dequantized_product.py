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

from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.parameter import dequantizer

Array = npt.NDArray[Any]

ADDEND = 2
"""Which input of a Gemm C is."""
INPUTS = 3
"""Of a DequantizeLinear with a zero point."""
BITS_8_AND_16 = ("INT8", "UINT8", "INT16", "UINT16")


def read_dequantized(
    document: Document,
    node: Node,
    data: Value | None,
    weight: Value | None,
    *,
    left: bool,
    turned: bool,
) -> Node | Refusal | None:
    """What dequantizes the data of a MatMul or Gemm, if both operands are dequantized.

    Args:
        document: the model.
        node: the product.
        data: its data.
        weight: its weight; like C it is constant.
        left: the weight is the left operand.
        turned: it is stored with its two last axes exchanged.

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
    more = sorted(maker.attributes.keys() - {"axis"})
    if more:
        return _refused(f"the data is dequantized with {', '.join(more)}")
    types = [constant.dtype for constant in constants]
    if types[0] != "FLOAT" or types[1] not in BITS_8_AND_16:
        return _refused(f"the data is dequantized from {types[1]} to {types[0]}")
    if not _gives_back(*map(document.read, constants)):
        return _refused("the scale of the data does not give back every number")
    # A vector counts input channels.
    vector = len(_numbers(document, weight).shape) == 1
    channels = None if vector else -2 if left != turned else -1
    problem = _problem(document, "the weight", weight, channels)
    addend = node.inputs[ADDEND] if len(node.inputs) > ADDEND else None
    if problem is None and dequantizer(addend) is not None:
        problem = _problem(document, "C", addend, -1)
        shape = _numbers(document, addend).shape
        # On the left a C per channel has two axes, which integer kernels do not take.
        if problem is None and shape not in ((), (1,)) and (left or len(shape) > 1):
            problem = _refused(f"C of extents {list(shape)} is dequantized")
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
    # Below, kernels may take a number for 0, or divide by multiplying with what is Inf then.
    return bool(scale >= np.finfo(np.float32).tiny and np.array_equal(again, every))


def _problem(
    document: Document, name: str, value: Value | None, channels: int | None
) -> Refusal | None:
    """Why a constant is not folded as it is stored.

    Args:
        document: the model.
        name: what the constant is.
        value: the constant.
        channels: its axis of output channels, from the last; None where it has none.
    """
    maker = dequantizer(value)
    if maker is None:
        return None
    rank = len(_numbers(document, maker.inputs[0]).shape)
    scale = document.read(_numbers(document, maker.inputs[1]))
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        return _refused(f"a scale of {name} is not a positive number")
    if scale.size > 1 and (channels is None or axis_of(maker, rank) != rank + channels):
        return _refused(f"{name} has several scales, which are not those of output channels")
    return None


def _numbers(document: Document, value: Value | None) -> Constant:
    """A weight, C, or what dequantizes one: it is constant, or the site would not be read."""
    assert value is not None
    found = document.constant(value)
    assert isinstance(found, Constant)
    return found


def _refused(reason: str) -> Refusal:
    return Refusal("quantized", f"a runtime computes it in integers, and {reason}")
