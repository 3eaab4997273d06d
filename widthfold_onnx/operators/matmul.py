"""Describe MatMul, Gemm, MatMulInteger and QLinearMatMul as a Conv of kernel 1.

    weight on the right: Y = X B with X [.., L, C]; B transposed is the weight [O, C, 1]
    weight on the left:  Y = W X with X [.., C, L]; W is the weight [O, C, 1]

On the right the tiles of a fold lie before the channels (tile-major), on the left behind them:
so both ends are single Reshapes (`algebra.layouts`), and the folded weight is I_F (x) B or
W (x) I_F. Leading axes of the weight are groups: one matrix per batch, each folded by itself. The
folded weight has the order of axes of the original. Only a Gemm has transA, transB, and C, a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from widthfold_onnx.algebra.axis import ConvAxis
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.model.document import Node
from widthfold_onnx.model.proto.walk import operator_of
from widthfold_onnx.operators.base import QLINEAR, FoldedOperator, Inputs, Operator, Scales
from widthfold_onnx.refusal import Code, Refusal

ALPHA_BETA = ("alpha", "beta")
GEMM_OPSET = 7
"""Below, C broadcasts only if an attribute says so."""


def flag(node: Node, name: str) -> bool:
    """Check whether an attribute that is 0 or 1 is set."""
    return node.attributes.get_int(name, 0) != 0


@dataclass(frozen=True, kw_only=True)
class Product(Operator):
    """A product of matrices with the weight on one side: its positions are rows or columns."""

    bias_per_channel: ClassVar[bool] = False
    # With a Reshape of integers before the DequantizeLinear ONNX Runtime 1.31.1 multiplies int8 in
    # floats.
    moves_integers: ClassVar[bool] = False

    @property
    def scales(self) -> Sequence[Scales]:
        """All scales: they may differ per row or column (MatMulInteger-10, QLinearMatMul-21).

        The scale of the result may differ per row: rows are output channels if the weight is on
        the left, else positions. Rows or columns of the data are positions.
        """
        inputs = self.inputs
        return [
            Scales("data", (inputs.data_scale, inputs.data_zero), per_channel=False),
            Scales("weight", (inputs.weight_scale, inputs.weight_zero), per_channel=True),
            Scales("result", (inputs.out_scale, inputs.out_zero), per_channel=self.weight_on_left),
        ]

    def data_problem(self, node: Node, data: Dims, weight: tuple[int, ...]) -> Refusal | None:
        """Refuse a weight that is a number, and data that is a vector."""
        if not weight:
            return Refusal(
                Code.INCONSISTENT_SHAPES, "the weight is a single number: no product has one"
            )
        if len(data) < 2:
            return Refusal(
                Code.ONE_POSITION, "the data is a vector: there are no positions to fold"
            )
        return None

    def data_transposed(self, node: Node) -> bool:
        """Check whether the data is stored with its two last axes exchanged."""
        return flag(node, "transB" if self.weight_on_left else "transA")

    def weight_transposed(self, node: Node) -> bool:
        """Check whether the weight is stored with its two last axes exchanged; a vector has one."""
        return flag(node, self._weight_flag)

    def stored_order(self, node: Node, rank: int) -> tuple[int, ...]:
        """Return the axis of the stored data for each axis that the product reads."""
        *leading, first, second = range(rank)
        return (*leading, second, first) if self.data_transposed(node) else tuple(range(rank))

    def data_shape(self, node: Node, stored: Dims, channels: int) -> Dims:
        """Return the extents with the two last axes exchanged if the data is stored so."""
        return tuple(stored[axis] for axis in self.stored_order(node, len(stored)))

    def axes(self, node: Node, dims: Dims, weight: tuple[int, ...]) -> tuple[ConvAxis, ...]:
        """Return one axis of rows or columns."""
        return (ConvAxis(length=dims[-1 if self.weight_on_left else -2], kernel=1),)

    def canonical_weight(self, weight: Array, node: Node) -> Array:
        """Return all matrices as one [O, C, 1]."""
        matrices = self.matrices(weight, node)
        ordered_matrices = matrices if self._outputs_first(node) else matrices.swapaxes(-1, -2)
        return ordered_matrices.reshape(-1, ordered_matrices.shape[-1], 1)

    def stored_weight(self, weight: Array, node: Node, shape: tuple[int, ...]) -> Array:
        """Return the matrices, with the batches that the original has."""
        matrices = weight.reshape(*self.matrix_shape(node, shape)[:-2], -1, weight.shape[1])
        return matrices if self._outputs_first(node) else matrices.swapaxes(-1, -2)

    def out_axis(self, node: Node, rank: int) -> int | None:
        """Return the last axis or the axis before it; None for a vector of input channels."""
        return None if rank == 1 else rank - (2 if self._outputs_first(node) else 1)

    def folded_operator(self, node: Node, fold: ConvFold) -> FoldedOperator:
        """Return the same operator; a Transpose before it replaces transA or transB of the data."""
        attributes = {name: node.attributes[name] for name in ALPHA_BETA if name in node.attributes}
        transposed = {self._weight_flag: 1} if self.weight_transposed(node) else {}
        return FoldedOperator(*operator_of(node), {**attributes, **transposed})

    def matrices(self, weight: Array, node: Node) -> Array:
        """Return a stored weight as matrices, the batches first: a vector is a row on the left."""
        if weight.ndim != 1:
            return weight
        return weight[None] if self.weight_on_left else weight[:, None]

    def matrix_shape(self, node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the extents of a stored weight as matrices."""
        return self.matrices(np.broadcast_to(np.int8(0), shape), node).shape

    @property
    def _weight_flag(self) -> str:
        """The attribute that says whether the weight is stored transposed."""
        return "transA" if self.weight_on_left else "transB"

    def _outputs_first(self, node: Node) -> bool:
        """Check whether the rows of the stored weight are output channels."""
        return self.weight_on_left != self.weight_transposed(node)


def _sides(product: Product) -> tuple[Product, Product]:
    """Return a description for a weight on the right, and its mirror image for one on the left."""
    inputs = product.inputs
    mirrored_inputs = replace(
        inputs,
        data=inputs.weight,
        data_scale=inputs.weight_scale,
        data_zero=inputs.weight_zero,
        weight=inputs.data,
        weight_scale=inputs.data_scale,
        weight_zero=inputs.data_zero,
    )
    return product, replace(product, inputs=mirrored_inputs)


MATMUL = _sides(Product())
GEMM = _sides(Product(inputs=Inputs(bias=2), min_opset=GEMM_OPSET))
MATMUL_INTEGER = _sides(Product(inputs=Inputs(data_zero=2, weight_zero=3), takes_integers=True))
QLINEAR_MATMUL = _sides(Product(inputs=QLINEAR, takes_integers=True))
