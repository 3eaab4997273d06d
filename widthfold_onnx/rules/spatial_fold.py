"""Plan the moves of a layer whose data is [N, C, *spatial]: batch and spatial axes are folded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from widthfold_onnx.algebra.axis import NO_CONDITION, Congruence, FoldedAxis, fold_axis, keep_axis
from widthfold_onnx.algebra.channels import Grouping, Regrouping
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.algebra.packing import (
    Move,
    Reshape,
    ShiftedSum,
    are_views,
    inferred,
    pack,
    pack_positions,
)
from widthfold_onnx.arrays import Dims, round_up
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.form import (
    SEVERAL_UNKNOWN_EXTENTS,
    Ends,
    Form,
    FormSpec,
    ProposedFold,
    bytes_growth,
    nominal_size,
)
from widthfold_onnx.rules.layers import ConvLayer, axis_names


@dataclass(frozen=True)
class SpatialFold(ProposedFold):
    """A fold of the batch or the spatial axes of a Conv."""

    layer: ConvLayer

    @classmethod
    def of(cls, layer: ConvLayer, options: FoldOptions, spec: FormSpec) -> SpatialFold | Refusal:
        """Propose the fold that a spec describes, or say why the layer has none."""
        regrouping = Regrouping(layer.grouping, Grouping(*spec.channels, spec.group))
        if not regrouping.is_possible:
            return Refusal(Code.INCONSISTENT_SHAPES, "its channels cannot form such groups")
        if len(spec.axes) != len(layer.axes):
            return Refusal(Code.RANK_UNSUPPORTED, f"the form is for {len(spec.axes)} spatial axes")
        axes: list[FoldedAxis] = []
        for name, axis, tiles in zip(layer.position_names, layer.axes, spec.axes, strict=True):
            # True for a sub-pixel form, too: its tiles of the output are the base dilation.
            keeps_output = tiles.out_tile == axis.base_dilation
            folded_axis = (
                keep_axis(axis)
                if keeps_output and axis.base_dilation == tiles.in_tile == 1
                else fold_axis(axis, tiles.out_tile, tiles.in_tile, blocked=tiles.blocked)
            )
            if isinstance(folded_axis, Refusal):
                where = f"along {name}, " if keeps_output else ""
                return replace(folded_axis, reason=where + folded_axis.reason)
            axes.append(folded_axis)
        fold = ConvFold(
            axes=tuple(axes),
            group=spec.group,
            batch=spec.batch,
            dense=spec.dense,
            tile_major=spec.tile_major,
            lift=spec.lift,
            regrouping=regrouping,
            summed=spec.summed,
        )
        return cls(layer, options, spec, fold)

    def extended_shapes(self) -> tuple[Dims, Dims] | Refusal:
        """Return the extents of input and output that the fold needs, or why it has none."""
        layer, fold, options = self.layer, self.fold, self.options
        in_shape = _extended_shape(layer, fold, output=False)
        out_shape = _extended_shape(layer, fold, output=True)
        if not options.ragged and (problem := _extension_problem(layer, in_shape, out_shape)):
            return problem
        return in_shape, out_shape

    def mixing_problem(self) -> Refusal | None:
        """Refuse a dense group: structural zeros lie between samples."""
        reason = "one dense group lets a NaN of one sample reach others"
        return Refusal(Code.MIXES_SAMPLES, reason) if self.fold.dense else None

    def form(self, shapes: tuple[Dims, Dims]) -> Form:
        """Return the form of the fold, see `ProposedFold.form`.

        It takes the NHWC path where the NCHW path would have to infer several open extents: there
        they keep their axes.
        """
        layer, fold = self.layer, self.fold
        if fold.summed:
            return self._summed(shapes)
        in_shape, out_shape = shapes
        planned_shapes = (layer.planned_shape, layer.output_shape)
        fixed_shapes = (_fixed_shape(layer, in_shape), _fixed_shape(layer, out_shape))
        packing_moves, unpacking_moves = _moves(fold, fixed_shapes, tile_major=False)
        views = are_views((*packing_moves, *unpacking_moves))
        infers_several = inferred(packing_moves) > 1 or (
            inferred(unpacking_moves, shuffles=layer.shuffles) > 1
        )
        # A dequantized grouped Conv would need tile-major groups, which no layout has.
        has_layout = not (layer.is_dequantized and fold.group > 1)
        tile_major = (fold.tile_major or infers_several) and not views and has_layout
        if tile_major:
            packing_moves, unpacking_moves = _moves(fold, fixed_shapes, tile_major=True)
        fold = replace(fold, tile_major=tile_major)
        axis_folds = (fold.batch > 1, False, *(axis.is_folded for axis in fold.axes))
        output_positions = (out_shape[0], 1, *out_shape[2:])
        weight_positions = (layer.positions[0], 1, *layer.positions[1:])
        return Form(
            spec=msgspec.structs.replace(self.spec, tile_major=tile_major),
            structure=layer.structure,
            fold=fold,
            is_view=views and shapes == planned_shapes,
            moves_through_nhwc=tile_major,
            extended_in_shape=in_shape,
            extended_out_shape=out_shape,
            flops_ratio=fold.flops_growth(
                nominal_size(output_positions) / nominal_size(weight_positions)
            ),
            bytes_ratio=bytes_growth(layer, fold, in_shape, out_shape),
            folded_axes=frozenset(i for i, folds in enumerate(axis_folds) if folds),
            conditions=(
                Congruence((layer.planned_shape[0] or 0) % fold.batch, fold.batch),
                NO_CONDITION,
                *(axis.condition for axis in fold.axes),
            ),
            packing_moves=packing_moves,
            unpacking_moves=unpacking_moves,
            ends=_ends(layer, fold, shapes, fixed_shapes),
        )

    def _summed(self, shapes: tuple[Dims, Dims]) -> Form:
        """Return the form that computes each position as a sample, and adds what its taps give.

        All extents but the number of samples are fixed (`enumeration.summed_taps`).
        """
        layer, fold = self.layer, self.fold
        in_shape, out_shape = (_fixed_shape(layer, shape) for shape in shapes)
        first = fold.axes[0]
        input_packing, _ = pack_positions(in_shape, first.in_tile)
        _, output_packing = pack_positions(out_shape, first.out_tile)
        batch = in_shape[0]
        positions = nominal_size(in_shape[2:3]) // first.in_tile
        channels = fold.channels(*layer.channels)[1]
        tap_shape = (batch, positions, channels, *out_shape[3:])
        output_positions = nominal_size((batch, positions * first.out_tile, *out_shape[3:]))
        return Form(
            spec=self.spec,
            structure=layer.structure,
            fold=fold,
            is_view=False,
            extended_in_shape=in_shape,
            extended_out_shape=out_shape,
            flops_ratio=fold.flops_growth(output_positions / nominal_size(layer.positions)),
            bytes_ratio=bytes_growth(layer, fold, in_shape, out_shape),
            folded_axes=frozenset(range(len(in_shape))) - {1},
            conditions=(NO_CONDITION,) * len(in_shape),
            packing_moves=input_packing.moves,
            unpacking_moves=(
                Reshape(len(tap_shape) - 1, tap_shape, (False,) * len(tap_shape)),
                ShiftedSum(fold.shifts, channels // fold.sums, len(tap_shape)),
                *output_packing.inverse_moves,
            ),
            ends=Ends(layer.data_index, None, None, in_shape, out_shape),
        )


def _ends(
    layer: ConvLayer,
    fold: ConvFold,
    extended_shapes: tuple[Dims, Dims],
    fixed_shapes: tuple[Dims, Dims],
) -> Ends:
    """Return the ends of a form; a layout is None if its tensor is extended or cut.

    Both are None if the channels of a group lie apart: in a tile-major fold of several groups.
    """
    out_shape = extended_shapes[1]
    is_apart = fold.tile_major and fold.group > 1
    input_layout, output_layout = (
        layout if shape == planned and layout.fits(shape) and not is_apart else None
        for layout, shape, planned in (
            (fold.layout(output=False), extended_shapes[0], layer.planned_shape),
            (fold.layout(output=True), out_shape, layer.output_shape),
        )
    )
    reason = None
    if output_layout and inferred(output_layout.moves(fixed_shapes[1], inverse=True)) > 1:
        # A region unpacks behind later ops. Behind a Cast to int32, there is no DepthToSpace.
        output_layout, reason = None, SEVERAL_UNKNOWN_EXTENTS
    elif out_shape != layer.output_shape:
        reason = Refusal(Code.CUT, f"{list(out_shape)} is cut to {list(layer.output_shape)}")
    elif is_apart:
        reason = Refusal(Code.GROUPED_CHANNELS_LAST, "groups lie apart in NHWC")
    return Ends(layer.data_index, input_layout, output_layout, *fixed_shapes, reason)


def _moves(
    fold: ConvFold, shapes: tuple[Dims, Dims], *, tile_major: bool
) -> tuple[tuple[Move, ...], tuple[Move, ...]]:
    """Return the moves that pack the input and unpack the output of these extents."""
    data, result = (
        pack(
            shape,
            fold.layout(output=output).tiles,
            tile_major=tile_major,
            group=fold.group,
            batch=fold.batch,
            lift=fold.lift,
        )
        for shape, output in zip(shapes, (False, True), strict=True)
    )
    return data.moves, result.inverse_moves


def _extended_shape(layer: ConvLayer, fold: ConvFold, *, output: bool) -> Dims:
    """Return the shape of the input or output after extension to the extents of the fold."""
    shape = layer.output_shape if output else layer.planned_shape
    lengths = [a.extended_out_length if output else a.extended_length for a in fold.axes]
    batch = None if shape[0] is None else round_up(shape[0], fold.batch)
    spatial = (s if e is None else e for s, e in zip(shape[2:], lengths, strict=True))
    return (batch, fold.regrouping.channels(*layer.channels)[output], *spatial)


def _extension_problem(layer: ConvLayer, in_shape: Dims, out_shape: Dims) -> Refusal | None:
    """Refuse to extend the data or the result to the extents that a fold needs."""
    names = axis_names(layer.spatial_rank)
    sides = (("input", layer.planned_shape, in_shape), ("output", layer.output_shape, out_shape))
    growth = max(nominal_size(needed) / nominal_size(shape) for _, shape, needed in sides)
    for side, shape, needed_shape in sides:
        for name, extent, needed in zip(names, shape, needed_shape, strict=True):
            if extent != needed:
                reason = f"{side} {name} {extent} would have to be {needed}"
                return Refusal(Code.FACTOR_DOES_NOT_DIVIDE, reason, growth)
    return None


def _fixed_shape(layer: ConvLayer, shape: Dims) -> Dims:
    """Return the extents of input or output that the model fixes, the channels among them."""
    pairs = enumerate(zip(shape, layer.fixed_shape, strict=True))
    return tuple(e if i == 1 or fixed is not None else None for i, (e, fixed) in pairs)
