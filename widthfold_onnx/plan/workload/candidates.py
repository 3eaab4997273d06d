"""List every form that a layer may take, each with a key that describes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec

from widthfold_onnx.algebra.axis import fold_axis, keep_axis
from widthfold_onnx.algebra.channels import Grouping, Regrouping
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.options import FACTORS, AxisName, FoldOptions, Layout
from widthfold_onnx.plan.store.identity import canonical
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.forms import rows
from widthfold_onnx.rules.forms.enumeration import (
    LIFT,
    Outcome,
    candidates,
    forms,
    splits,
    summed_taps,
)
from widthfold_onnx.rules.forms.form import Candidate, Reformulation
from widthfold_onnx.rules.forms.legality import legal_form
from widthfold_onnx.rules.forms.regrouped import groupings
from widthfold_onnx.rules.forms.windows import SpatialFold
from widthfold_onnx.rules.match.conv_site import ConvSite
from widthfold_onnx.rules.match.product_site import ProductSite
from widthfold_onnx.rules.match.site import LinearSite
from widthfold_onnx.rules.selection import is_of_one_axis, site_problem, width_problem

MAX_WHOLE = 64
"""Largest number of positions of an axis that may become channels as a whole."""


ORDERS = {Layout.AUTO: (False, True), Layout.NCHW: (False,), Layout.NHWC: (True,)}
"""Channel orders to try by layout: tile-major or not."""


LIFTED_RANKS = (1, 2)
"""Spatial axes of a Conv that may be lifted. The CPU's blocked kernels exist for two axes only: a
Conv of one axis is lifted to reach them, one of two to avoid them."""


class AxisKey(msgspec.Struct, frozen=True):
    """One axis of positions: tiles of output and input, and whether they are blocked."""

    out_tile: int
    in_tile: int
    blocked: bool


class FormKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields that tell the forms of one layer apart; the layer decides the rest.

    `channels` and `group` are those of the Conv before the fold, after regrouping. What is as usual
    is left out, so that earlier keys stay.
    """

    axis: str
    factor: int
    kind: str
    merged: int
    batch: int
    dense: bool
    tile_major: bool
    lift: int
    channels: tuple[int, int]
    group: int
    axes: list[AxisKey]
    summed: bool = False


def form_key(site: LinearSite, form: Reformulation) -> str:
    """Return what tells a form from others of its site, as canonical JSON."""
    fold = form.fold
    key = FormKey(
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
        axes=[AxisKey(axis.out_tile, axis.in_tile, axis.blocked) for axis in fold.axes],
        summed=fold.summed,
    )
    return canonical(msgspec.to_builtins(key))


def is_lifted(text: str | None) -> bool:
    """Check whether the form of a key, if there is one, computes a layer of one axis on two."""
    if text is None:
        return False
    key = msgspec.json.decode(text, type=FormKey)
    return key.lift == 1 and len(key.axes) == 1


def is_lift_alone(text: str) -> bool:
    """Check whether the form of a key lifts a layer of one axis and changes nothing else."""
    return is_lifted(text) and msgspec.json.decode(text, type=FormKey).axis == LIFT


def form_of(site: LinearSite, text: str, options: FoldOptions) -> Reformulation | Refusal:
    """Return the form that a key describes, at the extents of a site.

    Args:
        site: the site.
        text: see `form_key`.
        options: the limits are used.
    """
    key = msgspec.json.decode(text, type=FormKey)
    if isinstance(site, ProductSite):
        candidate = rows.candidate(site, key.factor, key.merged)
        return legal_form(rows.RowFold(site, options, candidate))
    assert isinstance(site, ConvSite)
    regrouping = Regrouping(site.grouping, Grouping(*key.channels, key.group))
    if not regrouping.is_possible:
        return Refusal(Code.INCONSISTENT_SHAPES, "its channels cannot form such groups")
    axes = []
    for axis, entry in zip(site.axes, key.axes, strict=True):
        kept = entry.out_tile * entry.in_tile * axis.base_dilation == 1
        result = (
            keep_axis(axis)
            if kept
            else fold_axis(axis, entry.out_tile, entry.in_tile, blocked=entry.blocked)
        )
        if isinstance(result, Refusal):
            return result
        axes.append(result)
    fold = ConvFold(
        axes=tuple(axes),
        group=key.group,
        batch=key.batch,
        dense=key.dense,
        tile_major=key.tile_major,
        lift=key.lift,
        regrouping=regrouping,
        summed=key.summed,
    )
    options = replace(options, ragged=True)
    candidate = Candidate(fold=fold, axis=key.axis, factor=key.factor, kind=key.kind)
    return legal_form(SpatialFold(site, options, candidate))


def lift_of(site: LinearSite, options: FoldOptions) -> Reformulation | Refusal:
    """Return the form that lifts a layer of one axis, and changes nothing else."""
    problem = site_problem(site, options)
    if problem is None and is_of_one_axis(site):
        for form in _legal(forms(site, options, (1,) * len(site.positions), lift=1)):
            if form.axis == LIFT:
                return form
    return problem or Refusal(Code.NO_GAIN, "it has no axis to add")


def every_form(site: LinearSite, options: FoldOptions) -> Iterator[Reformulation]:
    """Yield every legal form of a site, each once.

    Extents need not be divisible: the cost of extending and cutting is measured with the form. If
    the options name an axis, channels and groups stay as they are. A wide site, which is of one
    axis, is lifted only.
    """
    if isinstance(site, ProductSite):
        yield from _of_product(site, options)
        return
    assert isinstance(site, ConvSite)
    options = replace(options, ragged=True)
    unfolded = (1,) * len(site.positions)
    if width_problem(site, options) is not None:
        yield from _legal(forms(site, options, unfolded, lift=1))
        return
    whole = [n for n in site.positions[1:] if n is not None and n <= MAX_WHOLE]
    # A lifted Conv is not computed by the channels-last kernels, so that order is not tried.
    ways = [(0, order) for order in ORDERS[options.layout]]
    ways += [(1, False)] if len(site.axes) in LIFTED_RANKS else []
    # A factor equal to the dilation removes it: every tile reads positions of its own tile only.
    dilations = [axis.dilation for axis in site.axes if axis.dilation <= FACTORS[-1]]
    seen = set()
    for factor in sorted({1, *FACTORS, *whole, *dilations}):
        for split in splits(options.axis, factor, len(site.axes)):
            for lift, order in ways:
                every = forms(site, options, split, lift=lift, tile_major=order, one_sided=True)
                for form in _legal(every):
                    key = form_key(site, form)
                    if key not in seen:
                        seen.add(key)
                        yield form
    if options.axis is AxisName.AUTO:
        yield from summed_taps(site, options)
        for grouping in groupings(site):
            yield from _legal(forms(site, options, unfolded, grouping=grouping))


def _of_product(site: ProductSite, options: FoldOptions) -> Iterator[Reformulation]:
    """Yield the legal forms at the usual factors, or if there are none at any factor up to them."""
    for factors in (FACTORS, range(2, FACTORS[-1] + 1)):
        legal = [f for factor in factors for f in _legal(candidates(site, options, factor))]
        if legal:
            yield from legal
            return


def _legal(outcomes: Iterable[Outcome]) -> Iterator[Reformulation]:
    """Yield the forms among outcomes."""
    for _, form in outcomes:
        if isinstance(form, Reformulation):
            yield form
