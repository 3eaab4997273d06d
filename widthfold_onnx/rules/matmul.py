"""Find the equivalent form of a product of matrices at a given factor, or why there is none.

Rule: replaces MatMul, Gemm, MatMulInteger and QLinearMatMul with Reshape - the same - Reshape.
Requires: a LinearSite; the factor divides the positions, or their product with axes of batches
    before them.
Rewrites: the weight becomes block-diagonal, with its zero point as structural zero; C, and scales
    and zero points per output channel, are repeated; alpha, beta and the orientation of the weight
    stay. Data that is stored transposed is transposed first.
Refuses: forms that mix samples, grow past the limits, or spread Inf and NaN where that is refused;
    integers are all finite, so nothing spreads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from widthfold_onnx.fold.axis import fold_axis
from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.fold.conv_axis import ConvAxis
from widthfold_onnx.fold.layout import Reshape, Step, Transpose
from widthfold_onnx.fold.row_state import RowState
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.options import FACTORS, AxisName, FoldOptions, NonFinite
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.base import Ends, LinearSite, Reformulation
from widthfold_onnx.rules.forms import Outcome
from widthfold_onnx.rules.legality import elements, too_large

ROWS, COLUMNS = "rows", "columns"


@dataclass(frozen=True, kw_only=True, eq=False)
class MatMulForm(Reformulation):
    """A folded product that replaces a product.

    Attributes:
        state: how data and result are packed.
        shape: extents of the data that the form is planned for, as the product reads it; None
            for any extent.
        transposed: the data is stored with its two last axes exchanged.
        result: extents of the result for data of `shape`.
        flat: the result has no axis of channels.
    """

    state: RowState
    shape: Dims
    transposed: bool
    result: Dims
    flat: bool

    @property
    def rests(self) -> tuple[int, ...]:
        """Per axis of the data the number that must divide its extent if it is open; 1 for any."""
        end, factor = len(self.shape) - (0 if self.state.left else 1), self.factor
        span = range(end - self.state.merged, end)
        known = math.prod(self.shape[i] or 1 for i in span)
        rest = factor // math.gcd(factor, known)
        return tuple(rest if i in span else 1 for i in range(len(self.shape)))

    @property
    def folding(self) -> tuple[Step, ...]:
        """The Reshapes and Transposes of the data."""
        return folding(self.state, self.shape, transposed=self.transposed)

    @property
    def unfolding(self) -> tuple[Step, ...]:
        """The Reshape of the result."""
        return unfolding(self.state, self.result, flat=self.flat)

    @property
    def extended(self) -> tuple[Dims, Dims]:
        """Extents of input and output, which are never extended."""
        return self.shape, self.result

    def ends(self, site: LinearSite) -> Ends:
        """Return the states at both ends; none for transposed data or a result without channels.

        A product of dequantized operands has none: it has Reshapes of its own.
        """
        result = self.result
        if self.flat:
            result = (*result[:-2], result[-1 if self.state.left else -2])
        if site.is_dequantized:
            return Ends(site.data_index, None, None, self.shape, result)
        state = self.state
        reads = state if state.fits(self.shape) and not self.transposed else None
        returns = state if state.fits(self.result) and not self.flat else None
        why = Refusal("no-channels", "its result has no axis of channels") if self.flat else None
        return Ends(site.data_index, reads, returns, self.shape, result, why)


def fold_of(site: LinearSite, factor: int) -> ConvFold:
    """Return the fold of a product: a Conv of kernel 1, every matrix a group."""
    axis = fold_axis(ConvAxis(length=None, kernel=1), factor, factor, blocked=site.left)
    assert not isinstance(axis, Refusal)
    return ConvFold(axes=(axis,), group=site.group, digit_major=not site.left)


def folding(state: RowState, shape: Dims, *, transposed: bool = False) -> tuple[Step, ...]:
    """Return the moves that fold the data.

    Args:
        state: how it is packed.
        shape: natural extents; None where they may not be written into the graph.
        transposed: the data is stored with its two last axes exchanged.
    """
    steps = state.steps(shape)
    if transposed and 1 not in shape[-2:]:  # else both are the same in memory
        order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        return (Transpose(order, tuple(shape[i] for i in order)), *steps)
    return steps


def unfolding(state: RowState, shape: Dims, *, flat: bool = False) -> tuple[Step, ...]:
    """Return the move that unfolds the result.

    Args:
        state: how it is packed.
        shape: natural extents; None where they may not be written into the graph.
        flat: the weight has one axis, so the result has no axis of channels.
    """
    (step,) = state.steps(shape, inverse=True)
    if not flat:
        return (step,)
    axis = state.channel_axis % len(shape)
    others = [i for i in range(len(shape)) if i != axis]
    extents = tuple(step.extents[i] for i in others)
    return (Reshape(step.rank, extents, tuple(step.keep[i] for i in others)),)


def every_form(site: LinearSite, options: FoldOptions) -> Iterator[MatMulForm]:
    """Yield the legal forms at the usual factors, or if there are none at any factor up to them."""
    for factors in (FACTORS, range(2, FACTORS[-1] + 1)):
        outcomes = [o for factor in factors for _, o in candidates(site, options, factor)]
        legal = [outcome for outcome in outcomes if isinstance(outcome, MatMulForm)]
        if legal:
            yield from legal
            return


def candidates(site: LinearSite, options: FoldOptions, factor: int) -> Iterator[Outcome]:
    """Yield the form at a factor, or its refusal; nothing for an axis that a product does not have.

    Args:
        site: the product.
        options: axis and limits are used.
        factor: positions that become channels, F >= 2.
    """
    if options.axis is AxisName.AUTO:
        merged = _fewest(site, options, factor)
        state = RowState(factor, site.left, merged)
        yield COLUMNS if site.left else ROWS, judge(site, options, state)


def _fewest(site: LinearSite, options: FoldOptions, factor: int) -> int:
    """Return the fewest axes of positions that the factor divides; 1 if it divides none."""
    for merged in range(1, _most(site) + 1):
        if _positions(site, options, factor, merged) is not None:
            return merged
    return 1


def judge(site: LinearSite, options: FoldOptions, state: RowState) -> MatMulForm | Refusal:
    """Check divisibility, samples, non-finite policy and limits."""
    span, what = _span(site, state.merged), COLUMNS if site.left else ROWS
    factor, fold = state.factor, fold_of(site, state.factor)
    planned = _positions(site, options, factor, state.merged)
    if planned is None:
        return _indivisible(site, factor, what)
    assumed = zip(planned, site.static[span], strict=True)
    if not options.guard_shapes and sum(w is not None and e is None for w, e in assumed) > 1:
        return Refusal(
            "unguarded-extent", f"more than one of the extents of the {what} is only assumed"
        )
    assert site.samples is not None
    mixed = site.samples.mixed(site.planned, span, factor) and not site.is_finite
    if mixed and not options.mix_samples:
        return Refusal(
            "mixes-samples",
            f"the {what} may be samples of a batch, and a NaN of one would reach others "
            "(--mix-samples allows it)",
        )
    if options.nonfinite is NonFinite.REFUSE and not site.is_finite:
        return Refusal(
            "structural-zeros",
            f"{fold.structural_zeros():.0%} of the weight would be zeros that spread Inf and NaN",
        )
    shape = (*site.static[: span.start], *planned, *site.static[span.stop :])
    shape = tuple(site.channels[0] if i == _channel(site) else e for i, e in enumerate(shape))
    moves = folding(state, shape, transposed=site.transposed)
    weight = math.prod(site.weight_shape)
    kept = elements(site.planned) + elements(site.output)
    result = MatMulForm(
        fold=fold,
        state=state,
        shape=shape,
        transposed=site.transposed,
        result=site.result(shape),
        flat=site.flat,
        axis=what,
        factor=factor,
        is_view=all(isinstance(step, Reshape) for step in moves),
        kind="blocked" if site.left else "interleaved",
        flops_ratio=fold.flops_growth(),
        bytes_ratio=(kept + weight * fold.weight_growth()) / (kept + weight),
    )
    return too_large(site, options, result) or result


def _positions(site: LinearSite, options: FoldOptions, factor: int, merged: int) -> Dims | None:
    """Return the extents of the positions that a form is planned for; None if it cannot be.

    The extents that the model fixes are enough if the factor divides their product and at most one
    other is open: it is inferred. Otherwise all must be planned: the Reshape fails if the factor
    does not divide the real ones. Or a guard tests the one open extent, if no input shape assumes
    it: the factor does not divide an assumed one here, so the guard would never choose the fold.
    """
    span = _span(site, merged)
    for extents, open_ones in ((site.static[span], 1), (site.planned[span], 0)):
        known = [e for e in extents if e is not None]
        if len(extents) - len(known) <= open_ones and math.prod(known) % factor == 0:
            return extents
    unknown = site.planned[span]
    guarded = options.guard_shapes and unknown == site.static[span] and unknown.count(None) == 1
    return unknown if guarded and not _varies(site) else None


def _varies(site: LinearSite) -> bool:
    """Check whether C differs between positions: then it fixes their number."""
    if site.bias is None:
        return False
    extents = (1, 1, *site.bias.shape)[-2:]
    return extents[-1 if site.left else -2] > 1


def _span(site: LinearSite, merged: int) -> slice:
    """Return the axes of the data that make up the positions."""
    end = len(site.planned) - (0 if site.left else 1)
    return slice(end - merged, end)


def _channel(site: LinearSite) -> int:
    return len(site.planned) - (2 if site.left else 1)


def _most(site: LinearSite) -> int:
    """Return how many axes can be positions: axes before the rows too, if one matrix serves all."""
    return 1 if site.left or site.batches else len(site.planned) - 1


def _indivisible(site: LinearSite, factor: int, what: str) -> Refusal:
    extents = site.planned[_span(site, _most(site))]
    shown = " x ".join("?" if e is None else str(e) for e in extents)
    if None in extents:
        return Refusal(
            "unknown-extent",
            f"{shown} {what}: whether {factor} divides their number is not known",
        )
    count = math.prod(e for e in extents if e is not None)
    if count == 1:
        return Refusal("one-position", f"the data has one of its {what}, so there is none to move")
    return Refusal("factor-does-not-divide", f"{count} {what} are not a multiple of {factor}")
