"""Read constants and data behind a DequantizeLinear: numbers, scales, zero points, and exactness.

A runtime recognizes moves of integers as DequantizeLinear - moves - QuantizeLinear. So the rewrite
puts a QuantizeLinear and a DequantizeLinear with the same scale and zero point behind moves of
dequantized data. The pair is an identity on dequantized numbers: `exact_dequantizer` tries all.
Without them ONNX Runtime puts such a pair behind every move itself, and fails at int8 from opset 21
on: it sets the type as an attribute, and does not update that when it makes the bytes unsigned
(1.31.1, qdq_propagation.cc and qdq_s8_to_u8.cc: "output_dtype INT8 does not match y_zero_point type
UINT8").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.constants import Constant
from widthfold_onnx.model.graph.document import Document, Node, Value
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.refusal import Code, Refusal


@dataclass(frozen=True, eq=False)
class Parameter:
    """A constant of a node, and the scale and zero point that dequantize it.

    Attributes:
        constant: the numbers as they are stored.
        maker: the DequantizeLinear between them and the node, if its integers are folded.
        scale: scale of the numbers, by `maker` or another input of the node; None where there is
            none or it is computed.
        zero: likewise the zero point.
        axis: the axis of the numbers along which scale and zero point of `maker` differ.
    """

    constant: Constant
    maker: Node | None = None
    scale: Constant | None = None
    zero: Constant | None = None
    axis: int = 0

    @property
    def vectors(self) -> Iterator[Constant]:
        """Yield scale and zero point of `maker`, if they hold one number per output channel."""
        if self.maker is not None:
            yield from (c for c in (self.scale, self.zero) if c and not is_single(c.shape))


def dequantizer(value: Value | None) -> Node | None:
    """Return the DequantizeLinear that makes a value, if one does."""
    node = None if value is None else value.producer()
    return node if node is not None and is_default(node, "DequantizeLinear") else None


def input_of(node: Node, index: int | None) -> Value | None:
    """Return an input of a node, None where it is left out."""
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def is_single(shape: Dims) -> bool:
    """Check whether an array holds one number for all channels; with two axes it is per channel."""
    return shape in ((), (1,))


def read_parameter(
    document: Document, node: Node, index: int | None, *, dequantized: bool
) -> Parameter | Refusal | None:
    """Read a constant input of a node; None where it is left out.

    Args:
        document: the model.
        node: the node.
        index: index of the input.
        dequantized: read the integers behind a DequantizeLinear, if there is one.
    """
    value = input_of(node, index)
    if value is None:
        return None
    # The output of a DequantizeLinear is read as well: it is refused if it cannot be computed.
    constant = document.constant(value)
    maker = dequantizer(value) if dequantized else None
    if isinstance(constant, Refusal) or maker is None:
        return constant if isinstance(constant, Refusal) else Parameter(constant)
    numbers, scale, zero = (constant_of(document, input_of(maker, place)) for place in range(3))
    assert numbers is not None  # else its output would be no constant
    axis = maker.attributes.get_int("axis", 1)
    return Parameter(numbers, maker, scale, zero, axis % max(len(numbers.shape), 1))


def constant_of(document: Document, value: Value | None) -> Constant | None:
    """Return the constant behind a value, None if there is none."""
    constant = None if value is None else document.constant(value)
    return constant if isinstance(constant, Constant) else None


DEQUANTIZE_INPUTS = 3
"""Number of inputs of a DequantizeLinear with a zero point."""
BITS_8_AND_16 = ("INT8", "UINT8", "INT16", "UINT16")
SELECTING = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Ops whose results are elements of the data. ONNX Runtime moves a DequantizeLinear behind them
(qdq_propagation.cc), and so computes the next op in integers."""
REMOVED = ("Dropout", "Identity")
"""Ops that ONNX Runtime removes before it moves a DequantizeLinear."""


def data_dequantizer(value: Value | None) -> Node | None:
    """Return the DequantizeLinear that made a value, with only moves and selections in between."""
    maker = dequantizer(value)
    node = None if value is None else value.producer()
    if maker is not None or node is None or not is_default(node, *SELECTING, "Identity"):
        return maker
    # With ceil_mode a window of a MaxPool may lie in its padding, and hold no element of the data.
    rounds_up = node.attributes.get_int("ceil_mode", 0)
    return None if rounds_up or value is not node.outputs[0] else data_dequantizer(node.inputs[0])


def is_dequantized_anew(value: Value | None) -> bool:
    """Check whether ONNX Runtime moves a DequantizeLinear to just before the readers of a value.

    ONNX Runtime aborts if an If, Loop or Scan captures such a value: it looks for the value among
    the explicit inputs of the node (1.31.1, qdq_propagation.cc, from the basic level on).
    """
    moved, node = False, None if value is None else value.producer()
    while node is not None and is_default(node, *SELECTING, *REMOVED):
        moved |= is_default(node, *SELECTING)
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return moved and dequantizer(value) is not None


def is_finite(document: Document, value: Value | None) -> bool:
    """Check whether a value was dequantized from integers that never become Inf or NaN.

    Its scale is constant, and stays finite when multiplied by 2**bits, which is more than any
    difference of an integer and a zero point.
    """
    maker = data_dequantizer(value)
    if maker is None:
        return False
    scale = constant_of(document, maker.inputs[1])
    kind = element_type(document, maker.inputs[0], input_of(maker, 2))
    if scale is None or isinstance(kind, Refusal):
        return False
    if not kind.startswith(("INT", "UINT")):
        return False  # 8-bit floats include NaN
    numbers = document.read(scale)
    with np.errstate(over="ignore", invalid="ignore"):
        widest = numbers * numbers.dtype.type(2.0 ** int(kind.lstrip("UINT")))
    return bool(np.isfinite(widest).all())


def exact_dequantizer(document: Document, value: Value | None) -> Node | Refusal | None:
    """Return the `data_dequantizer` of a value, if quantizing again gives back every number.

    Returns:
        The node; None if there is none; a refusal if it has other than one constant scale and
        zero point, or the two do not give back every number.
    """
    maker = data_dequantizer(value)
    if maker is None:
        return None
    parameters = [constant_of(document, value) for value in maker.inputs[1:]]
    constants = [c for c in parameters if c is not None and is_single(c.shape)]
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
    """Return the refusal of a node between DequantizeLinear."""
    return Refusal(Code.QUANTIZED, f"a runtime computes it in integers, and {reason}")


def element_type(document: Document, data: Value | None, zero: Value | None) -> str | Refusal:
    """Return the element type of integers: the type of their zero point, else their own."""
    for value in (zero, data):
        constant = constant_of(document, value)
        if constant is not None:
            return constant.dtype
        if value is not None and value.dtype is not None:
            return value.dtype.name
        maker = None if value is None else value.producer()
        if maker is not None and _makes_bytes(maker):
            return "UINT8"
        if maker is not None and is_default(maker, "QuantizeLinear"):
            return element_type(document, None, input_of(maker, 2))
    return Refusal(Code.UNKNOWN_TYPE, "the element type of the data is not known")


def _makes_bytes(node: Node) -> bool:
    """Check whether a node returns UINT8 by definition (operator texts)."""
    plain = len(node.inputs) < DEQUANTIZE_INPUTS and "output_dtype" not in node.attributes
    return is_default(node, "DynamicQuantizeLinear") or (
        is_default(node, "QuantizeLinear") and plain
    )


def _gives_back(scale: Array, zero: Array) -> bool:
    """Check whether quantizing every dequantized number gives it back (operator texts)."""
    limits, scale = np.iinfo(zero.dtype), scale.reshape(())
    every = np.arange(limits.min, limits.max + 1)
    offset = int(zero.reshape(()))
    with np.errstate(all="ignore"):
        again = np.rint((every - offset).astype(np.float32) * scale / scale) + offset
    # With a subnormal scale a kernel may flush numbers to 0, or multiply by a reciprocal of Inf.
    return bool(scale >= np.finfo(np.float32).tiny and np.array_equal(again, every))
