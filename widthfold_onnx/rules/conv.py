"""All equivalent forms of a Conv at a given factor, and which of them is cheapest.

Rule: replaces Conv with fold - Conv - unfold.
Requires: a ConvSite; the factor divides the folded extents, unless `ragged`.
Rewrites: batch folds (grouped, no structural zeros), axis folds blocked, interleaved or of the
    whole axis, and products of folds of several axes where no single axis can take the factor.
Refuses: what would grow past the limits, mix samples, or spread Inf and NaN under `ieee_strict`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from widthfold_onnx.fold.axis import ConvAxis, FoldedAxis, fold_axis, keep_axis
from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.fold.layout import Reshape, pack
from widthfold_onnx.model.propagate import Dims
from widthfold_onnx.options import AxisName, FoldOptions, Layout
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.base import ConvSite, Reformulation, axis_names

Split = tuple[int, ...]
"""Factor per axis: the batch first, then every spatial axis; their product is the factor."""

MAX_WEIGHT_BYTES = 256 << 20
# Stands for a spatial extent that is not known where bytes are compared; a batch counts as 1.
NOMINAL_EXTENT = 64
# How far a candidate got before it was refused, worst first: the site reports the one that got
# furthest.
PROGRESS = (
    "empty-tensor",
    "unknown-extent",
    "stride-mismatch",
    "taps-cross-blocks",
    "blocks-do-not-cover",
    "factor-does-not-divide",
    "unguarded-extent",
    "several-unknown-extents",
    "mixes-samples",
    "structural-zeros",
    "weight-too-large",
    "bytes-growth",
    "flops-growth",
)

Outcome = tuple[str, Reformulation | Refusal]


def reformulate(site: ConvSite, options: FoldOptions) -> Reformulation | Refusal:
    """The cheapest legal form, or why there is none.

    Cheapest: a view before a move, one axis before several, then the fewest multiply-adds, then
    the fewest copies.
    """
    wide = is_wide(site, options)
    if wide is not None:
        return wide
    outcomes = list(candidates(site, options))
    legal = [r for _, r in outcomes if isinstance(r, Reformulation)]
    if legal:
        return min(legal, key=_cost)
    refusals = [(axis, r) for axis, r in outcomes if isinstance(r, Refusal)]
    if not refusals:
        return Refusal("no-such-axis", f"the input has no axis {options.axis}")
    return _summary(refusals)


def is_wide(site: ConvSite, options: FoldOptions) -> Refusal | None:
    """A refusal if both sides have channels enough to fill the lanes as they are."""
    if min(site.channels) < options.max_channels:
        return None
    inputs, outputs = site.channels
    return Refusal(
        "already-wide",
        f"{inputs} -> {outputs} channels; both sides have at least {options.max_channels} "
        "(--max-channels)",
    )


def candidates(site: ConvSite, options: FoldOptions) -> Iterator[Outcome]:
    """Every form at the factor, each with the name of its axes: legal ones and refused ones."""
    names = axis_names(len(site.axes))
    for split in _splits(site, options):
        label = "+".join(names[i + 1 if i else 0] for i, n in enumerate(split) if n > 1)
        forms = _axis_forms(site.axes, split[1:])
        for kinds, axes in forms:
            kind = "+".join([*(["batch"] if split[0] > 1 else []), *kinds])
            if isinstance(axes, Refusal):
                yield label, axes
                continue
            for dense in (False, True) if split[0] > 1 else (False,):
                fold = ConvFold(axes=axes, group=site.group, batch=split[0], dense=dense)
                yield label, _judge(site, options, fold, label, kind)


def _splits(site: ConvSite, options: FoldOptions) -> Iterator[Split]:
    """How the factor may be shared out over batch and spatial axes."""
    slots = 1 + len(site.axes)
    wanted = _slot(options.axis, len(site.axes))
    single = [tuple(options.factor if i == j else 1 for i in range(slots)) for j in range(slots)]
    if wanted is not None:
        yield from single[wanted : wanted + 1]
        return
    yield from single
    for split in _factorizations(options.factor, slots):
        if sum(n > 1 for n in split) > 1:
            yield split


def _slot(axis: AxisName | int, rank: int) -> int | None:
    """Position of an axis in a split: 0 the batch, then the spatial axes; None for any."""
    if axis is AxisName.AUTO:
        return None
    names = axis_names(rank)
    index = axis if isinstance(axis, int) else names.index(axis) if axis in names else len(names)
    return 0 if index == 0 else index - 1 if 2 <= index < rank + 2 else rank + 1


def _factorizations(factor: int, slots: int) -> Iterator[Split]:
    if slots == 1:
        yield (factor,)
        return
    for first in range(1, factor + 1):
        if factor % first == 0:
            for rest in _factorizations(factor // first, slots - 1):
                yield (first, *rest)


def _axis_forms(
    axes: Sequence[ConvAxis], split: Split
) -> Iterator[tuple[list[str], tuple[FoldedAxis, ...] | Refusal]]:
    """All combinations of forms of the folded axes; a refused axis refuses the combination."""
    if not axes:
        yield [], ()
        return
    for rest_kinds, rest in _axis_forms(axes[1:], split[1:]):
        for kind, first in _forms(axes[0], split[0]):
            if isinstance(rest, Refusal):
                yield [], rest
            elif isinstance(first, Refusal):
                yield [], first
            else:
                yield [*kind, *rest_kinds], (first, *rest)


def _forms(axis: ConvAxis, factor: int) -> Iterator[tuple[list[str], FoldedAxis | Refusal]]:
    if factor == 1:
        yield [], keep_axis(axis)
        return
    if axis.length is not None and axis.out_length == factor:
        yield ["whole"], fold_axis(axis, factor, axis.length)
        return
    yield ["blocked"], fold_axis(axis, factor, factor, blocked=True)
    for in_digits in sorted({factor * axis.stride, factor}, reverse=True):
        yield ["interleaved"], fold_axis(axis, factor, in_digits)


def _judge(
    site: ConvSite, options: FoldOptions, fold: ConvFold, label: str, kind: str
) -> Reformulation | Refusal:
    """Check divisibility, non-finite policy and limits; predict sizes before building anything."""
    batch = site.planned[0]
    if fold.batch > 1 and batch is None:
        return Refusal("unknown-extent", "the batch size is not known")
    in_shape = _extended(site, fold, output=False)
    out_shape = _extended(site, fold, output=True)
    for actual, extended in ((site.planned, in_shape), (site.output, out_shape)):
        if actual != extended and not options.ragged:
            axis = next(i for i, (a, e) in enumerate(zip(actual, extended, strict=True)) if a != e)
            return Refusal(
                "factor-does-not-divide",
                f"{'input' if actual is site.planned else 'output'} extent {actual[axis]} would "
                f"have to be {extended[axis]} (--ragged extends and cuts)",
            )
    if fold.dense and not options.mix_samples:
        return Refusal(
            "mixes-samples",
            "one dense group lets a NaN of one sample reach others (--mix-samples allows it)",
        )
    zeros = fold.structural_zeros()
    if zeros and options.ieee_strict:
        return Refusal(
            "structural-zeros", f"{zeros:.0%} of the weight would be zeros that spread Inf and NaN"
        )
    packings = [
        pack(shape, digits, group=site.group, batch=fold.batch)
        for shape, digits in (
            (_kept(site, in_shape, fold), [(a.in_digits, a.blocked) for a in fold.axes]),
            (_kept(site, out_shape, fold), [(a.out_digits, a.blocked) for a in fold.axes]),
        )
    ]
    views = all(p.is_view for p in packings)
    digit_major = options.layout is Layout.NHWC and not views
    fold = ConvFold(
        axes=fold.axes,
        group=fold.group,
        batch=fold.batch,
        dense=fold.dense,
        digit_major=digit_major,
    )
    result = Reformulation(
        fold=fold,
        input=packings[0],
        output=packings[1],
        in_shape=in_shape,
        out_shape=out_shape,
        axis=label,
        factor=options.factor,
        form=f"{'view' if views else 'move'} {kind}",
        flops_ratio=fold.flops_growth(site.out_lengths),
        bytes_ratio=_bytes_growth(site, fold, in_shape, out_shape),
    )
    return _unexpressible(site, result) or _too_large(site, options, result) or result


def _extended(site: ConvSite, fold: ConvFold, *, output: bool) -> Dims:
    """Shape of the input or output after extension to what the fold needs."""
    shape = site.output if output else site.planned
    lengths = [a.out_length if output else a.in_length for a in fold.axes]
    batch = None if shape[0] is None else -(-shape[0] // fold.batch) * fold.batch
    spatial = (s if e is None else e for s, e in zip(shape[2:], lengths, strict=True))
    return (batch, site.channels[output], *spatial)


def _kept(site: ConvSite, shape: Dims, fold: ConvFold) -> Dims:
    """The shape that may be written into the graph: extents of kept axes only if static."""
    batch = shape[0] if fold.batch > 1 or site.static[0] is not None else None
    spatial = (
        extent if axis.folded or fixed is not None else None
        for extent, axis, fixed in zip(shape[2:], fold.axes, site.static[2:], strict=True)
    )
    return (batch, shape[1], *spatial)


def _unexpressible(site: ConvSite, result: Reformulation) -> Refusal | None:
    """Refuse what constant Reshapes cannot say.

    A Reshape copies dimensions and infers one. And where an assumed extent is folded, the first
    Reshape must fail, not infer, when the real extent differs.
    """
    fold = result.fold
    assumed = [
        i
        for i, (plan, fixed) in enumerate(zip(site.planned, site.static, strict=True))
        if fixed is None and plan is not None and i != 1
        if (fold.batch > 1 if i == 0 else fold.axes[i - 2].folded)
    ]
    folding = result.input.steps(digit_major=fold.digit_major)
    unfolding = result.output.steps(digit_major=fold.digit_major, inverse=True)
    inferred = [
        sum(extent is None and not keep for extent, keep in zip(s.extents, s.keep, strict=True))
        for s in (*folding, *unfolding)
        if isinstance(s, Reshape)
    ]
    if max(inferred, default=0) > 1:
        return Refusal(
            "several-unknown-extents",
            "more than one extent beside the folded axis is not known; a Reshape infers one",
        )
    if assumed and (len(assumed) > 1 or inferred[0]):
        return Refusal(
            "unguarded-extent",
            "at another size than the assumed one the fold would go wrong unnoticed",
        )
    return None


def _too_large(site: ConvSite, options: FoldOptions, result: Reformulation) -> Refusal | None:
    size = math.prod(result.fold.weight_shape(site.weight.shape)) * site.itemsize
    if size > MAX_WEIGHT_BYTES:
        return Refusal(
            "weight-too-large",
            f"the weight would have {size >> 20} MiB; the limit is {MAX_WEIGHT_BYTES >> 20} MiB",
        )
    if result.bytes_ratio > options.max_bytes_growth:
        return Refusal(
            "bytes-growth",
            f"input, weight and output would grow {result.bytes_ratio:.1f}x; "
            f"--max-bytes-growth is {options.max_bytes_growth:g}",
        )
    if result.flops_ratio > options.max_flops_growth:
        return Refusal(
            "flops-growth",
            f"multiply-adds would grow {result.flops_ratio:.1f}x; "
            f"--max-flops-growth is {options.max_flops_growth:g}",
        )
    return None


def _bytes_growth(site: ConvSite, fold: ConvFold, in_shape: Dims, out_shape: Dims) -> float:
    def elements(shape: Dims) -> int:
        nominal = (1 if i == 0 else NOMINAL_EXTENT for i in range(len(shape)))
        return math.prod(n if e is None else e for e, n in zip(shape, nominal, strict=True))

    weight = math.prod(site.weight.shape)
    before = elements(site.planned) + weight + elements(site.output)
    after = elements(in_shape) + weight * fold.weight_growth() + elements(out_shape)
    return after / before


def _cost(r: Reformulation) -> tuple[bool, int, float, int, float]:
    major = r.fold.digit_major
    steps = (*r.input.steps(digit_major=major), *r.output.steps(digit_major=major))
    return (not r.is_view, r.axis.count("+"), r.flops_ratio, len(steps), r.bytes_ratio)


def _summary(refusals: Sequence[tuple[str, Refusal]]) -> Refusal:
    """One refusal for the site: per axis the candidate that got furthest, the best one first."""
    best: dict[str, Refusal] = {}
    for axis, refusal in refusals:
        if "+" in axis and best:
            continue
        known = best.get(axis)
        if known is None or PROGRESS.index(refusal.code) > PROGRESS.index(known.code):
            best[axis] = refusal
    ranked = sorted(best.items(), key=lambda item: -PROGRESS.index(item[1].code))
    return Refusal(ranked[0][1].code, "; ".join(f"{axis}: {r.reason}" for axis, r in ranked))
