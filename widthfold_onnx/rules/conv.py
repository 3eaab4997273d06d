"""Which form of a Conv a fixed factor means: the cheapest on paper, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence

from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.base import LinearSite, Reformulation
from widthfold_onnx.rules.guarding import EXACT, needed_extents
from widthfold_onnx.rules.outcomes import candidates

# How far a candidate got before it was refused, worst first: the site reports the one that got
# furthest.
PROGRESS = (
    "empty-tensor",
    "one-position",
    "too-short",
    "stride-mismatch",
    "taps-cross-blocks",
    "blocks-do-not-cover",
    "factor-does-not-divide",
    "unknown-extent",
    "unguarded-extent",
    "quantized",
    "extension-unsupported",
    "several-unknown-extents",
    "mixes-samples",
    "structural-zeros",
    "weight-too-large",
    "bytes-growth",
    "flops-growth",
)


def reformulate(site: LinearSite, options: FoldOptions, factor: int) -> Reformulation | Refusal:
    """The cheapest legal form at a factor, or why there is none.

    Cheapest: one that every run can use before one that a guard keeps for some sizes, and of those
    one that leaves the batch alone, which mostly is 1; then a view before a move, one axis before
    several, then the fewest multiply-adds, then the fewest copies.
    """
    wide = is_wide(site, options)
    if wide is not None:
        return wide
    outcomes = list(candidates(site, options, factor))
    legal = [r for _, r in outcomes if isinstance(r, Reformulation)]
    if legal:
        return min(legal, key=lambda form: (_untold(site, form, options), *cost(form)))
    refusals = [(axis, r) for axis, r in outcomes if isinstance(r, Refusal)]
    if not refusals:
        return Refusal("no-such-axis", f"{site.op} folds along no axis {options.axis}")
    by_axis = furthest(refusals)
    code = next(iter(by_axis.values())).code
    return Refusal(code, "; ".join(f"{axis}: {r.reason}" for axis, r in by_axis.items()))


def _untold(site: LinearSite, form: Reformulation, options: FoldOptions) -> int:
    """0 where no guard has to test what nobody told, 1 for a spatial extent, 2 for the batch."""
    needed = needed_extents(site, form, options)
    return max((2 - min(axis, 1) for axis, e in needed.items() if e.modulus != EXACT), default=0)


def is_wide(site: LinearSite, options: FoldOptions) -> Refusal | None:
    """A refusal if both sides have channels enough to fill the lanes as they are."""
    if min(site.channels) < options.max_channels:
        return None
    inputs, outputs = site.channels
    return Refusal(
        "already-wide",
        f"{inputs} -> {outputs} channels; both sides have at least {options.max_channels} "
        "(--max-channels)",
    )


def cost(r: Reformulation) -> tuple[bool, int, float, int, float]:
    """Sort key: cheapest first, see `reformulate`."""
    steps = len(r.folding) + len(r.unfolding)
    return (not r.is_view, r.axis.count("+"), r.flops_ratio, steps, r.bytes_ratio)


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
