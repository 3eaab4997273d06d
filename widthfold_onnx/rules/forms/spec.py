"""Describe a form apart from its layer, so that it can be stored and made again.

A `FormSpec` holds what tells the forms of one layer apart; the layer decides the rest. It is the
form in plans, in the search and, as text, in the store of measurements.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Annotated

import msgspec

from widthfold_onnx.algebra.axis import fold_axis, keep_axis
from widthfold_onnx.algebra.channels import Grouping, Regrouping
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.forms import rows
from widthfold_onnx.rules.forms.enumeration import LIFT, summed_taps
from widthfold_onnx.rules.forms.form import Candidate, Reformulation
from widthfold_onnx.rules.forms.legality import legal_form
from widthfold_onnx.rules.forms.windows import SpatialFold
from widthfold_onnx.rules.match.conv_site import ConvSite
from widthfold_onnx.rules.match.product_site import ProductSite
from widthfold_onnx.rules.match.site import LinearSite

MAX_TILE = 1 << 16
"""Largest tile or count of a spec that is read: tables of taps grow with it, and a text can say any
number. `options.folding.MAX_FACTOR` times a stride of 16 fits."""

MAX_CHANNELS = 1 << 24
"""Largest number of channels of a spec that is read."""

Tile = Annotated[int, msgspec.Meta(ge=1, le=MAX_TILE)]
Channels = Annotated[int, msgspec.Meta(ge=1, le=MAX_CHANNELS)]
Text = Annotated[str, msgspec.Meta(max_length=100)]


class AxisSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One axis of positions: tiles of output and input, and whether they are blocked."""

    out_tile: Tile
    in_tile: Tile
    blocked: bool


class FormSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The fields that tell the forms of one layer apart.

    Fields at their defaults are left out of the text, so that earlier measurements stay valid.

    Attributes:
        axis: folded axes by name, joined by "+".
        factor: positions per original channel that become channels.
        kind: how each axis is folded, joined by "+".
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

    axis: Text
    factor: Tile
    kind: Text
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
    def is_lifted(self) -> bool:
        """True if a layer of one axis is computed on two."""
        return self.lift == 1 and len(self.axes) == 1

    @property
    def is_lift_alone(self) -> bool:
        """True if a layer of one axis is lifted, and nothing else is changed."""
        return self.is_lifted and self.axis == LIFT


NO_SUCH_FORM = Refusal(Code.INCONSISTENT_ATTRIBUTES, "the layer has no such form")


@cache
def _text(spec: FormSpec) -> str:
    return msgspec.json.encode(spec, order="sorted").decode()


def spec_of(site: LinearSite, form: Reformulation) -> FormSpec:
    """Return what tells a form from others of its site."""
    fold = form.fold
    return FormSpec(
        axis=form.axis,
        factor=form.factor,
        kind=form.kind,
        merged=form.merged,
        batch=fold.batch,
        dense=fold.dense,
        tile_major=fold.tile_major,
        lift=fold.lift,
        channels=fold.regrouping.channels(*site.channels),
        group=fold.group,
        axes=tuple(AxisSpec(axis.out_tile, axis.in_tile, axis.blocked) for axis in fold.axes),
        summed=fold.summed,
    )


def form_of(site: LinearSite, spec: FormSpec, options: FoldOptions) -> Reformulation | Refusal:
    """Return the form that a spec describes, at the extents of a site.

    Args:
        site: the site.
        spec: the form; it may come from anywhere, and is refused if the site has no such form.
        options: the limits are used.
    """
    form = _made(site, spec, options)
    if isinstance(form, Refusal) or spec_of(site, form) == spec:
        return form
    return NO_SUCH_FORM


def _made(site: LinearSite, spec: FormSpec, options: FoldOptions) -> Reformulation | Refusal:
    if isinstance(site, ProductSite):
        if spec.factor == 1 and site.labels is None:
            return NO_SUCH_FORM
        candidate = rows.candidate(site, spec.factor, spec.merged)
        return legal_form(rows.RowFold(site, options, candidate))
    assert isinstance(site, ConvSite)
    options = replace(options, ragged=True)
    if spec.summed:
        forms = (form for form in summed_taps(site, options) if spec_of(site, form) == spec)
        return next(forms, NO_SUCH_FORM)
    regrouping = Regrouping(site.grouping, Grouping(*spec.channels, spec.group))
    if not regrouping.is_possible:
        return Refusal(Code.INCONSISTENT_SHAPES, "its channels cannot form such groups")
    if len(spec.axes) != len(site.axes):
        return Refusal(Code.RANK_UNSUPPORTED, f"the form is for {len(spec.axes)} spatial axes")
    axes = []
    for axis, tiles in zip(site.axes, spec.axes, strict=True):
        is_kept = tiles.out_tile * tiles.in_tile * axis.base_dilation == 1
        folded = (
            keep_axis(axis)
            if is_kept
            else fold_axis(axis, tiles.out_tile, tiles.in_tile, blocked=tiles.blocked)
        )
        if isinstance(folded, Refusal):
            return folded
        axes.append(folded)
    fold = ConvFold(
        axes=tuple(axes),
        group=spec.group,
        batch=spec.batch,
        dense=spec.dense,
        tile_major=spec.tile_major,
        lift=spec.lift,
        regrouping=regrouping,
    )
    candidate = Candidate(fold=fold, axis=spec.axis, factor=spec.factor, kind=spec.kind)
    return legal_form(SpatialFold(site, options, candidate))
