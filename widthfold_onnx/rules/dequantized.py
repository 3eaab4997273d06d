"""What a DequantizeLinear makes of integers: is it finite, and can it be quantized again?

A runtime knows moves of integers as DequantizeLinear - moves - QuantizeLinear. So behind moves of
what was dequantized stand a QuantizeLinear and a DequantizeLinear with its numbers. They change
nothing, as every number is one that was dequantized with them: `exact_dequantizer` tries all.
Without them ONNX Runtime puts such a pair behind every move itself, and fails at int8 from opset 21
on: it names the type in an attribute, and does not change that when it makes the bytes unsigned
(1.31.1, qdq_propagation.cc and qdq_s8_to_u8.cc: "output_dtype INT8 does not match y_zero_point type
UINT8").
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.domain import is_default
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.parameter import dequantizer, input_of

Array = npt.NDArray[Any]

DEQUANTIZE_INPUTS = 3
"""Of a DequantizeLinear with a zero point."""
BITS_8_AND_16 = ("INT8", "UINT8", "INT16", "UINT16")
SELECTING = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Each element of the result is one of the data. ONNX Runtime moves a DequantizeLinear behind them
(qdq_propagation.cc), and so computes in integers what follows."""
REMOVED = ("Dropout", "Identity")
"""Gone before ONNX Runtime moves a DequantizeLinear."""


def data_dequantizer(value: Value | None) -> Node | None:
    """The DequantizeLinear that made a value, whose elements were only moved or selected since."""
    maker = dequantizer(value)
    node = None if value is None else value.producer()
    if maker is not None or node is None or not is_default(node, *SELECTING):
        return maker
    # A window of a MaxPool that lies in its padding would have none: not without this attribute.
    rounds_up = "ceil_mode" in node.attributes and node.attributes["ceil_mode"].as_int()
    return None if rounds_up or value is not node.outputs[0] else data_dequantizer(node.inputs[0])


def is_dequantized_anew(value: Value | None) -> bool:
    """Whether ONNX Runtime moves a DequantizeLinear up to whatever reads a value.

    It ends the process where an If, Loop or Scan captures that value: it looks for it among the
    explicit inputs of the node (1.31.1, qdq_propagation.cc, from the basic level on).
    """
    moved, node = False, None if value is None else value.producer()
    while node is not None and is_default(node, *SELECTING, *REMOVED):
        moved |= is_default(node, *SELECTING)
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return moved and dequantizer(value) is not None


def is_finite(document: Document, value: Value | None) -> bool:
    """Whether a value was dequantized from integers, and none of them becomes Inf or NaN.

    Its scale is constant, and finite also when it is multiplied by 2**bits, which no difference of
    an integer and a zero point reaches.
    """
    maker = data_dequantizer(value)
    if maker is None or maker.inputs[1] is None:
        return False
    scale = document.constant(maker.inputs[1])
    kind = element_type(document, maker.inputs[0], input_of(maker, 2))
    if not (isinstance(scale, Constant) and isinstance(kind, str)):
        return False
    if not kind.startswith(("INT", "UINT")):
        return False  # floats of 8 bits have NaN
    numbers = document.read(scale)
    with np.errstate(over="ignore", invalid="ignore"):
        widest = numbers * numbers.dtype.type(2.0 ** int(kind.lstrip("UINT")))
    return bool(np.isfinite(widest).all())


def exact_dequantizer(document: Document, value: Value | None) -> Node | Refusal | None:
    """What made a value (`data_dequantizer`), if what it makes is itself when quantized again.

    Returns:
        None where none did; a refusal where it has other than one constant scale and zero
        point, or the two do not give back every number.
    """
    maker = data_dequantizer(value)
    if maker is None:
        return None
    given = [document.constant(v) for v in maker.inputs[1:] if v is not None]
    constants = [c for c in given if isinstance(c, Constant) and c.shape in ((), (1,))]
    if len(constants) != DEQUANTIZE_INPUTS - 1:
        return refused("the data is dequantized with other than one constant scale and zero point")
    more = sorted(maker.attributes.keys() - {"axis"})
    if more:
        return refused(f"the data is dequantized with {', '.join(more)}")
    types = [constant.dtype for constant in constants]
    if types[0] != "FLOAT" or types[1] not in BITS_8_AND_16:
        return refused(f"the data is dequantized from {types[1]} to {types[0]}")
    if not _gives_back(*map(document.read, constants)):
        return refused("the scale of the data does not give back every number")
    return maker


def refused(reason: str) -> Refusal:
    """Why a node between DequantizeLinear is left alone."""
    return Refusal("quantized", f"a runtime computes it in integers, and {reason}")


def element_type(document: Document, data: Value | None, zero: Value | None) -> str | Refusal:
    """Element type of integers: that of their zero point, or what they or their maker say."""
    for value in (zero, data):
        constant = None if value is None else document.constant(value)
        if isinstance(constant, Constant):
            return constant.dtype
        if value is not None and value.dtype is not None:
            return value.dtype.name
        maker = None if value is None else value.producer()
        if maker is not None and _makes_bytes(maker):
            return "UINT8"
    return Refusal("unknown-type", "the element type of the data is not known")


def _makes_bytes(node: Node) -> bool:
    """Whether a node returns UINT8 by definition (operator texts)."""
    plain = len(node.inputs) < DEQUANTIZE_INPUTS and "output_dtype" not in node.attributes
    return is_default(node, "DynamicQuantizeLinear") or (
        is_default(node, "QuantizeLinear") and plain
    )


def _gives_back(scale: Array, zero: Array) -> bool:
    """Whether what is dequantized becomes itself when it is quantized again (operator texts)."""
    limits, scale = np.iinfo(zero.dtype), scale.reshape(())
    every = np.arange(limits.min, limits.max + 1)
    offset = int(zero.reshape(()))
    with np.errstate(all="ignore"):
        again = np.rint((every - offset).astype(np.float32) * scale / scale) + offset
    # Below, kernels may take a number for 0, or divide by multiplying with what is Inf then.
    return bool(scale >= np.finfo(np.float32).tiny and np.array_equal(again, every))
