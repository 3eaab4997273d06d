"""Read the constants of a node: their stored numbers, scales and zero points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from widthfold_onnx.model.graph.constants import Constant
from widthfold_onnx.model.graph.document import Document, Node, Value
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.refusal import Refusal


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
