"""Weight and bias of a convolution: their stored numbers, and what dequantizes them."""

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
    """What the inputs of a convolution are, by index; None for what it does not have.

    Scale and zero point are those of the weight, if not named for data.
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
    """A weight or bias: its stored numbers, and what dequantizes them.

    Attributes:
        value: what holds the numbers: an input of the node, or of the DequantizeLinear before it.
        constant: the numbers.
        scale: one number, or one per output channel; None where there is none.
        zero: the same of the zero point.
        axis: which axis of the numbers counts the output channels of scale and zero point.
    """

    value: Value
    constant: Constant
    scale: tuple[Value, Constant] | None = None
    zero: tuple[Value, Constant] | None = None
    axis: int = 0

    @property
    def vectors(self) -> dict[Value, Constant]:
        """Scale and zero point, where they hold one number per output channel."""
        pairs = [pair for pair in (self.scale, self.zero) if pair is not None]
        return {value: constant for value, constant in pairs if math.prod(constant.shape) > 1}


def dequantizer(value: Value | None) -> Node | None:
    """The DequantizeLinear that makes a value, if one does."""
    node = None if value is None else value.producer()
    return node if node is not None and is_default(node, "DequantizeLinear") else None


def input_of(node: Node, index: int | None) -> Value | None:
    """An input of a node, None where it is left out."""
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def read_parameter(
    document: Document, node: Node, index: int | None, *, dequantized: bool
) -> Parameter | Refusal | None:
    """A weight or bias of a node.

    Args:
        document: the model.
        node: the node.
        index: which of its inputs.
        dequantized: read the integers behind a DequantizeLinear, if there is one.
    """
    value = input_of(node, index)
    if value is None or index is None:
        return None
    # What a DequantizeLinear makes is read as well: that says whether it is one that we know.
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
        assert isinstance(integers, Constant)  # else the value would be none
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
