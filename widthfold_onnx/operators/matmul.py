"""Describe MatMul, Gemm, MatMulInteger and QLinearMatMul as a Conv of kernel 1.

    weight on the right   Y = X B, X [.., L, C]   B transposed is the weight [O, C, 1]
    weight on the left    Y = W X, X [.., C, L]   W is the weight [O, C, 1]

On the right the tiles of a fold lie before the channels (tile-major), on the left behind them:
so both ends are single Reshapes (`algebra.row_layout`), and the folded weight is I_F (x) B or
W (x) I_F. Leading axes of the weight are groups: one matrix per batch, each folded by itself. A
weight is stored again as it was. Only a Gemm knows transA and transB, and C, which is a bias.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.algebra.conv_axis import ConvAxis
from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.document import Attributes, Node
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.operators.base import QLINEAR, Inputs, Operator, Positions

SCALES = ("alpha", "beta")
GEMM_MIN_OPSET = 7
"""Below, C broadcasts only if an attribute says so."""


def flag(node: Node, name: str) -> bool:
    """Check whether an attribute that is 0 or 1 is set."""
    return node.attributes.get_int(name, 0) != 0


def matrix_shape(shape: tuple[int, ...], *, left: bool) -> tuple[int, ...]:
    """Return the extents of a weight as a matrix: a vector is a row on the left, else a column."""
    if len(shape) != 1:
        return shape
    return (1, *shape) if left else (*shape, 1)


def _outputs_first(node: Node, *, left: bool) -> bool:
    """Check whether the rows of the stored weight are output channels."""
    return left != flag(node, _flag_of_weight(left=left))


def _flag_of_weight(*, left: bool) -> str:
    return "transA" if left else "transB"


def _canonical(weight: Array, node: Node, *, left: bool) -> Array:
    matrix = weight.reshape(matrix_shape(weight.shape, left=left))
    oriented = matrix if _outputs_first(node, left=left) else matrix.swapaxes(-1, -2)
    return oriented.reshape(-1, oriented.shape[-1], 1)


def _stored(weight: Array, node: Node, shape: tuple[int, ...], *, left: bool) -> Array:
    matrices = weight.reshape(*shape[:-2], -1, weight.shape[1])
    return matrices if _outputs_first(node, left=left) else matrices.swapaxes(-1, -2)


def _out_axis(node: Node, rank: int, *, left: bool) -> int | None:
    if rank == 1:
        return None  # the axis of a vector counts input channels
    return rank - (2 if _outputs_first(node, left=left) else 1)


def _axes(node: Node, dims: Dims, weight: tuple[int, ...], *, left: bool) -> tuple[ConvAxis, ...]:
    return (ConvAxis(length=dims[-1 if left else -2], kernel=1),)


def _attributes(node: Node, fold: ConvFold, *, left: bool) -> Attributes:
    """Return the attributes of the folded product: data that lay across is transposed before."""
    turned = _flag_of_weight(left=left)
    kept = {name: node.attributes[name] for name in SCALES if name in node.attributes}
    return {**kept, turned: 1} if flag(node, turned) else kept


def _product(inputs: Inputs, *, left: bool) -> Operator:
    return Operator(
        inputs=inputs,
        positions=Positions.COLUMNS if left else Positions.ROWS,
        axes=partial(_axes, left=left),
        group=lambda node, shape: math.prod(shape[:-2]),
        canonical=partial(_canonical, left=left),
        stored=partial(_stored, left=left),
        out_axis=partial(_out_axis, left=left),
        attributes=partial(_attributes, left=left),
        data_transposed=lambda node: flag(node, _flag_of_weight(left=not left)),
        weight_transposed=lambda node: flag(node, _flag_of_weight(left=left)),
    )


def _of_bytes(right: Inputs, left: Inputs) -> tuple[Operator, Operator]:
    pair = _product(right, left=False), _product(left, left=True)
    return replace(pair[0], integers=True), replace(pair[1], integers=True)


MATMUL = _product(Inputs(), left=False), _product(Inputs(data=1, weight=0), left=True)
"""Descriptions for a weight on the right and one on the left."""
GEMM = (
    replace(MATMUL[0], inputs=Inputs(bias=2), min_opset=GEMM_MIN_OPSET),
    replace(MATMUL[1], inputs=Inputs(data=1, weight=0, bias=2), min_opset=GEMM_MIN_OPSET),
)
MATMUL_INTEGER = _of_bytes(
    Inputs(data_zero=2, zero=3), Inputs(data=1, weight=0, data_zero=3, zero=2)
)
QLINEAR_MATMUL = _of_bytes(
    QLINEAR, replace(QLINEAR, data=3, data_scale=4, data_zero=5, weight=0, scale=1, zero=2)
)
