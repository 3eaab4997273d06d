"""Plan the moves of a product of matrices: its rows or columns are folded (`algebra.layouts`).

Axes of batches may be merged with the rows if one matrix serves all of them. Data that is stored
transposed is transposed first, and a result of an Einsum whose labels have another order last; no
other form moves elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import msgspec

from widthfold_onnx.algebra.axis import NO_CONDITION, Congruence, ConvAxis, fold_axis
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.algebra.layouts import RowLayout
from widthfold_onnx.algebra.packing import Move, Reshape, Transpose, are_views
from widthfold_onnx.arrays import Dims, round_up
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.form import (
    PRODUCT,
    AxisSpec,
    Ends,
    Form,
    ProposedFold,
    bytes_growth,
    unfolded_spec,
)
from widthfold_onnx.rules.layers import ProductLayer


def fold_of(layer: ProductLayer, factor: int) -> ConvFold:
    """Return the fold of a product: a Conv of kernel 1, every matrix a group."""
    axis = fold_axis(ConvAxis(length=None, kernel=1), factor, factor, blocked=layer.weight_on_left)
    assert not isinstance(axis, Refusal)
    return ConvFold(axes=(axis,), group=layer.matrix_count, tile_major=not layer.weight_on_left)


@dataclass(frozen=True)
class RowFold(ProposedFold):
    """A fold of the rows or columns of a product; a factor of 1 turns an Einsum into a MatMul."""

    layer: ProductLayer

    @classmethod
    def of(cls, layer: ProductLayer, options: FoldOptions, factor: int, merged: int) -> RowFold:
        """Propose to fold the positions of a product by a factor.

        The last `merged` axes of the data before its channels make up the positions; with the
        weight on the left, the columns do.
        """
        blocked = layer.weight_on_left
        tiles = AxisSpec(out_tile=factor, in_tile=factor, blocked=blocked)
        spec = msgspec.structs.replace(
            unfolded_spec(layer, (tiles,)),
            axis=layer.position_names[0],
            factor=factor,
            kind=PRODUCT if factor == 1 else "blocked" if blocked else "interleaved",
            merged=merged,
            tile_major=not blocked,
            group=layer.matrix_count,
        )
        return cls(layer, options, spec, fold_of(layer, factor))

    @classmethod
    def smallest(cls, layer: ProductLayer, options: FoldOptions, factor: int) -> RowFold:
        """Propose to fold the fewest axes of rows that the factor divides; one if it divides none.

        Axes whose fixed extents the factor divides come before others, which need a guard.
        """
        proposals = [cls.of(layer, options, factor, 1 + i) for i in range(_max_merged(layer))]
        unguarded = [p for p in proposals if p._is_divided and not p._conditions]
        divided = [p for p in proposals if p._is_divided]
        return (*unguarded, *divided, *proposals)[0]

    def extended_shapes(self) -> tuple[Dims, Dims] | Refusal:
        """Return the extents of input and output, or why the factor does not divide them."""
        layer, factor, name = self.layer, self.spec.factor, self.spec.axis
        if self._is_divided:
            return layer.planned_shape, layer.output_shape
        widest_layout = replace(self._layout, merged=_max_merged(layer))
        extents = layer.planned_shape[widest_layout.positions(len(layer.planned_shape))]
        extents_text = " x ".join("?" if e is None else str(e) for e in extents)
        if None in extents:
            return Refusal(
                Code.UNKNOWN_EXTENT,
                f"{extents_text} {name}: whether {factor} divides their number is not known",
            )
        count = math.prod(e for e in extents if e is not None)
        if count == 1:
            return Refusal(
                Code.ONE_POSITION,
                f"the data has one of its {name}, so there is none to move",
            )
        return Refusal(
            Code.FACTOR_DOES_NOT_DIVIDE,
            f"{count} {name} are not a multiple of {factor}",
            round_up(count, factor) / count,
        )

    def mixing_problem(self) -> Refusal | None:
        """Refuse a fold that may join several samples in one position."""
        if not self.layer.mixes_samples(self._span, self.spec.factor):
            return None
        return Refusal(
            Code.MIXES_SAMPLES,
            f"the {self.spec.axis} may be samples of a batch, and a NaN of one would reach others",
        )

    def form(self, shapes: tuple[Dims, Dims]) -> Form:
        """Return the form of the fold, see `ProposedFold.form`."""
        layer, layout = self.layer, self._layout
        shape = self._fixed_shape
        span = self._span
        data_moves, result_moves = _moves(layer, layout, shape)
        return Form(
            spec=self.spec,
            structure=layer.structure,
            fold=self.fold,
            is_view=are_views((*data_moves, *result_moves)),
            extended_in_shape=layer.planned_shape,
            extended_out_shape=layer.output_shape,
            flops_ratio=self.fold.flops_growth(),
            bytes_ratio=bytes_growth(layer, self.fold, *shapes),
            folded_axes=frozenset(range(span.start, span.stop) if layout.factor > 1 else ()),
            conditions=tuple(self._conditions.get(i, NO_CONDITION) for i in range(len(shape))),
            packing_moves=data_moves,
            unpacking_moves=result_moves,
            ends=_ends(layer, layout, shape),
        )

    @property
    def _span(self) -> slice:
        """The axes of the data that make up the positions."""
        return self._layout.positions(len(self.layer.planned_shape))

    @property
    def _layout(self) -> RowLayout:
        return RowLayout(self.spec.factor, self.layer.weight_on_left, self.spec.merged)

    @property
    def _fixed_shape(self) -> Dims:
        """The extents of the data that the model fixes, the channels among them."""
        layer = self.layer
        channel = len(layer.fixed_shape) - (2 if layer.weight_on_left else 1)
        return tuple(
            layer.channels[0] if i == channel else e for i, e in enumerate(layer.fixed_shape)
        )

    @property
    def _conditions(self) -> dict[int, Congruence]:
        """The conditions on the open axis of positions, by axis of the data."""
        return self._layout.conditions(self._fixed_shape)

    @property
    def _is_divided(self) -> bool:
        """True if the factor divides the positions, or an open axis can make it do so.

        It must divide an assumed extent: otherwise a guard would never choose the fold. A C that
        differs between positions fixes their number, which must be known then.
        """
        if self.spec.factor == 1:
            return True
        if not self._layout.fits(self._fixed_shape):
            return False
        pairs = [
            (self.layer.planned_shape[axis], c.modulus) for axis, c in self._conditions.items()
        ]
        if any(extent is None for extent, _ in pairs) and _has_bias_per_position(self.layer):
            return False
        return all(extent is None or extent % modulus == 0 for extent, modulus in pairs)


def _ends(layer: ProductLayer, layout: RowLayout, shape: Dims) -> Ends:
    """Return the layouts at both ends; none for transposed data or a result without channels.

    A product of dequantized operands has none: it has Reshapes of its own.
    """
    result = layer.output_shape_for(shape)
    reason = None
    input_layout = layout if layout.fits(shape) and not layer.data_transposed else None
    output_layout = layout if layout.fits(result) and not layer.flat else None
    if (labels := layer.labels) is not None:
        input_layout = input_layout if labels.is_plain(labels.data, labels.summed) else None
        if output_layout is not None and not labels.is_plain(labels.result, labels.columns):
            output_layout = None
            reason = Refusal(Code.OTHER_AXIS, "its result is transposed")
    if layer.flat:
        result = (*result[:-2], result[-1 if layer.weight_on_left else -2])
        reason = Refusal(Code.NO_CHANNELS, "its result has no axis of channels")
    if layer.is_dequantized:
        return Ends(layer.data_index, None, None, shape, result)
    return Ends(layer.data_index, input_layout, output_layout, shape, result, reason)


def _moves(
    layer: ProductLayer, layout: RowLayout, shape: Dims
) -> tuple[tuple[Move, ...], tuple[Move, ...]]:
    """Return the moves of data of these logical extents, and of the result.

    A Transpose that moves only axes of extent 1 is left out, or is a Reshape.
    """
    if layer.labels is None:
        data_moves = packing_moves(layout, shape, data_transposed=layer.data_transposed)
        return data_moves, unpacking_moves(layout, layer.output_shape_for(shape), flat=layer.flat)
    data, result = layer.labels.packing(shape, layer.weight.shape, layout.factor)
    return data.moves, result.inverse_moves


def packing_moves(
    layout: RowLayout, shape: Dims, *, data_transposed: bool = False
) -> tuple[Move, ...]:
    """Return the moves that pack the data.

    Args:
        layout: how it is packed.
        shape: logical extents; None where they may not be written into the graph.
        data_transposed: the data is stored with its two last axes exchanged.
    """
    moves = layout.moves(shape)
    if data_transposed and 1 not in shape[-2:]:  # else both are the same in memory
        order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        return (Transpose(order, tuple(shape[i] for i in order)), *moves)
    return moves


def unpacking_moves(layout: RowLayout, shape: Dims, *, flat: bool = False) -> tuple[Move, ...]:
    """Return the move that unpacks the result.

    Args:
        layout: how it is packed.
        shape: logical extents; None where they may not be written into the graph.
        flat: the weight has one axis, so the result has no axis of channels.
    """
    (move,) = layout.moves(shape, inverse=True)
    if not flat:
        return (move,)
    axis = layout.channel_axis % len(shape)
    kept_axes = [i for i in range(len(shape)) if i != axis]
    extents = tuple(move.extents[i] for i in kept_axes)
    return (Reshape(move.rank, extents, tuple(move.keep[i] for i in kept_axes)),)


def _has_bias_per_position(layer: ProductLayer) -> bool:
    """Check whether C differs between positions: then it fixes their number."""
    if layer.bias is None:
        return False
    extents = (1, 1, *layer.bias.shape)[-2:]
    return extents[-1 if layer.weight_on_left else -2] > 1


def _max_merged(layer: ProductLayer) -> int:
    """Return how many axes can be positions: axes before the rows too, if one matrix serves all."""
    has_one_axis = layer.weight_on_left or layer.batches or layer.labels is not None
    return 1 if has_one_axis else len(layer.planned_shape) - 1
