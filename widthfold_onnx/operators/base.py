"""Define how an operator is described as a Conv: the base class of all descriptions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from widthfold_onnx.algebra.axis import ConvAxis
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.model.document import Attributes, Node
from widthfold_onnx.refusal import Code, Refusal

MIN_OPSET = 5
"""First operator set whose Reshape takes its shape as an input, which every form needs."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The indices of a node's inputs; None for an input that the operator does not have."""

    data: int = 0
    data_scale: int | None = None
    data_zero: int | None = None
    weight: int = 1
    weight_scale: int | None = None
    weight_zero: int | None = None
    bias: int | None = None
    out_scale: int | None = None
    out_zero: int | None = None


QLINEAR = Inputs(
    data_scale=1,
    data_zero=2,
    weight=3,
    weight_scale=4,
    weight_zero=5,
    out_scale=6,
    out_zero=7,
)
"""The inputs of a quantized operator with the weight as second operand."""


class Scales(NamedTuple):
    """A scale and a zero point among the inputs of an operator of integers.

    Attributes:
        owner: the tensor that they quantize: data, weight or result.
        indices: index of the scale and of the zero point; None for an input that does not exist.
        per_channel: they may hold one number per output channel, and not only a single one.
    """

    owner: str
    indices: tuple[int | None, int | None]
    per_channel: bool


class FoldedOperator(NamedTuple):
    """The operator of a folded node, and all of its attributes."""

    domain: str
    op_type: str
    attributes: Attributes


@dataclass(frozen=True, kw_only=True)
class Operator(ABC):
    """An operator, described as a Conv with a weight [O, C/group, *kernel].

    A node is read in this order, up to the first refusal: `problem`, its constants and `scales`,
    `data_problem`, `data_shape`, `axes`. The defaults describe a Conv of one group.

    Attributes:
        inputs: the indices of its inputs.
        takes_integers: whether it multiplies integers.
        min_opset: the first operator set that is supported.
    """

    inputs: Inputs = Inputs()
    takes_integers: bool = False
    min_opset: int = MIN_OPSET

    transposed: ClassVar[bool] = False
    """True if it is a ConvTranspose. Its folded node is a Conv."""
    activates: ClassVar[bool] = False
    """True if it applies a function to its sums, so that a sum cannot be computed in parts."""
    bias_per_channel: ClassVar[bool] = True
    """True if its bias is always one number per output channel."""
    moves_integers: ClassVar[bool] = True
    """True if the runtime computes a dequantized node in integers even if Reshapes or Transposes
    move its data before the DequantizeLinear."""

    @property
    def weight_on_left(self) -> bool:
        """True if the weight is the first operand."""
        return self.inputs.weight < self.inputs.data

    def problem(self, node: Node) -> Refusal | None:
        """Refuse a node that this does not describe; the other methods are not for such a node."""
        return None

    @property
    @abstractmethod
    def scales(self) -> Sequence[Scales]:
        """The scales and zero points that may hold several numbers."""

    @abstractmethod
    def data_problem(self, node: Node, data: Dims, weight: tuple[int, ...]) -> Refusal | None:
        """Say why data and a stored weight of these extents do not fold."""

    @abstractmethod
    def data_shape(self, node: Node, stored: Dims, channels: int) -> Dims:
        """Return the extents of the data as the operator reads it, from those as it is stored.

        Args:
            node: the node.
            stored: extents as the data is stored; None where not known.
            channels: number of input channels by the weight.
        """

    @abstractmethod
    def axes(
        self, node: Node, dims: Dims, weight: tuple[int, ...]
    ) -> tuple[ConvAxis, ...] | Refusal:
        """Return the geometry of every axis of positions.

        Args:
            node: the node.
            dims: extents of the data as the operator reads it; None where not known.
            weight: extents of the weight as [O, C/group, *kernel].

        Returns:
            The axes with explicit pads, or a refusal where attributes contradict each other or
            pads depend on an unknown extent.
        """

    def pad_period(self, node: Node, axis: ConvAxis) -> int | None:
        """Return how far the data grows until the pads of an axis repeat; None if they never do."""
        return 1

    def group(self, node: Node) -> int:
        """Return the number of groups into which the channels are divided."""
        return 1

    def canonical_weight(self, weight: Array, node: Node) -> Array:
        """Return a stored weight as [O, C/group, *kernel]; elements only move."""
        return weight

    def stored_weight(self, weight: Array, node: Node, shape: tuple[int, ...]) -> Array:
        """Return a folded weight as the folded node stores it.

        Args:
            weight: [O, C/group, *kernel].
            node: the original node.
            shape: extents of its stored weight.
        """
        return weight

    def out_axis(self, node: Node, rank: int) -> int | None:
        """Return the axis of a stored weight of this rank that counts output channels, if any."""
        return 0

    @abstractmethod
    def folded_operator(self, node: Node, fold: ConvFold) -> FoldedOperator:
        """Return the operator of the folded node; it has no other attributes than these."""


def inconsistent_shapes(data: Dims, weight: Sequence[int], suffix: str) -> Refusal:
    """Return the refusal of extents that do not fit together; `suffix` ends the list of them."""
    return Refusal(
        Code.INCONSISTENT_SHAPES, f"input {list(data)}, weight {list(weight)}{suffix} do not fit"
    )


def int_attribute(node: Node, name: str, default: Sequence[int]) -> list[int]:
    """Return an attribute of integers as a list; the default if the node has none."""
    return list(node.attributes.get_ints(name, default))


def read_axes(node: Node, lengths: Dims, kernel: Sequence[int]) -> list[ConvAxis] | Refusal:
    """Read kernel, strides, dilations and pads of a Conv, a ConvTranspose or a pool.

    Args:
        node: the node.
        lengths: extents of the spatial axes.
        kernel: extents of the kernel by its weight.

    Returns:
        The axes, with `auto_pad` still ignored; a refusal if the attributes contradict each other.
    """
    rank = len(lengths)
    declared = int_attribute(node, "kernel_shape", kernel)
    strides, dilations = (
        int_attribute(node, name, [1] * rank) for name in ("strides", "dilations")
    )
    pads = int_attribute(node, "pads", [0] * (2 * rank))
    fits = declared == list(kernel) and len(kernel) == rank
    fits = fits and [len(strides), len(dilations), len(pads)] == [rank, rank, 2 * rank]
    if not fits or min([1, *strides, *dilations]) < 1:
        return Refusal(
            Code.INCONSISTENT_ATTRIBUTES,
            f"kernel {declared}, strides {strides}, dilations {dilations}, pads {pads} for a "
            f"kernel {list(kernel)} along {rank} axes",
        )
    rows = zip(lengths, kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
    return [
        ConvAxis(length=n, kernel=k, stride=s, dilation=d, pad_begin=begin, pad_end=end)
        for n, k, s, d, begin, end in rows
    ]
