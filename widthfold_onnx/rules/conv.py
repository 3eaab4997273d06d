"""All equivalent forms of a Conv at a given factor, and which of them is cheapest.

Rule: replaces Conv with fold - Conv - unfold.
Requires: a ConvSite; the factor divides the folded extents, unless `ragged`.
Rewrites: batch folds (grouped, no structural zeros), axis folds blocked, interleaved or of the
    whole axis, and products of folds of several axes.
Refuses: what would grow past the limits, mix samples, or spread Inf and NaN under `ieee_strict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from widthfold_onnx.fold.axis import ConvAxis, FoldedAxis, fold_axis, keep_axis
from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.options import AxisName, FoldOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.base import ConvSite, Reformulation, axis_names
from widthfold_onnx.rules.legality import judge

Split = tuple[int, ...]
"""Factor per axis: the batch first, then every spatial axis; their product is the factor."""

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
        return min(legal, key=cost)
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
                yield label, judge(site, options, fold, label, kind)


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


def cost(r: Reformulation) -> tuple[bool, int, float, int, float]:
    """Sort key: cheapest first, see `reformulate`."""
    major = r.fold.digit_major
    steps = (*r.input.steps(digit_major=major), *r.output.steps(digit_major=major))
    return (not r.is_view, r.axis.count("+"), r.flops_ratio, len(steps), r.bytes_ratio)


def furthest(refusals: Sequence[tuple[str, Refusal]]) -> dict[str, Refusal]:
    """Per axis the refusal of the candidate that got furthest, the best one first.

    Folds of several axes are left out: what single axes lack says enough.
    """
    best: dict[str, Refusal] = {}
    for axis, refusal in refusals:
        known = best.get(axis)
        if known is None or PROGRESS.index(refusal.code) > PROGRESS.index(known.code):
            best[axis] = refusal
    single = {axis: refusal for axis, refusal in best.items() if "+" not in axis}
    return dict(sorted(single.items(), key=lambda item: -PROGRESS.index(item[1].code)))


def _summary(refusals: Sequence[tuple[str, Refusal]]) -> Refusal:
    """One refusal for the site."""
    by_axis = furthest(refusals)
    code = next(iter(by_axis.values())).code
    hint = " (--ragged extends and cuts)" if code == "factor-does-not-divide" else ""
    return Refusal(code, "; ".join(f"{axis}: {r.reason}" for axis, r in by_axis.items()) + hint)
