"""Fold positions of a product of matrices: compute its weight, its addend and its views.

Y = X B with the weight on the right has positions m = 0 .. L-1 as rows, and Y = W X with the weight
on the left has them as columns. Either way the weight maps C channels to O at every position.
Split the positions into F digits and put the digit where a Reshape alone does it:

    weight right   X [.., L, C] as [.., L/F, F*C]   m = F*m' + f   B' = I_F (x) B   interleaved
    weight left    X [.., C, L] as [.., C*F, L/F]   m = (L/F)*f + m'   W' = W (x) I_F   blocked

and Y' is viewed back in the same way (`fold.row_state`), so that another product that is folded
alike can read it packed. Axes of batches may be merged with the rows if the weight is the same for
all of them. A weight that differs per batch is folded batch by batch. A weight is folded as it is
stored: the transpose of I_F (x) B is I_F (x) B^T. Data that is stored transposed is transposed
first, the one case in which elements move. This is a Conv of kernel 1: on the right its dense batch
fold, on the left its blocked fold (`fold.conv`). In a quantized weight the zeros of I_F are its
zero point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.fold.layout import Reshape, Step, Transpose
from widthfold_onnx.fold.row_state import RowState

Array = npt.NDArray[Any]
Dims = tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True)
class MatMulFold:
    """The fold of a product.

    Attributes:
        factor: digits F that become channels.
        left: the weight is the left operand.
        merged: axes of the data that make up the positions; more than one only on the right.
    """

    factor: int
    left: bool = False
    merged: int = 1

    def weight_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the folded weight for one of `shape` [.., rows, columns]."""
        *batches, rows, columns = shape
        return (*batches, rows * self.factor, columns * self.factor)

    def channels(self, inputs: int, outputs: int) -> tuple[int, int]:
        """Return input and output channels of the folded product, for those of the original."""
        return inputs * self.factor, outputs * self.factor

    @property
    def lift(self) -> int:
        """Number of axes that are added: 0."""
        return 0

    def flops_growth(self) -> float:
        """Return the multiply-adds, after / before."""
        return float(self.factor)

    def structural_zeros(self) -> float:
        """Return the share of structural zeros in the folded weight, 0 to 1."""
        return 1.0 - 1.0 / self.factor

    @property
    def state(self) -> RowState:
        """The state of data and result."""
        return RowState(self.factor, self.left, self.merged)

    def spread(self) -> float:
        """Return the number of outputs that Inf or NaN in one input may reach, after / before."""
        return float(self.factor)

    def folding(self, shape: Dims, *, transposed: bool = False) -> tuple[Step, ...]:
        """Return the moves that fold the data.

        Args:
            shape: natural extents; None where they may not be written into the graph.
            transposed: the data is stored with its two last axes exchanged.
        """
        steps = self.state.steps(shape)
        if transposed and 1 not in shape[-2:]:  # else both are the same in memory
            order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
            return (Transpose(order, tuple(shape[i] for i in order)), *steps)
        return steps

    def unfolding(self, shape: Dims, *, flat: bool = False) -> tuple[Step, ...]:
        """Return the move that unfolds the result.

        Args:
            shape: natural extents; None where they may not be written into the graph.
            flat: the weight has one axis, so the result has no axis of channels.
        """
        (step,) = self.state.steps(shape, inverse=True)
        if not flat:
            return (step,)
        axis = self.state.channel_axis % len(shape)
        others = [i for i in range(len(shape)) if i != axis]
        extents = tuple(step.extents[i] for i in others)
        return (Reshape(step.rank, extents, tuple(step.keep[i] for i in others)),)


def fold_weight(weight: Array, fold: MatMulFold, zero: Array | int = 0) -> Array:
    """Return the weight of the folded product; numbers are copied bit for bit, all else is `zero`.

    Args:
        weight: [.., rows, columns], as it is stored, any dtype.
        fold: the fold.
        zero: value of structural zeros: the zero point of a quantized weight, broadcast to it.

    Returns:
        `fold.weight_shape(weight.shape)`, same dtype.
    """
    *batches, rows, columns = weight.shape
    f = fold.factor
    digits = np.arange(f)
    gaps = np.broadcast_to(zero, weight.shape)
    if fold.left:
        placed = np.empty((*batches, rows, f, columns, f), weight.dtype)
        placed[...] = gaps[..., :, None, :, None]
        placed[..., :, digits, :, digits] = weight
    else:
        placed = np.empty((*batches, f, rows, f, columns), weight.dtype)
        placed[...] = gaps[..., None, :, None, :]
        placed[..., digits, :, digits, :] = weight
    return placed.reshape(fold.weight_shape(weight.shape))


def fold_per_channel(array: Array, fold: MatMulFold, axis: int) -> Array:
    """Return numbers per channel for the folded channels: all digits of a channel share one.

    Args:
        array: numbers per channel, any dtype.
        fold: the fold.
        axis: axis of the channels.
    """
    if fold.left:
        return np.repeat(array, fold.factor, axis)
    return np.concatenate([array] * fold.factor, axis)


def fold_addend(addend: Array, fold: MatMulFold, shape: tuple[int, int]) -> Array:
    """Return the addend of the folded product, for a C of a Gemm.

    If C is the same at all positions, it is repeated for every digit; else it is folded like the
    result. A single number stays as it is.

    Args:
        addend: C, broadcast to the result.
        fold: the fold; nothing is merged.
        shape: extents [M, N] of the result.

    Returns:
        An array that broadcasts to the folded result, same dtype.
    """
    if addend.size == 1:
        return addend
    position, channel = (1, 0) if fold.left else (0, 1)
    natural = addend.reshape((1,) * (2 - addend.ndim) + addend.shape)
    if natural.shape[position] == 1:
        return fold_per_channel(addend, fold, channel - natural.ndim)
    full = list(natural.shape)
    full[channel] = shape[channel]
    return fold.state.packed(np.broadcast_to(natural, full))
