"""List the forms of a layer: all forms at a factor, or every legal form for a search.

A form of a Conv is a factor per axis, a way to tile each axis, a lift and a grouping. Its kind
joins the words of this table by "+". F is the factor of the axis, s its stride, and b its base
dilation, which is the stride of a ConvTranspose. The tiles are those of the output and of the
input:

    kind                    tiles             where
    batch                   F, F              the samples: as groups, or as one dense group.
    blocked                 F, F              an axis with b = 1.
    interleaved             F*b, F*s or F     any axis with F > 1.
    whole                   all, all          an axis of F positions: its only form.
    sub-pixel               F*b, 1            F = 1 < b, or F > 1 and `one_sided`.
    space-to-depth          1, s              F = 1 < s and `one_sided`.
    lifted                                    the kernel gets an axis of extent 1.
    grouped, dense, padded                    other groups and channels (`groupings`), F = 1.
    mirrored                                  a ConvTranspose with b = 1 is a Conv.
    summed taps             1, s              the first axis becomes samples (`summed_taps`).
    product                                   an Einsum is a MatMul.

A product is folded along rows or columns, merged with as few batch axes as the factor needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import compress, product

import msgspec

from widthfold_onnx.algebra.axis import ConvAxis
from widthfold_onnx.algebra.channels import CHANNEL_MULTIPLES, Grouping
from widthfold_onnx.arrays import round_up
from widthfold_onnx.options import FACTORS, AxisName, FoldOptions, FormName, Layout
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.form import NO_AXIS, Answer, AxisSpec, Form, FormSpec, unfolded_spec
from widthfold_onnx.rules.layers import ConvLayer, Layer, ProductLayer
from widthfold_onnx.rules.legality import legal_form, wide_problem
from widthfold_onnx.rules.row_fold import RowFold
from widthfold_onnx.rules.spatial_fold import SpatialFold

SUMMED = "summed taps"
SUMMED_RANKS = (1, 3)
"""Numbers of spatial axes of a Conv whose first axis may become samples. What remains is a product
of matrices, or a Conv of two axes."""

GEMM_WITHOUT_C_OPSET = 11
"""First operator set whose Gemm needs no C."""

Factors = tuple[int, ...]
"""A factor per axis: of the batch first, then of every spatial axis. Their product is the factor of
the form. The factors (1, 2, 4) fold the height of an image by 2 and the width by 4."""

MAX_WHOLE = 64
"""Largest number of positions of an axis that may become channels as a whole."""

TILE_MAJOR_BY_LAYOUT = {Layout.AUTO: (False, True), Layout.NCHW: (False,), Layout.NHWC: (True,)}
"""The orders of channels to try for each layout: whether they are tile-major."""

LIFTED_RANKS = (1, 2)
"""Spatial axes of a Conv that may be lifted. The CPU's blocked kernels exist for two axes only: a
Conv of one axis is lifted to reach them, one of two to avoid them."""

AxisAnswer = tuple[str, Answer]
"""The names of the axes that are folded, joined by "+", and a form of them or its refusal."""

NO_SUCH_FORM = Refusal(Code.INCONSISTENT_ATTRIBUTES, "the layer has no such form")


def form_of(layer: Layer, spec: FormSpec, options: FoldOptions) -> Answer:
    """Return the form that a spec describes, at the extents of a layer.

    Args:
        layer: the layer.
        spec: the form, as a plan describes it.
        options: only the limits count; extents need not be divisible.

    Returns:
        The form; a refusal if the layer has none like it, or it is not legal there.
    """
    answer = _nearest_form(layer, spec, replace(options, ragged=True))
    return NO_SUCH_FORM if isinstance(answer, Form) and answer.spec != spec else answer


def _nearest_form(layer: Layer, spec: FormSpec, options: FoldOptions) -> Answer:
    """Return the form that is most like a spec: a plan may describe a form that a layer lacks."""
    if isinstance(layer, ProductLayer):
        if spec.factor == 1 and layer.labels is None:
            return NO_SUCH_FORM
        return legal_form(RowFold.of(layer, options, spec.factor, spec.merged))
    assert isinstance(layer, ConvLayer)
    if spec.summed:
        is_listed = spec in _summed_specs(layer)
        return _summed_form(layer, options, spec) if is_listed else NO_SUCH_FORM
    return _spatial_form(layer, options, spec)


def _spatial_form(layer: ConvLayer, options: FoldOptions, spec: FormSpec) -> Answer:
    proposal = SpatialFold.of(layer, options, spec)
    return proposal if isinstance(proposal, Refusal) else legal_form(proposal)


def forms_at_factor(layer: Layer, options: FoldOptions) -> Iterator[AxisAnswer]:
    """Yield every form at the factor of the options, or of strides alone with `--form strides`.

    Each comes with the names of its axes; forms that are not legal come as refusals.
    """
    if options.form is FormName.STRIDES:
        if isinstance(layer, ConvLayer):
            yield from _stride_forms(layer, options)
        return
    factor = options.factor
    assert factor is not None
    if isinstance(layer, ProductLayer):
        if options.axis is AxisName.AUTO:
            yield from _row_forms(layer, options, [factor])
        return
    assert isinstance(layer, ConvLayer)
    tile_major = options.layout is Layout.NHWC
    for factors in factorizations(options.axis, factor, layer.foldable_axes):
        yield from conv_forms(layer, options, factors, tile_major=tile_major)


def every_form(
    layer: Layer, options: FoldOptions, *, folds_open_axes: bool = True
) -> Iterator[Form]:
    """Yield every legal form of a layer, each once.

    Extents need not be divisible: the cost of extending and cutting is measured with the form. If
    the options name an axis, channels and groups stay as they are. A wide layer is only lifted: a
    search asks for no wide Conv of several axes (`selection.search_problem`).

    Args:
        layer: the layer.
        options: layout, axis and limits are used.
        folds_open_axes: whether open axes of a Conv are folded by a factor, which needs a guard.
            With an open batch these are two thirds of the forms (basic-pitch).
    """
    if isinstance(layer, ProductLayer):
        yield from _product_forms(layer, options)
        return
    assert isinstance(layer, ConvLayer)
    options = replace(options, ragged=True)
    unfolded = (1,) * len(layer.positions)
    if wide_problem(layer, options) is not None:
        yield from _legal(conv_forms(layer, options, unfolded, lift=1))
        return
    full_extents = [n for n in layer.positions[1:] if n is not None and n <= MAX_WHOLE]
    # A lifted Conv is not computed by the channels-last kernels, so that order is not tried.
    ways = [(0, tile_major) for tile_major in TILE_MAJOR_BY_LAYOUT[options.layout]]
    ways += [(1, False)] if len(layer.axes) in LIFTED_RANKS else []
    # A factor equal to the dilation removes it: every tile reads positions of its own tile only.
    dilations = [axis.dilation for axis in layer.axes if axis.dilation <= FACTORS[-1]]
    specs: set[FormSpec] = set()
    for factor in sorted({1, *FACTORS, *full_extents, *dilations}):
        for factors in factorizations(options.axis, factor, layer.foldable_axes):
            if not folds_open_axes and _folds_open_axis(layer, factors):
                continue
            for lift, tile_major in ways:
                answers = conv_forms(
                    layer, options, factors, lift=lift, tile_major=tile_major, one_sided=True
                )
                for form in _legal(answers):
                    if form.spec not in specs:
                        specs.add(form.spec)
                        yield form
    if options.axis is AxisName.AUTO:
        yield from summed_taps(layer, options)
        for grouping in groupings(layer):
            yield from _legal(conv_forms(layer, options, unfolded, grouping=grouping))


def _folds_open_axis(layer: ConvLayer, factors: Factors) -> bool:
    """Check whether factors fold an open axis: a factor would have to divide its extent."""
    batch, _, *extents = layer.fixed_shape
    pairs = zip((batch, *extents), factors, strict=True)
    return any(extent is None and factor > 1 for extent, factor in pairs)


def _product_forms(layer: ProductLayer, options: FoldOptions) -> Iterator[Form]:
    """Yield the legal forms at the usual factors, or if there are none at any factor up to them.

    An Einsum is also tried as a MatMul, and nothing else if it is wide.
    """
    if layer.labels is not None:
        yield from _legal(_row_forms(layer, options, [1]))
        if wide_problem(layer, options) is not None:
            return
    if options.axis is AxisName.AUTO:
        usual_forms = list(_legal(_row_forms(layer, options, FACTORS)))
        other_factors = range(2, FACTORS[-1] + 1)
        yield from usual_forms or _legal(_row_forms(layer, options, other_factors))


def _row_forms(
    layer: ProductLayer, options: FoldOptions, factors: Iterable[int]
) -> Iterator[AxisAnswer]:
    """Yield a form for each factor, of the fewest axes of rows that it divides."""
    for factor in factors:
        yield layer.position_names[0], legal_form(RowFold.smallest(layer, options, factor))


def _legal(answers: Iterable[AxisAnswer]) -> Iterator[Form]:
    """Yield the forms that are legal."""
    for _, answer in answers:
        if isinstance(answer, Form):
            yield answer


def conv_forms(
    layer: ConvLayer,
    options: FoldOptions,
    factors: Factors,
    *,
    lift: int = 0,
    tile_major: bool = False,
    grouping: Grouping | None = None,
    one_sided: bool = False,
) -> Iterator[AxisAnswer]:
    """Yield every form of a Conv with a given factor per axis.

    Args:
        layer: the Conv.
        options: the limits are used.
        factors: factor per axis; an axis of factor 1 may have its strides folded.
        lift: axes of extent 1 put before the spatial ones.
        tile_major: move through NHWC where moves through NCHW are no view.
        grouping: channels and groups of the Conv to fold, without folds of its strides; None for
            the layer's own.
        one_sided: add folds of the output alone and, along axes of factor 1, of the input alone:
            they have fewer structural zeros, but channels grow on one side only.

    Yields:
        Names of the axes whose factor is above 1, joined by "+"; and the form or its refusal.
    """
    grouping = grouping or layer.grouping
    group_changes = _changes(layer.grouping, grouping)
    label = "+".join(name for name, n in zip(layer.foldable_axes, factors, strict=True) if n > 1)
    if refusal := _length_problem(layer, factors):
        yield label, refusal
        return
    pairs = zip(layer.axes, factors[1:], strict=True)
    one_sided = one_sided and not group_changes
    of_axes = [list(_tilings(axis, factor, one_sided=one_sided)) for axis, factor in pairs]
    batch = ["batch"] if factors[0] > 1 else []
    lift_names = ["lifted"] if lift else []
    for last_first in product(*reversed(of_axes)):
        tilings = last_first[::-1]
        kind = [*batch, *(kind for kind, _ in tilings if kind), *lift_names, *group_changes]
        if not kind and not layer.operator.transposed:
            continue  # the node as it is
        # The label does not name axes whose strides alone are folded, nor does a lift.
        changes = [bool(group_changes), *(tiles.is_folded for _, tiles in tilings)]
        axis_label = label or "+".join(compress(("channel", *layer.position_names), changes))
        for dense in (False, True) if factors[0] > 1 else (False,):
            spec = msgspec.structs.replace(
                unfolded_spec(layer, tuple(tiles for _, tiles in tilings)),
                axis=axis_label or NO_AXIS,
                factor=math.prod(factors),
                kind="+".join(kind) or "mirrored",
                batch=factors[0],
                dense=dense,
                tile_major=tile_major,
                lift=lift,
                channels=(grouping.inputs, grouping.outputs),
                group=grouping.group,
            )
            yield label, _spatial_form(layer, options, spec)


def _stride_forms(layer: ConvLayer, options: FoldOptions) -> Iterator[AxisAnswer]:
    """Yield the forms that fold strides and nothing else; none if all strides are 1."""
    if not any(axis.stride > 1 or axis.base_dilation > 1 for axis in layer.axes):
        return
    tile_major = options.layout is Layout.NHWC
    factors = (1,) * (1 + len(layer.axes))
    for _, answer in conv_forms(layer, options, factors, tile_major=tile_major, one_sided=True):
        yield answer.spec.axis if isinstance(answer, Form) else "strides", answer


def summed_taps(layer: ConvLayer, options: FoldOptions) -> Iterator[Form]:
    """Yield the forms of a Conv without its first axis: each tap has output channels of its own.

    Runtimes have slower kernels for three axes than for two, and multiply matrices faster than
    they compute a Conv of one axis. Strides of the axis are folded. No tap may meet padding only.
    If there is a bias, one tap must meet every position of the result. Only the number of samples
    may be open. With a kernel of 3 along D:

        before:  [N,C,D,H,W] - Conv of 3 axes - [N,O,D',H',W']
        after:   [N,C,D,H,W] - [N*D,C,H,W] - Conv of 2 axes, C -> 3*O - [N,D,3*O,H',W']
                 - sum of 3 shifted parts - [N,D',O,H',W'] - [N,O,D',H',W']
    """
    specs = _summed_specs(layer)
    yield from _legal((spec.axis, _summed_form(layer, options, spec)) for spec in specs)


def _summed_specs(layer: ConvLayer) -> Iterator[FormSpec]:
    """Yield the specs of the forms with summed taps that a Conv may have."""
    rank, (first, *other_axes) = layer.spatial_rank, layer.axes
    fits = rank in SUMMED_RANKS and not layer.operator.activates and layer.group == 1
    if not fits or layer.quantization or (rank == 1 and layer.opset < GEMM_WITHOUT_C_OPSET):
        return
    if first.length is None or None in layer.fixed_shape[1:]:
        return
    if any(axis.base_dilation > 1 for axis in other_axes):
        return
    unfolded = AxisSpec(out_tile=1, in_tile=1, blocked=False)
    for _, tiles in _tilings(first, 1, one_sided=True):
        yield msgspec.structs.replace(
            unfolded_spec(layer, (tiles, *[unfolded] * len(other_axes))),
            axis=layer.position_names[0],
            kind=SUMMED,
            tile_major=tiles.is_folded,
            summed=True,
        )


def _summed_form(layer: ConvLayer, options: FoldOptions, spec: FormSpec) -> Answer:
    """Return the form of one of the `_summed_specs`."""
    proposal = SpatialFold.of(layer, options, spec)
    if isinstance(proposal, Refusal):
        return proposal
    fold, axis, length = proposal.fold, proposal.fold.axes[0], layer.axes[0].length
    assert length is not None
    positions = -(-length // axis.in_tile)
    is_met = all(positions + min(a, 0) + min(b, 0) > 0 for a, b in fold.shifts)
    adds_bias = layer.bias is None or fold.bias_tap is not None
    if axis.stride > 1 or axis.kernel == 1 or not is_met or not adds_bias:
        return NO_SUCH_FORM
    return legal_form(proposal)


def _length_problem(layer: ConvLayer, factors: Factors) -> Refusal | None:
    """Refuse an axis with fewer positions than are to become channels."""
    for factor, extent in zip(factors, layer.positions, strict=True):
        if extent is not None and 1 < factor > extent:
            return Refusal(
                Code.TOO_SHORT, f"it has {extent} of the {factor} positions that would be folded"
            )
    return None


def factorizations(axis: AxisName | int, factor: int, names: tuple[str, ...]) -> Iterator[Factors]:
    """Yield the factors per axis whose product is a factor; a single axis comes first.

    Args:
        axis: the only axis to fold, by name or by its index in the data; `AxisName.AUTO` for any.
        factor: the factor.
        names: names of the axes that may be folded: the batch, then spatial axes.
    """
    slots = len(names)
    if factor == 1:
        yield (1,) * slots
        return
    indices = (0, *range(2, slots + 1))  # of the axes in the data, where 1 holds the channels
    for slot, name_and_index in enumerate(zip(names, indices, strict=True)):
        if axis is AxisName.AUTO or axis in name_and_index:
            yield tuple(factor if i == slot else 1 for i in range(slots))
    if axis is not AxisName.AUTO:
        return
    divisors = [n for n in range(1, factor + 1) if factor % n == 0]
    for first in product(divisors, repeat=slots - 1):
        last, remainder = divmod(factor, math.prod(first))
        if not remainder and factor not in (*first, last):
            yield (*first, last)


def _tilings(axis: ConvAxis, factor: int, *, one_sided: bool) -> Iterator[tuple[str, AxisSpec]]:
    """Yield the ways to fold one axis by a factor, each with its word in the kind of a form."""
    base = axis.base_dilation
    if factor == 1:
        yield "sub-pixel" if base > 1 else "", AxisSpec(out_tile=base, in_tile=1, blocked=False)
        if one_sided and axis.stride > 1:
            yield "space-to-depth", AxisSpec(out_tile=1, in_tile=axis.stride, blocked=False)
        return
    # A fold of the whole axis is for a single extent, and an open axis may have others.
    length, count = axis.length, axis.out_length
    if not axis.is_open and length is not None and count is not None and axis.positions == factor:
        yield "whole", AxisSpec(out_tile=count, in_tile=length, blocked=False)
        return
    if base == 1:
        yield "blocked", AxisSpec(out_tile=factor, in_tile=factor, blocked=True)
    for in_tile in sorted({factor * axis.stride, factor}, reverse=True):
        yield "interleaved", AxisSpec(out_tile=factor * base, in_tile=in_tile, blocked=False)
    if one_sided:
        yield "sub-pixel", AxisSpec(out_tile=factor * base, in_tile=1, blocked=False)


def groupings(layer: ConvLayer) -> Iterator[Grouping]:
    """Yield every other grouping that a layer is tried with, each once (`algebra.channels`).

    Neighbouring groups are merged, down to a dense Conv. A block-diagonal weight is split into
    groups. A dense Conv gets channels up to the multiples that kernels ask for. A quantized layer
    keeps its grouping.
    """
    if layer.quantization is not None:
        return  # added channels would need scales, and the zero point of each channel
    inputs, outputs = layer.channels
    for count in range(1, layer.weight_groups + 1):
        is_merged = layer.group % count == 0
        is_split = count % layer.group == layer.weight_groups % count == 0
        if count != layer.group and (is_merged or is_split):
            yield Grouping(inputs, outputs, count)
    channel_pairs = [
        pair
        for multiple in CHANNEL_MULTIPLES
        for pair in (
            (round_up(inputs, multiple), outputs),
            (inputs, round_up(outputs, multiple)),
            (round_up(inputs, multiple), round_up(outputs, multiple)),
        )
    ]
    for pair in dict.fromkeys(channel_pairs):
        if pair != layer.channels:
            yield Grouping(*pair)


def _changes(original: Grouping, result: Grouping) -> list[str]:
    """Return the names of the changes that a regrouping makes, none if it changes nothing."""
    changes = []
    if original.group != result.group:
        changes.append("dense" if result.group == 1 else "grouped")
    if (original.inputs, original.outputs) != (result.inputs, result.outputs):
        changes.append("padded")
    return changes
