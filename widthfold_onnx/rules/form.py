"""Define a form: an equivalent replacement for a layer, and its predicted cost.

A `FormSpec` holds what tells the forms of one layer apart; all else follows from the layer. Plan
files and the store of measurements hold specs. A `ProposedFold` is the fold that a spec describes
for a layer. If it is legal (`rules.legality`), it becomes a `Form`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import msgspec

from widthfold_onnx.algebra.axis import Congruence
from widthfold_onnx.algebra.channels import Grouping
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.algebra.layouts import PackedLayout
from widthfold_onnx.algebra.packing import Move, MoveOrSum
from widthfold_onnx.arrays import Dims
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.layers import Layer

# Value of an unknown spatial extent when sizes are compared; an unknown batch counts as 1.
NOMINAL_EXTENT = 64

PRODUCT = "product"
"""Kind of a form that writes an Einsum as a MatMul and folds nothing."""

VECTOR = 16
"""Output channels that a vector of a blocked kernel of ONNX Runtime computes at once, used or not:
16 floats of AVX-512 (MlasNchwcGetBlockSize). AVX2 has 8."""

NO_AXIS = "rank"
"""Axis of a form that folds no axis: it lifts, or mirrors a ConvTranspose. Plan files contain it.
"""

MAX_TILE = 1 << 16
"""Largest tile or count in a spec that is read from a file, which can hold any number: tables of
taps grow with it. `options.MAX_FACTOR` times a stride of 16 fits."""

MAX_CHANNELS = 1 << 24
"""Largest number of channels in a spec that is read from a file."""

SEVERAL_UNKNOWN_EXTENTS = Refusal(
    Code.SEVERAL_UNKNOWN_EXTENTS,
    "more than one extent beside the folded axis is not known; a Reshape infers one",
)

Tile = Annotated[int, msgspec.Meta(ge=1, le=MAX_TILE)]
Channels = Annotated[int, msgspec.Meta(ge=1, le=MAX_CHANNELS)]
ShortText = Annotated[str, msgspec.Meta(max_length=100)]


class AxisSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One axis of positions: tiles of output and input, and whether they are blocked."""

    out_tile: Tile
    in_tile: Tile
    blocked: bool

    @property
    def is_folded(self) -> bool:
        """True if any position moves into channels."""
        return self.out_tile * self.in_tile > 1


class FormSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The fields that tell the forms of a layer apart, and labels: `axis`, `factor`, `kind`.

    The labels, which reports show, follow from the other fields and the layer. Fields at their
    defaults are left out: a field that is added has one, so plan files without it stay readable.

    Attributes:
        axis: folded axes by name, joined by "+".
        factor: positions per original channel that become channels.
        kind: how each axis is folded, and what else is changed (lift, groups, padding), joined by
            "+".
        merged: axes of the data that make up the positions of a product.
        batch: samples that become channels.
        dense: whether folded samples share one dense group.
        tile_major: whether tiles lie before the channels.
        lift: axes of extent 1 put before the spatial ones.
        channels: input and output channels before the fold, after regrouping.
        group: groups of these.
        axes: the spatial axes, or the axis of positions of a product.
        summed: whether each tap has output channels of its own, which are added up.
    """

    axis: ShortText
    factor: Tile
    kind: ShortText
    merged: Annotated[int, msgspec.Meta(ge=1, le=8)]
    batch: Tile
    dense: bool
    tile_major: bool
    lift: Annotated[int, msgspec.Meta(ge=0, le=2)]
    channels: tuple[Channels, Channels]
    group: Channels
    axes: Annotated[tuple[AxisSpec, ...], msgspec.Meta(max_length=3)]
    summed: bool = False

    @property
    def text(self) -> str:
        """The spec as canonical JSON: sorted names, no spaces."""
        return _text(self)

    @property
    def is_lifted_1d(self) -> bool:
        """True if a layer of one axis is computed on two."""
        return self.lift == 1 and len(self.axes) == 1

    @property
    def is_lift_alone(self) -> bool:
        """True if a layer of one axis is lifted, and nothing else is changed."""
        return self.is_lifted_1d and self.axis == NO_AXIS


def unfolded_spec(layer: Layer, axes: tuple[AxisSpec, ...]) -> FormSpec:
    """Return the spec of a form with these tiles that changes nothing else of the layer."""
    return FormSpec(
        axis=NO_AXIS,
        factor=1,
        kind="",
        merged=1,
        batch=1,
        dense=False,
        tile_major=False,
        lift=0,
        channels=layer.channels,
        group=layer.group,
        axes=axes,
    )


@cache
def _text(spec: FormSpec) -> str:
    return msgspec.json.encode(spec, order="sorted").decode()


@dataclass(frozen=True)
class Ends:
    """The input and output of a folded node; a layout is None for the logical tensor.

    Attributes:
        data_index: index of the input that it reads.
        fixed_in_shape: extents of the input as far as they are fixed.
        fixed_out_shape: extents of the output as far as they are fixed.
        logical_reason: why the output has no layout; None if it has one, if nothing was folded, or
            if forms of this kind never have one.
    """

    data_index: int
    input_layout: PackedLayout | None
    output_layout: PackedLayout | None
    fixed_in_shape: Dims
    fixed_out_shape: Dims
    logical_reason: Refusal | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Form:
    """A folded node with its moves, which replaces a layer.

    Attributes:
        spec: what tells it from the other forms of the layer.
        structure: of the layer (`Layer.structure`).
        fold: how the weight is folded.
        is_view: both ends are pure Reshapes, so that nothing is copied.
        moves_through_nhwc: the moves lead through the NHWC path (`algebra.packing`).
        extended_in_shape: input extents after zero-extension.
        extended_out_shape: output extents before the cut.
        flops_ratio: multiply-adds after / before.
        bytes_ratio: bytes of input, weight and output after / before.
        folded_axes: axes of the data whose positions become channels, in input or output.
        conditions: per axis of the data the condition on its extent if it is open.
        packing_moves: the Reshapes and Transposes that pack the data.
        unpacking_moves: the moves that unpack the result, and the sum over taps.
        ends: the layouts of input and output.
    """

    spec: FormSpec
    structure: dict[str, Any]
    fold: ConvFold
    is_view: bool
    moves_through_nhwc: bool = False
    extended_in_shape: Dims
    extended_out_shape: Dims
    flops_ratio: float
    bytes_ratio: float
    folded_axes: frozenset[int]
    conditions: tuple[Congruence, ...]
    packing_moves: tuple[Move, ...]
    unpacking_moves: tuple[MoveOrSum, ...]
    ends: Ends

    def channels_text(self, inputs: int, outputs: int) -> str:
        """Return the new channels for reports, with rank and groups if they changed."""
        channels = "{} -> {}".format(*self.fold.channels(inputs, outputs))
        original, result = self.fold.regrouping.original, self.fold.regrouping.result
        is_regrouped = original.group != result.group
        regrouping = f", in groups: {self.fold.new_group}" if is_regrouped else ""
        suffix = (
            ", as a MatMul"
            if self.spec.kind == PRODUCT
            else ", with one more axis" * self.fold.lift
        )
        return channels + suffix + regrouping

    @property
    def label(self) -> str:
        """View or move, the kind of fold, and the layout if it is not NCHW, for reports."""
        way = "view" if self.is_view else "move"
        return f"{way} {self.spec.kind}{' in NHWC' if self.moves_through_nhwc else ''}"


Answer = Form | Refusal
"""The answer of the rules for a layer: its form, or why it has none."""


@dataclass(frozen=True)
class ProposedFold(ABC):
    """A fold that is proposed for a layer.

    Attributes:
        layer: the layer.
        options: layout, limits, and whether extents may be extended.
        spec: the form that it would be.
        fold: how the weight would be folded.
    """

    layer: Layer
    options: FoldOptions
    spec: FormSpec
    fold: ConvFold

    @abstractmethod
    def extended_shapes(self) -> tuple[Dims, Dims] | Refusal:
        """Return the extents of input and output that the fold needs; refuse if they cannot be."""

    @abstractmethod
    def mixing_problem(self) -> Refusal | None:
        """Refuse a fold with which a NaN of one sample may reach others."""

    @abstractmethod
    def form(self, shapes: tuple[Dims, Dims]) -> Form:
        """Return the form of the fold; its Reshapes state no extent that the model leaves open.

        Args:
            shapes: the planned extents of input and output (`extended_shapes`).
        """


def spread_of(layer: Layer, form: Form) -> float:
    """Return how many outputs Inf or NaN in one input may reach, after / before the fold.

    A structural zero times Inf is NaN, so a non-finite input reaches every output that shares its
    reduction, within its sample. The mean number of outputs reached grows by the number of elements
    of the folded weight / the number of elements that are no structural zeros.
    """
    return 1.0 if layer.is_finite else round(form.fold.spread(), 2)


def lanes_growth(layer: Layer, form: Form) -> float:
    """Return the multiply-adds in whole vectors of `VECTOR` output channels, after / before.

    A fold of 1 -> 8 channels to 8 -> 64 with 4.8 times the multiply-adds takes 2.4 times as many
    vectors: 8 channels filled half of a vector, and 64 fill four.
    """
    original = layer.grouping
    group = form.fold.new_group if layer.spatial_rank else original.group
    folded = Grouping(*form.fold.channels(original.inputs, original.outputs), group)
    before, after = (g.output_lanes(VECTOR) / g.outputs for g in (original, folded))
    return form.flops_ratio * after / before


def bytes_growth(layer: Layer, fold: ConvFold, in_shape: Dims, out_shape: Dims) -> float:
    """Return the bytes of input, weight and output, after / before."""
    weight = math.prod(layer.weight_shape)
    original_size = nominal_size(layer.planned_shape) + weight + nominal_size(layer.output_shape)
    new_size = (
        nominal_size(in_shape) + weight * fold.weight_growth() + nominal_size(out_shape) * fold.sums
    )
    return new_size / original_size


def nominal_size(shape: Dims) -> int:
    """Return the elements of a tensor, for comparisons: unknown extents are nominal."""
    nominal = (1 if i == 0 else NOMINAL_EXTENT for i in range(len(shape)))
    return math.prod(n if e is None else e for e, n in zip(shape, nominal, strict=True))
