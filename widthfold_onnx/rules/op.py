"""Read an op that may run on packed tensors or padded channels: its constants, pads and sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.model.document import Attributes, Document, Node
from widthfold_onnx.model.proto.walk import FLAGS, is_default
from widthfold_onnx.model.shapes.arithmetic import BROADCAST_OPSET
from widthfold_onnx.refusal import Code, Refusal

SIZES = 3
"""Index of the input of a Resize that gives the output extents."""

SHARDED = Refusal(Code.SHARDED, "the node is configured to run on several devices")
OUTPUT = Refusal(Code.OUTPUT, "the graph returns its output")
SAME_NAME = Refusal(
    Code.SAME_NAME, "another node is called the same, so that no plan can name it: rename one"
)
IN_A_BODY = Refusal(Code.IN_A_BODY, "it lies in the body of another node")

UNARY = frozenset(
    {
        *("Abs", "Cast", "Ceil", "Celu", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"),
        *("HardSwish", "Identity", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu"),
        *("Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Tanh"),
        "ThresholdedRelu",
    }
)
"""Ops of one input; each element of the output depends on the element at the same index."""

BROADCASTING = frozenset(
    {"Add", "Div", "Less", "Max", "Min", "Mul", "PRelu", "Pow", "Sub", "Sum", "Where"}
)
"""Ops that broadcast their inputs; each element of the output depends on those at its index."""

MULTI_INPUT = frozenset({*BROADCASTING, "Concat"})
"""Ops that may read several tensors of one layout, and whose first input may be a constant."""


@dataclass(frozen=True)
class Op:
    """A node, and its inputs.

    Attributes:
        document: the model.
        node: the node.
        shapes: extents of the inputs that a rule may read; None for others.
    """

    document: Document
    node: Node
    shapes: tuple[Dims | None, ...]

    def has(self, index: int) -> bool:
        """Check whether the node has an input at an index."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def constant_array(self, index: int) -> Array | Refusal:
        """Return the numbers of an input that is there; a refusal if it is no constant."""
        value = self.node.inputs[index]
        assert value is not None
        constant = self.document.constant(value)
        return constant if isinstance(constant, Refusal) else self.document.read(constant)

    def numbers(self, index: int, name: str) -> list[int] | Refusal | None:
        """Return whole numbers that are an input, or an attribute in older operator sets.

        None where they are left out.
        """
        if self.has(index):
            array = self.constant_array(index)
            return array if isinstance(array, Refusal) else array.ravel().tolist()
        attributes = self.node.attributes
        return list(attributes.get_ints(name, [])) if name in attributes else None

    @property
    def differing_extents(self) -> Refusal:
        """The refusal of inputs whose extents differ."""
        shapes = [list(shape) for shape in self.shapes if shape is not None]
        return Refusal(Code.SHAPES_DIFFER, f"extents {shapes}")

    def split_sizes(self, channels: int) -> list[int] | Refusal:
        """Return how many channels each part of a Split of channels has."""
        count, sizes = len(self.node.outputs), self.numbers(1, "split")
        if sizes is None:
            size = -(-channels // count)
            sizes = [min(size, channels - size * i) for i in range(count)]
        if isinstance(sizes, Refusal):
            return sizes
        is_whole = len(sizes) == count and sum(sizes) == channels and min(sizes) > 0
        return sizes if is_whole else uneven_parts(channels, count)

    def pads(self, rank: int) -> list[int] | Refusal:
        """Return the numbers that a Pad adds at the beginning of every axis, then at the end."""
        if self.has(3):
            return Refusal(Code.NOT_CARRIED, "an input selects the axes that it pads")
        pads = self.numbers(1, "pads")
        if isinstance(pads, Refusal):
            return pads
        if pads is None or len(pads) != 2 * rank:
            count = 0 if pads is None else len(pads)
            return Refusal(Code.INCONSISTENT_ATTRIBUTES, f"{count} pads for rank {rank}")
        return pads

    def with_pads(self, pads: list[int]) -> tuple[Mapping[int, Array], Attributes]:
        """Return the constants and the attributes that give a Pad other pads."""
        return ({1: np.array(pads, np.int64)}, {}) if self.has(1) else ({}, {"pads": pads})

    def scales_or_sizes(self) -> tuple[int, Array] | Refusal:
        """Return the input that gives a Resize its scales or sizes: its index, and its numbers.

        Sizes have the index `SIZES`. A refusal if they are not constant, or not for all axes.
        """
        attributes, index = self.node.attributes, len(self.node.inputs) - 1
        is_plain = (
            attributes.get_string("coordinate_transformation_mode", "") != "tf_crop_and_resize"
            and attributes.get_string("keep_aspect_ratio_policy", "stretch") == "stretch"
            and "axes" not in attributes
        )
        if not is_plain or not index or not self.has(index):
            return Refusal(Code.NOT_CARRIED, "it is not given scales or sizes of all axes")
        numbers = self.constant_array(index)
        return numbers if isinstance(numbers, Refusal) else (index, numbers)


PADS_OPSET, BOUNDS_OPSET, PARTS_OPSET = 11, 10, 13
"""First operator sets in which pads of a Pad, bounds of a Slice and sizes of a Split are inputs."""

CRD_OPSET = 11
"""First operator set whose DepthToSpace has a mode (ONNX changelog)."""

SHUFFLED = frozenset(
    {
        *(onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE),
        *(onnx.TensorProto.INT8, onnx.TensorProto.UINT8),
    }
)
"""Element types that the DepthToSpace of ONNX Runtime 1.31.1 supports on the CPU; the int32 sums
of a ConvInteger are not among them."""


def can_shuffle(opset: int, element_type: int) -> bool:
    """Check whether a DepthToSpace can take the place of Reshapes and a Transpose."""
    return opset >= CRD_OPSET and element_type in SHUFFLED


Vectors = Mapping[str, Sequence[int]]


def as_inputs(document: Document, since: int, vectors: Vectors) -> tuple[Vectors, Attributes]:
    """Return the inputs and the attributes that give these numbers to a node.

    They are inputs from operator set `since` on, and attributes before.
    """
    return (vectors, {}) if document.opset >= since else ({}, vectors)


def rule_problem(op: Op, operators: Collection[str], template: str) -> Refusal | None:
    """Say why no rule of a table holds for a node.

    Args:
        op: the node.
        operators: the operators of the table.
        template: the reason where there is no rule, with {} for the operator.
    """
    node, opset = op.node, op.document.opset
    if not is_default(node, *operators):
        return Refusal(Code.NOT_CARRIED, template.format(node.op_type))
    if opset < BROADCAST_OPSET:
        return Refusal(Code.OPSET_TOO_OLD, f"opset {opset} is below {BROADCAST_OPSET}")
    return node_problem(node)


def node_problem(node: Node) -> Refusal | None:
    """Refuse a node that no rule replaces: on several devices, or with a flag of another number."""
    for name in FLAGS:
        if (number := node.attributes.get_int(name, 0)) not in (0, 1):
            return Refusal(Code.INCONSISTENT_ATTRIBUTES, f"{name} is {number}, neither 0 nor 1")
    return SHARDED if node.device_configurations else None


def constant_problem(
    extents: tuple[int, ...], rank: int, channel: int, count: int | None
) -> Refusal | None:
    """Refuse a constant that varies along another axis than the channels.

    Args:
        extents: of the constant.
        rank: of the tensor beside it.
        channel: axis of the channels of that tensor.
        count: number of these channels.
    """
    axes = (1,) * (rank - len(extents)) + extents
    other_extents = axes[:channel] + axes[channel + 1 :]
    if len(axes) > rank or set(other_extents) - {1} or axes[channel] not in (1, count):
        return Refusal(Code.CONSTANT_VARIES, f"a constant has the extents {list(extents)}")
    return None


def uneven_parts(channels: int, count: int) -> Refusal:
    """Return the refusal of a Split into parts that cannot be propagated."""
    return Refusal(Code.UNEVEN_PARTS, f"{channels} channels are split into {count} parts")


def statistics_problem(node: Node) -> Refusal | None:
    """Refuse a BatchNormalization that does not read one mean and variance per channel."""
    attributes = node.attributes
    if attributes.get_int("training_mode", 0) or not attributes.get_int("spatial", 1):
        return Refusal(Code.NOT_INFERENCE, "statistics are computed, or differ per position")
    return None
