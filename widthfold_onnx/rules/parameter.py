"""Read weight and bias of a convolution: their stored numbers, scales and zero points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.domain import is_default
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.refusal import Refusal


@dataclass(frozen=True)
class Inputs:
    """The indices of a convolution's inputs; None for an input that it does not have.

    `scale` and `zero` are those of the weight.
    """

    weight: int = 1
    bias: int | None = None
    scale: int | None = None
    zero: int | None = None
    data_zero: int | None = None


INPUTS: Mapping[str, Inputs] = {
    "Conv": Inputs(bias=2),
    "ConvTranspose": Inputs(bias=2),
    "ConvInteger": Inputs(data_zero=2, zero=3),
    "QLinearConv": Inputs(data_zero=2, weight=3, scale=4, zero=5, bias=8),
}


@dataclass(frozen=True, eq=False)
class Parameter:
    """A weight or bias: its stored numbers, and the scale and zero point that dequantize them.

    Attributes:
        value: the value that holds the numbers: an input of the node, or of the DequantizeLinear
            before it.
        constant: the numbers.
        scale: one number, or one per output channel; None where there is none.
        zero: likewise the zero point.
        axis: the axis of the numbers along which scale and zero point differ.
    """

    value: Value
    constant: Constant
    scale: tuple[Value, Constant] | None = None
    zero: tuple[Value, Constant] | None = None
    axis: int = 0

    @property
    def vectors(self) -> dict[Value, Constant]:
        """Scale and zero point, if they hold one number per output channel."""
        pairs = [pair for pair in (self.scale, self.zero) if pair is not None]
        return {value: constant for value, constant in pairs if math.prod(constant.shape) > 1}


def dequantizer(value: Value | None) -> Node | None:
    """Return the DequantizeLinear that makes a value, if one does."""
    node = None if value is None else value.producer()
    return node if node is not None and is_default(node, "DequantizeLinear") else None


def input_of(node: Node, index: int | None) -> Value | None:
    """Return an input of a node, None where it is left out."""
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def read_parameter(
    document: Document, node: Node, index: int | None, *, dequantized: bool
) -> Parameter | Refusal | None:
    """Read a weight or bias of a node.

    Args:
        document: the model.
        node: the node.
        index: index of the input.
        dequantized: read the integers behind a DequantizeLinear, if there is one.
    """
    value = input_of(node, index)
    if value is None or index is None:
        return None
    # The output of a DequantizeLinear is read as well: it is refused if it cannot be computed.
    constant = document.constant(value)
    maker = dequantizer(value) if dequantized else None
    if isinstance(constant, Refusal):
        return constant
    inputs = INPUTS[node.op_type]
    places = (inputs.scale, inputs.zero) if index == inputs.weight else (None, None)
    axis = 0
    if maker is not None:
        given = maker.inputs[0]
        assert given is not None
        integers = document.constant(given)
        assert isinstance(integers, Constant)  # else its output would be no constant
        value, constant, node, places = given, integers, maker, (1, 2)
        if "axis" in maker.attributes:
            axis = maker.attributes["axis"].as_int() % max(len(constant.shape), 1)
        else:
            axis = 1
    scale, zero = (_constant(document, input_of(node, place)) for place in places)
    if isinstance(scale, Refusal):
        return scale
    if isinstance(zero, Refusal):
        return zero
    return Parameter(value, constant, scale, zero, axis)


def _constant(document: Document, value: Value | None) -> tuple[Value, Constant] | Refusal | None:
    if value is None:
        return None
    found = document.constant(value)
    return found if isinstance(found, Refusal) else (value, found)
