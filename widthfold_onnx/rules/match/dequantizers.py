"""Find the DequantizeLinear that made the data of a node, as ONNX Runtime finds it.

A runtime recognizes moves of integers as DequantizeLinear - moves - QuantizeLinear. So the rewrite
puts a QuantizeLinear and a DequantizeLinear with the same scale and zero point behind moves of
dequantized data. The pair is an identity on dequantized numbers: `exact_dequantizer` tries all.
Without them ONNX Runtime puts such a pair behind every move itself, and fails at int8 from opset 21
on: it sets the type as an attribute, and does not update that when it makes the bytes unsigned
(1.31.1, qdq_propagation.cc and qdq_s8_to_u8.cc: "output_dtype INT8 does not match y_zero_point type
UINT8").
"""

from __future__ import annotations

import numpy as np
import onnx

from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.model.graph.document import (
    Document,
    Node,
    Value,
    constant_of,
    graph_of,
    input_of,
)
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.refusal import Code, Refusal

DEQUANTIZE_INPUTS = 3
"""Number of inputs of a DequantizeLinear with a zero point."""
BITS_8_AND_16 = ("INT8", "UINT8", "INT16", "UINT16")
SELECTING = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Ops whose results are elements of the data. ONNX Runtime moves a DequantizeLinear behind them
(qdq_propagation.cc), and so computes the next op in integers."""
REMOVED = ("Dropout", "Identity")
"""Ops that ONNX Runtime removes before it moves a DequantizeLinear."""


def dequantizer(value: Value | None) -> Node | None:
    """Return the DequantizeLinear that makes a value, if one does."""
    node = None if value is None else value.producer()
    return node if node is not None and is_default(node, "DequantizeLinear") else None


def data_dequantizer(value: Value | None) -> Node | None:
    """Return the DequantizeLinear that made a value, with only moves and selections in between."""
    maker = dequantizer(value)
    node = None if value is None else value.producer()
    if maker is not None or node is None or not is_default(node, *SELECTING, "Identity"):
        return maker
    # With ceil_mode a window of a MaxPool may lie in its padding, and hold no element of the data.
    rounds_up = node.attributes.get_int("ceil_mode", 0)
    return None if rounds_up or value is not node.outputs[0] else data_dequantizer(node.inputs[0])


def runtime_moves_dequantizer(value: Value | None) -> bool:
    """Check whether ONNX Runtime moves a DequantizeLinear to just before the readers of a value.

    ONNX Runtime aborts if an If, Loop or Scan captures such a value: it looks for the value among
    the explicit inputs of the node (1.31.1, qdq_propagation.cc, from the basic level on).
    """
    has_moves, node = False, None if value is None else value.producer()
    while node is not None and is_default(node, *SELECTING, *REMOVED):
        has_moves |= is_default(node, *SELECTING)
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return has_moves and dequantizer(value) is not None


def is_finite(document: Document, node: Node, value: Value | None) -> bool:
    """Check whether a value was dequantized from integers that never become Inf or NaN.

    A node reads the value. Its scale is constant, and stays finite when multiplied by 2**bits: more
    than any difference of an integer and a zero point.
    """
    maker = data_dequantizer(value)
    if maker is None:
        return False
    scale = constant_of(document, maker.inputs[1])
    kind = element_type(document, node, input_of(maker, 2), maker.inputs[0])
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
    extra_attributes = sorted(maker.attributes.keys() - {"axis"})
    if extra_attributes:
        return refused(f"the data is dequantized with {', '.join(extra_attributes)}")
    types = [constant.dtype for constant in constants]
    if types[0] != "FLOAT" or types[1] not in BITS_8_AND_16:
        return refused(f"the data is dequantized from {types[1]} to {types[0]}")
    if not _gives_back(*map(document.read, constants)):
        return refused("the scale of the data does not give back every number")
    return maker


def refused(reason: str) -> Refusal:
    """Return the refusal of a node between DequantizeLinear."""
    return Refusal(Code.QUANTIZED, f"a runtime computes it in integers, and {reason}")


def element_type(document: Document, node: Node, *values: Value | None) -> str | Refusal:
    """Return the element type of integers that a node reads: the first that is known.

    Data and zero point have one type; the type of the zero point may be known alone.
    """
    for value in values:
        kind = 0 if value is None else document.element_type(graph_of(node), value.name or "")
        if kind:
            return str(onnx.TensorProto.DataType.Name(kind))
    return Refusal(Code.UNKNOWN_TYPE, "the element type of the data is not known")


def is_single(shape: Dims) -> bool:
    """Check whether these are extents of one number for all channels; [1, 1] is one per channel."""
    return shape in ((), (1,))


def _gives_back(scale: Array, zero: Array) -> bool:
    """Check whether quantizing every dequantized number gives it back (operator texts)."""
    limits, scale = np.iinfo(zero.dtype), scale.reshape(())
    integers = np.arange(limits.min, limits.max + 1)
    offset = int(zero.reshape(()))
    with np.errstate(all="ignore"):
        results = np.rint((integers - offset).astype(np.float32) * scale / scale) + offset
    # With a subnormal scale a kernel may flush numbers to 0, or multiply by a reciprocal of Inf.
    return bool(scale >= np.finfo(np.float32).tiny and np.array_equal(results, integers))
