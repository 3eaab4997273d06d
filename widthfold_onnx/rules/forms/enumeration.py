"""List all equivalent forms of a site at a factor.

Rule: replaces it with fold - Conv - unfold, or with Reshape - product - Reshape.
Requires: a LinearSite; the factor divides the folded extents, unless `ragged`.
Rewrites: batch folds (grouped, no structural zeros); axis folds, blocked, interleaved or of the
    whole axis; combined folds of several axes; with `one_sided`, folds of the output alone
    (sub-pixel), and at factor 1 of the input alone along strided axes (space-to-depth); all of
    them also lifted by one rank. Strided axes of a ConvTranspose that are not folded take their
    sub-pixel form, which is a form by itself at factor 1. Other groups and channels (`groupings`)
    are combined with the unfolded kernel, or with its sub-pixel form. A 3-D Conv as a 2-D one, or
    a 1-D Conv as a product of matrices, whose results for each tap are added (`summed_taps`). Of a
    product rows or columns are folded, with as few axes of batches as the factor needs.
Refuses: forms that grow past the limits, mix samples, or spread Inf and NaN where that is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from widthfold_onnx.algebra.axis import ConvAxis, FoldedAxis, fold_axis, keep_axis
from widthfold_onnx.algebra.channels import Grouping, Regrouping
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.options import STRIDES_ALONE, AxisName, FoldOptions, Layout
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.forms.form import Candidate, Reformulation
from widthfold_onnx.rules.forms.legality import legal_form
from widthfold_onnx.rules.forms.rows import RowFold
from widthfold_onnx.rules.forms.windows import SpatialFold
from widthfold_onnx.rules.match.conv_site import ConvSite, axis_names
from widthfold_onnx.rules.match.product_site import ProductSite
from widthfold_onnx.rules.match.site import LinearSite

SUMMED = "summed taps"
SUMMED_RANKS = (1, 3)
"""Spatial axes of a Conv of which the first may become samples: what is left is a product of
matrices, or a Conv of two axes."""

GEMM_OPSET = 11
"""First operator set whose Gemm needs no C."""

Split = tuple[int, ...]
"""Factor per axis: the batch first, then every spatial axis; their product is the factor. The split
(1, 2, 4) of an image folds the height by 2 and the width by 4."""

Outcome = tuple[str, Reformulation | Refusal]

LIFT = "rank"
"""Axis of a form that folds none: it lifts, or mirrors a ConvTranspose."""


def forms_at_factor(site: LinearSite, options: FoldOptions, factor: int) -> Iterator[Outcome]:
    """Yield every form at a factor, legal or refused, each with the names of its axes.

    Args:
        site: the Conv.
        options: axis, layout and limits are used.
        factor: positions that become channels, F >= 2, or `STRIDES_ALONE`.
    """
    if isinstance(site, ProductSite):
        if options.axis is AxisName.AUTO and factor != STRIDES_ALONE:
            yield site.position_names[0], legal_form(RowFold.of(site, options, factor))
        return
    assert isinstance(site, ConvSite)
    if factor == STRIDES_ALONE:
        yield from _of_strides(site, options)
        return
    tile_major = options.layout is Layout.NHWC
    for split in splits(options.axis, factor, len(site.axes)):
        yield from forms_of_split(site, options, split, tile_major=tile_major)


def forms_of_split(
    site: ConvSite,
    options: FoldOptions,
    split: Split,
    *,
    lift: int = 0,
    tile_major: bool = False,
    grouping: Grouping | None = None,
    one_sided: bool = False,
) -> Iterator[Outcome]:
    """Yield every form with a given factor per axis.

    Args:
        site: the Conv.
        options: the limits are used.
        split: factor per axis; an axis of factor 1 may have its strides folded.
        lift: axes of extent 1 put before the spatial ones.
        tile_major: use the NHWC form where the NCHW form is no view.
        grouping: channels and groups of the Conv to fold, without folds of its strides; None for
            the site's own.
        one_sided: add folds of the output alone and, along axes of factor 1, of the input alone:
            they have fewer structural zeros, but channels grow on one side only.
    """
    regrouping = Regrouping(site.grouping, grouping or site.grouping)
    regrouped = _changes(regrouping.before, regrouping.after)
    names = axis_names(site.rank)
    label = "+".join(names[i + 1 if i else 0] for i, n in enumerate(split) if n > 1)
    factor = math.prod(split)
    if options.ragged and (short := _too_short(site, split)):
        yield label, short
        return
    one_sided = one_sided and not regrouped
    for kinds, axes in _combined_axes(site.axes, split[1:], one_sided=one_sided):
        batch, lifted = ["batch"] if split[0] > 1 else [], ["lifted"] if lift else []
        kind = [*batch, *kinds, *lifted, *regrouped]
        if not kind and not site.operator.transposed:
            continue  # the node as it is
        if isinstance(axes, Refusal):
            yield label, axes
            continue
        # The split does not name axes whose strides alone are folded, nor does a lift.
        changed = [bool(regrouped), *(axis.folded for axis in axes)]
        folded = label or "+".join(n for n, is_ in zip(names[1:], changed, strict=True) if is_)
        for dense in (False, True) if split[0] > 1 else (False,):
            fold = ConvFold(
                axes=axes,
                group=regrouping.after.group,
                batch=split[0],
                dense=dense,
                tile_major=tile_major,
                lift=lift,
                regrouping=regrouping,
            )
            candidate = Candidate(
                fold=fold, axis=folded or LIFT, factor=factor, kind="+".join(kind) or "mirrored"
            )
            yield label, legal_form(SpatialFold(site, options, candidate))


def _of_strides(site: ConvSite, options: FoldOptions) -> Iterator[Outcome]:
    """Yield the forms that fold strides and nothing else; none if all strides are 1."""
    if not any(axis.stride > 1 or axis.base_dilation > 1 for axis in site.axes):
        return
    tile_major = options.layout is Layout.NHWC
    split = (1,) * (1 + len(site.axes))
    for _, form in forms_of_split(site, options, split, tile_major=tile_major, one_sided=True):
        yield form.axis if isinstance(form, Reformulation) else "strides", form


def summed_taps(site: ConvSite, options: FoldOptions) -> Iterator[Reformulation]:
    """Yield the forms of a Conv without its first axis: each tap has output channels of its own.

    Runtimes have slower kernels for three axes than for two, and multiply matrices faster than
    they compute a Conv of one axis. Strides of the axis are folded. No tap may meet padding only.
    If there is a bias, one tap must meet every position of the result. Only the number of samples
    may be open.
    """
    rank, (first, *others) = site.rank, site.axes
    fits = rank in SUMMED_RANKS and not site.operator.activates and site.group == 1
    if not fits or site.quantization or (rank == 1 and site.opset < GEMM_OPSET):
        return
    if first.length is None or None in site.static[1:]:
        return
    if any(axis.base_dilation > 1 for axis in others):
        return
    regrouping = Regrouping(site.grouping, site.grouping)
    for _, taps in _forms_of_axis(first, 1, one_sided=True):
        if isinstance(taps, Refusal) or taps.stride > 1 or taps.kernel == 1:
            continue
        axes = (taps, *map(keep_axis, others))
        fold = ConvFold(axes=axes, tile_major=taps.folded, regrouping=regrouping, summed=True)
        positions = -(-first.length // taps.in_tile)
        is_met = all(positions + min(a, 0) + min(b, 0) > 0 for a, b in fold.shifts)
        if is_met and (site.bias is None or fold.whole is not None):
            candidate = Candidate(fold=fold, axis=axis_names(rank)[2], factor=1, kind=SUMMED)
            form = legal_form(SpatialFold(site, options, candidate))
            if isinstance(form, Reformulation):
                yield form


def _too_short(site: ConvSite, split: Split) -> Refusal | None:
    """Refuse an axis with fewer positions than are to become channels."""
    for factor, extent in zip(split, site.positions, strict=True):
        if extent is not None and 1 < factor > extent:
            return Refusal(
                Code.TOO_SHORT, f"of {factor} positions {factor - extent} would be added"
            )
    return None


def splits(axis: AxisName | int, factor: int, rank: int) -> Iterator[Split]:
    """Yield the ways to share a factor out over batch and spatial axes."""
    slots = 1 + rank
    if factor == 1:
        yield (1,) * slots
        return
    slot = _slot(axis, rank)
    single = [tuple(factor if i == j else 1 for i in range(slots)) for j in range(slots)]
    if slot is not None:
        yield from single[slot : slot + 1]
        return
    yield from single
    divisors = [n for n in range(1, factor + 1) if factor % n == 0]
    for first in product(divisors, repeat=slots - 1):
        last, rest = divmod(factor, math.prod(first))
        if not rest and factor not in (*first, last):
            yield (*first, last)


def _slot(axis: AxisName | int, rank: int) -> int | None:
    """Return the position of an axis in a split: 0 the batch, then spatial axes; None for any."""
    if axis is AxisName.AUTO:
        return None
    names = axis_names(rank)
    index = axis if isinstance(axis, int) else names.index(axis) if axis in names else len(names)
    return 0 if index == 0 else index - 1 if 2 <= index < rank + 2 else rank + 1


def _combined_axes(
    axes: Sequence[ConvAxis], split: Split, *, one_sided: bool
) -> Iterator[tuple[list[str], tuple[FoldedAxis, ...] | Refusal]]:
    """Yield all combinations of forms of the axes; a refused axis refuses its combinations."""
    if not axes:
        yield [], ()
        return
    firsts = list(_forms_of_axis(axes[0], split[0], one_sided=one_sided))
    for rest_kinds, rest in _combined_axes(axes[1:], split[1:], one_sided=one_sided):
        for kind, first in firsts:
            if isinstance(rest, Refusal):
                yield rest_kinds, rest
            elif isinstance(first, Refusal) and split[0] == 1:
                # An axis that is not folded itself has a stride that forbids folding the others.
                where = f"along {axis_names(len(axes))[2]}, {first.reason}"
                yield kind, replace(first, reason=where)
            elif isinstance(first, Refusal):
                yield kind, first
            else:
                yield [*kind, *rest_kinds], (first, *rest)


def _forms_of_axis(
    axis: ConvAxis, factor: int, *, one_sided: bool
) -> Iterator[tuple[list[str], FoldedAxis | Refusal]]:
    if factor == 1:
        if axis.base_dilation > 1:
            yield ["sub-pixel"], fold_axis(axis, axis.base_dilation, 1)
            return
        yield [], keep_axis(axis)
        if one_sided and axis.stride > 1:
            yield ["space-to-depth"], fold_axis(axis, 1, axis.stride)
        return
    # A whole axis is of one extent, which an open axis need not have.
    if not axis.is_open and axis.out_length is not None and axis.positions == factor:
        yield ["whole"], fold_axis(axis, axis.out_length, axis.length)
        return
    if axis.base_dilation == 1:
        yield ["blocked"], fold_axis(axis, factor, factor, blocked=True)
    out_tile = factor * axis.base_dilation
    for in_tile in sorted({factor * axis.stride, factor}, reverse=True):
        yield ["interleaved"], fold_axis(axis, out_tile, in_tile)
    if one_sided:
        yield ["sub-pixel"], fold_axis(axis, out_tile, 1)


ALIGNMENTS = (4, 8, 16)
"""Multiples that kernels ask for: 4 channels of ONNX Runtime's blocked kernels on the CPU
(nchwc_transformer.cc), 8 of a tensor core in half precision (NVIDIA convolution guide), 16 floats
of AVX-512."""


def groupings(site: ConvSite) -> Iterator[Grouping]:
    """Yield every other grouping that a site is tried with, each once (`algebra.channels`).

    Neighbouring groups become one, down to a dense Conv. A block-diagonal weight becomes groups:
    it is zero between them. Channels of a dense Conv are padded to the multiples that kernels ask
    for. A quantized site keeps its grouping.
    """
    if site.quantization is not None:
        return  # added channels would need scales, and the zero point of each channel
    inputs, outputs = site.channels
    counts = range(1, site.groups + 1)
    for count in counts:
        merged, split = site.group % count == 0, count % site.group == site.groups % count == 0
        if count != site.group and (merged or split):
            yield Grouping(inputs, outputs, count)
    padded = [
        pair
        for multiple in ALIGNMENTS
        for pair in (
            (_up(inputs, multiple), outputs),
            (inputs, _up(outputs, multiple)),
            (_up(inputs, multiple), _up(outputs, multiple)),
        )
    ]
    for pair in dict.fromkeys(padded):
        if pair != site.channels:
            yield Grouping(*pair)


def _changes(before: Grouping, after: Grouping) -> list[str]:
    """Return the names of the changes that a regrouping makes, none if it changes nothing."""
    changes = []
    if before.group != after.group:
        changes.append("dense" if after.group == 1 else "grouped")
    if (before.inputs, before.outputs) != (after.inputs, after.outputs):
        changes.append("padded")
    return changes


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
