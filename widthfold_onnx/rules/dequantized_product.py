"""Read products of matrices with dequantized operands (QDQ), which a runtime computes in integers.

It does so where it finds DequantizeLinear on both operands. So the weight, and C if that is
dequantized, is folded as stored integers and dequantized behind the fold; the data is quantized
again (`rules.dequantized`). With a Reshape of integers before the DequantizeLinear ONNX Runtime
1.31.1 multiplies int8 in floats.
"""

from __future__ import annotations

import numpy as np

from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.dequantized import refused
from widthfold_onnx.rules.parameter import dequantizer

ADDEND = 2
"""Index of the input C of a Gemm."""


def problem_of(
    document: Document,
    node: Node,
    data: Node | Refusal | None,
    weight: Value | None,
    *,
    left: bool,
    turned: bool,
) -> Refusal | None:
    """Refuse a MatMul or Gemm whose data, weight or C is dequantized in a way that cannot fold.

    Args:
        document: the model.
        node: the product.
        data: the result of `exact_dequantizer` for its data.
        weight: its weight; like C it is constant.
        left: the weight is the left operand.
        turned: the weight is stored with its two last axes exchanged.
    """
    if isinstance(data, Refusal):
        return data
    # The axis of a vector is that of the input channels.
    vector = len(_numbers(document, weight).shape) == 1
    channels = None if vector else -2 if left != turned else -1
    problem = _problem(document, "the weight", weight, channels)
    addend = node.inputs[ADDEND] if len(node.inputs) > ADDEND else None
    if problem is None and dequantizer(addend) is not None:
        problem = _problem(document, "C", addend, -1)
        shape = _numbers(document, addend).shape
        # On the left a C per channel has two axes, which integer kernels do not take.
        if problem is None and shape not in ((), (1,)) and (left or len(shape) > 1):
            problem = refused(f"C of extents {list(shape)} is dequantized")
    return problem


def axis_of(maker: Node, rank: int) -> int:
    """Return the axis of a DequantizeLinear's scales, for data of a rank."""
    axis = maker.attributes["axis"].as_int() if "axis" in maker.attributes else 1
    return axis % max(rank, 1)


def _problem(
    document: Document, name: str, value: Value | None, channels: int | None
) -> Refusal | None:
    """Refuse a constant that cannot be folded as it is stored.

    Args:
        document: the model.
        name: name of the constant for the reason.
        value: the constant.
        channels: its axis of output channels, counted from the end; None where it has none.
    """
    maker = dequantizer(value)
    if maker is None:
        return None
    rank = len(_numbers(document, maker.inputs[0]).shape)
    scale = document.read(_numbers(document, maker.inputs[1]))
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        return refused(f"a scale of {name} is not a positive number")
    if scale.size > 1 and (channels is None or axis_of(maker, rank) != rank + channels):
        return refused(f"{name} has several scales, which are not those of output channels")
    return None


def _numbers(document: Document, value: Value | None) -> Constant:
    """Return the constant of a value that is known to be constant, as the site was read."""
    assert value is not None
    found = document.constant(value)
    assert isinstance(found, Constant)
    return found
