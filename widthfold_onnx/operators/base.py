"""Define what a description of an operator says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.algebra.conv_axis import ConvAxis
from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.document import Attributes, Node
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.refusal import Code, Refusal

MIN_OPSET = 5
"""First operator set whose Reshape takes its shape as an input, which every form needs."""


class Positions(Enum):
    """The layouts of data: the axes of positions that may become channels."""

    SPATIAL = "[N, C, *spatial]"
    ROWS = "[.., L, C]"
    COLUMNS = "[.., C, L]"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The indices of a node's inputs; None for an input that the operator does not have.

    `scale` and `zero` are those of the weight.
    """

    data: int = 0
    data_scale: int | None = None
    data_zero: int | None = None
    weight: int = 1
    scale: int | None = None
    zero: int | None = None
    bias: int | None = None
    out_scale: int | None = None
    out_zero: int | None = None

    @property
    def of_data(self) -> tuple[int | None, ...]:
        """Scale and zero point of the data."""
        return (self.data_scale, self.data_zero)

    @property
    def of_weight(self) -> tuple[int | None, ...]:
        """Scale and zero point of the weight."""
        return (self.scale, self.zero)

    @property
    def of_result(self) -> tuple[int | None, ...]:
        """Scale and zero point of the result."""
        return (self.out_scale, self.out_zero)


QLINEAR = Inputs(data_scale=1, data_zero=2, weight=3, scale=4, zero=5, out_scale=6, out_zero=7)
"""The inputs of a quantized operator with the weight as second operand."""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator, described as a Conv with a weight [O, C/group, *kernel].

    Attributes:
        inputs: where its inputs are.
        positions: how its data and its result lie.
        axes: returns the geometry of every axis of positions, from the node, the extents of its
            data (None where not known) and the canonical shape of its weight.
        group: returns the number of groups, for a node and the shape of its stored weight.
        canonical: returns the stored weight of a node as [O, C/group, *kernel]; elements only move.
        stored: returns a folded weight as the folded node stores it, for the node and the shape of
            its own stored weight.
        out_axis: returns the axis of the stored weight that counts output channels, for a node and
            the rank of that weight; None where there is none.
        attributes: returns the attributes of the folded node.
        pads_by_extent: checks whether the pads of an axis depend on the extent of the data.
        data_transposed: checks whether the data is stored with its two last axes exchanged.
        weight_transposed: the same for the weight.
        folded: the operator of the folded node; None for the same.
        integers: whether it multiplies integers.
        min_opset: first operator set in which it is understood.
    """

    inputs: Inputs
    positions: Positions = Positions.SPATIAL
    axes: Callable[[Node, Dims, tuple[int, ...]], tuple[ConvAxis, ...] | Refusal]
    group: Callable[[Node, tuple[int, ...]], int]
    canonical: Callable[[Array, Node], Array]
    stored: Callable[[Array, Node, tuple[int, ...]], Array]
    out_axis: Callable[[Node, int], int | None]
    attributes: Callable[[Node, ConvFold], Attributes]
    pads_by_extent: Callable[[Node, ConvAxis], bool] = lambda node, axis: False
    data_transposed: Callable[[Node], bool] = lambda node: False
    weight_transposed: Callable[[Node], bool] = lambda node: False
    folded: str | None = None
    integers: bool = False
    min_opset: int = MIN_OPSET

    @property
    def is_product(self) -> bool:
        """True for a product of matrices, whose positions are rows or columns."""
        return self.positions is not Positions.SPATIAL

    @property
    def left(self) -> bool:
        """True for a product with the weight on the left."""
        return self.positions is Positions.COLUMNS


def integers(node: Node, name: str, default: Sequence[int]) -> list[int]:
    """Return an attribute of integers."""
    return list(node.attributes.get_ints(name, default))


def read_axes(node: Node, lengths: Dims, kernel: Sequence[int]) -> list[ConvAxis] | Refusal:
    """Read kernel, strides, dilations and pads of a Conv, a ConvTranspose or a pool.

    Args:
        node: the node.
        lengths: extents of the spatial axes.
        kernel: extents of the kernel by its weight.

    Returns:
        The axes, without what `auto_pad` says; a refusal if the attributes contradict each other.
    """
    rank = len(lengths)
    stated = integers(node, "kernel_shape", kernel)
    strides, dilations = (integers(node, name, [1] * rank) for name in ("strides", "dilations"))
    pads = integers(node, "pads", [0] * (2 * rank))
    fits = stated == list(kernel) and len(kernel) == rank
    fits = fits and [len(strides), len(dilations), len(pads)] == [rank, rank, 2 * rank]
    if not fits or min([1, *strides, *dilations]) < 1:
        return Refusal(
            Code.INCONSISTENT_ATTRIBUTES,
            f"kernel {stated}, strides {strides}, dilations {dilations}, pads {pads} for a kernel "
            f"{list(kernel)} along {rank} axes",
        )
    rows = zip(lengths, kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
    return [
        ConvAxis(length=n, kernel=k, stride=s, dilation=d, pad_begin=begin, pad_end=end)
        for n, k, s, d, begin, end in rows
    ]
