"""Describe a node whose tensors may be padded, and the padded node that a rule returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from onnx import helper

from widthfold_onnx.algebra.layouts import PaddedLayout
from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.constants import Constant
from widthfold_onnx.model.graph.document import Attribute, Document, Node
from widthfold_onnx.model.proto.constant_folding import run_reference
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.padding.runs import Line

CHANNELS = 1
"""The axis of the channels."""

WRITING_ZEROS = frozenset({"BatchNormalization", "Conv", "ConvTranspose"})
"""Ops whose new weights make padding of zeros, for any padding of their inputs."""

DECIDING = frozenset(
    {
        *("Cast", "GlobalMaxPool", "HardSigmoid", "Less", "Max", "Min", "Pow", "ReduceMax"),
        *("ReduceMin", "Resize", "ThresholdedRelu", "Where"),
    }
)
"""Ops of which an attribute or another operand decides whether they make a zero of zeros."""


@dataclass(frozen=True)
class Op:
    """A node with the channels that it reads.

    Attributes:
        lines: the channels of each input; None where it is a constant or has none.
        shapes: extents of each input, None where not even the rank is known.
    """

    document: Document
    node: Node
    lines: tuple[Line | None, ...]
    shapes: tuple[Dims | None, ...]

    @property
    def data(self) -> Line:
        """The channels of input 0."""
        line = self.lines[0]
        assert line is not None
        return line

    @property
    def rank(self) -> int:
        """The rank of input 0, whose channels are known."""
        shape = self.shapes[0]
        assert shape is not None
        return len(shape)

    def has(self, index: int) -> bool:
        """Check whether an input is there."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def stored(self, index: int) -> Constant | Refusal:
        """Return an input as a constant."""
        value = self.node.inputs[index]
        assert value is not None
        return self.document.constant(value)

    def constant(self, index: int) -> Array | Refusal:
        """Return the numbers of an input."""
        constant = self.stored(index)
        return constant if isinstance(constant, Refusal) else self.document.read(constant)

    def numbers(self, index: int, name: str, since: int) -> list[int] | Refusal | None:
        """Return whole numbers that are an input since an operator set, and an attribute before.

        None where they are left out.
        """
        if self.document.opset < since:
            attributes = self.node.attributes
            return list(attributes.get_ints(name, [])) if name in attributes else None
        if not self.has(index):
            return None
        array = self.constant(index)
        return array if isinstance(array, Refusal) else array.ravel().tolist()


@dataclass(frozen=True)
class Laid(Op):
    """A node whose tensors have padded layouts.

    Attributes:
        inputs: the layout of each input; None where it has no channels.
        outputs: the layout of each output.
        paddings: the number in the padding of each input, of its element type; None where there
            is no padding.
        zeros: whether the padding of each input is 0 by sums and products alone (`makes_zeros`).
    """

    inputs: tuple[PaddedLayout | None, ...]
    outputs: tuple[PaddedLayout, ...]
    paddings: tuple[Array | None, ...]
    zeros: tuple[bool, ...]

    @property
    def padding(self) -> Array | None:
        """The number in the padding of input 0."""
        return self.paddings[0]

    def makes_zeros(self, padding: Array | None) -> bool:
        """Check whether the op makes padding of 0 for any numbers in the padding of its inputs.

        The proof takes such a zero for a zero, and the zero of any other op for any number.
        """
        name = self.node.op_type
        if padding is None or padding != 0 or name in DECIDING:
            return False
        pairs = zip(self.zeros, self.paddings, strict=True)
        operands = [zero for zero, number in pairs if number is not None]
        every = any if name in ("Div", "Mul") else all
        return name in WRITING_ZEROS or every(operands)

    @property
    def zero(self) -> Array:
        """A zero of the element type of input 0."""
        value = self.node.inputs[0]
        assert value is not None
        kind = self.document.element(self.document.main, value.name or "")
        return np.zeros((), helper.tensor_dtype_to_np_dtype(kind) if kind else np.float32)

    def applied(self, operands: Sequence[Array | None]) -> Array | Refusal:
        """Return what the op makes of single numbers, if it is finite."""
        name = self.node.op_type
        # NumPy before 2.0 computes with arrays of rank 0 as with Python's numbers, in float64.
        vectors = [None if array is None else array.reshape(1) for array in operands]
        try:
            results = run_reference(self.document.message(self.node), vectors, self.document.opset)
        except ValueError:
            results = None
        if not results or results[0].size != 1:
            return Refusal(Code.PADDING_UNKNOWN, f"what {name} makes of padding is not known")
        result = results[0].reshape(())
        if not np.isfinite(result.astype(np.float64)):
            return Refusal(Code.PADDING_NOT_FINITE, f"{name} makes {result} of padding")
        return result


@dataclass(frozen=True)
class PaddedNode:
    """A node on padded tensors.

    Attributes:
        padding: the number in the padding of its outputs; None where they have none.
        constants: new numbers for inputs, by index; padded tensors replace the data, and all other
            inputs stay.
        attributes: new attributes, by name; None takes one away, and all others stay.
        vanishes: whether it only returns its padded input.
    """

    padding: Array | None
    constants: Mapping[int, Array] = field(default_factory=dict)
    attributes: Mapping[str, Attribute | None] = field(default_factory=dict)
    vanishes: bool = False


class Rule(NamedTuple):
    """The effect of an operator on padded channels.

    Attributes:
        relate: ties the channels of its inputs together and returns the lines of its outputs, or
            says why none of them can be padded.
        pad: returns the node on padded tensors, or why there is none.
    """

    relate: Callable[[Op], Sequence[Line] | Refusal]
    pad: Callable[[Laid], PaddedNode | Refusal]


def same(op: Op) -> Sequence[Line] | Refusal:
    """Return the channels of input 0 as the channels of the output."""
    return [op.data]


def zero_stays(op: Laid) -> PaddedNode | Refusal:
    """Pad an op that adds up weighted positions: it makes a zero of zeros."""
    if op.padding is not None and op.padding != 0:
        return Refusal(Code.PADDING_NOT_ZERO, f"its padding is {op.padding}, not 0")
    return PaddedNode(op.padding)


def number_stays(op: Laid) -> PaddedNode | Refusal:
    """Pad an op that returns one of the positions that it reads."""
    return PaddedNode(op.padding)
