"""Find the equivalent form of a product of matrices at a given factor, or why there is none.

Rule: replaces MatMul, Gemm, MatMulInteger and QLinearMatMul with Reshape - the same - Reshape.
Requires: a MatMulSite; the factor divides the positions, or their product with axes of batches
    before them.
Rewrites: the weight becomes block-diagonal, with its zero point as structural zero; C, and scales
    and zero points per output channel, are repeated; alpha, beta and the orientation of the weight
    stay. Data that is stored transposed is transposed first.
Refuses: forms that mix samples, grow past the limits, or spread Inf and NaN where that is refused;
    integers are all finite, so nothing spreads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from widthfold_onnx.fold.layout import Reshape, Step
from widthfold_onnx.fold.matmul import MatMulFold
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.options import FACTORS, AxisName, FoldOptions, NonFinite
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.base import Ends, LinearSite, Reformulation
from widthfold_onnx.rules.forms import Outcome
from widthfold_onnx.rules.guarding import guard_problem
from widthfold_onnx.rules.legality import elements, too_large
from widthfold_onnx.rules.matmul_site import MatMulSite

ROWS, COLUMNS = "rows", "columns"


@dataclass(frozen=True, kw_only=True, eq=False)
class MatMulForm(Reformulation):
    """A folded product that replaces a product.

    Attributes:
        fold: the folded product.
        shape: extents of the data that the form is planned for, as the product reads it; None
            for any extent.
        transposed: the data is stored with its two last axes exchanged.
        result: extents of the result for data of `shape`.
        flat: the result has no axis of channels.
    """

    fold: MatMulFold
    shape: Dims
    transposed: bool
    result: Dims
    flat: bool

    @property
    def rests(self) -> tuple[int, ...]:
        """Per axis of the data the number that must divide its extent if it is open; 1 for any."""
        end = len(self.shape) - (0 if self.fold.left else 1)
        span = range(end - self.fold.merged, end)
        known = math.prod(self.shape[i] or 1 for i in span)
        rest = self.fold.factor // math.gcd(self.fold.factor, known)
        return tuple(rest if i in span else 1 for i in range(len(self.shape)))

    @property
    def folding(self) -> tuple[Step, ...]:
        """The Reshapes and Transposes of the data."""
        return self.fold.folding(self.shape, transposed=self.transposed)

    @property
    def unfolding(self) -> tuple[Step, ...]:
        """The Reshape of the result."""
        return self.fold.unfolding(self.result, flat=self.flat)

    def exact(self, site: LinearSite) -> Mapping[int, int]:
        """Return the extents that the form is planned for."""
        return {i: extent for i, extent in enumerate(self.shape) if extent is not None}

    def ends(self, site: LinearSite) -> Ends:
        """Return the states at both ends; none for transposed data or a result without channels.

        A product of dequantized operands has none: it has Reshapes of its own.
        """
        assert isinstance(site, MatMulSite)
        result = self.result
        if self.flat:
            result = (*result[:-2], result[-1 if self.fold.left else -2])
        if site.is_dequantized:
            return Ends(site.data_index, None, None, self.shape, result)
        state = self.fold.state
        reads = state if state.fits(self.shape) and not self.transposed else None
        returns = state if state.fits(self.result) and not self.flat else None
        why = Refusal(Code.NO_CHANNELS, "its result has no axis of channels") if self.flat else None
        return Ends(site.data_index, reads, returns, self.shape, result, why)


def every_form(site: MatMulSite, options: FoldOptions) -> Iterator[MatMulForm]:
    """Yield the legal forms at the usual factors, or if there are none at any factor up to them."""
    for factors in (FACTORS, range(2, FACTORS[-1] + 1)):
        outcomes = [o for factor in factors for _, o in candidates(site, options, factor)]
        legal = [outcome for outcome in outcomes if isinstance(outcome, MatMulForm)]
        if legal:
            yield from legal
            return


def candidates(site: MatMulSite, options: FoldOptions, factor: int) -> Iterator[Outcome]:
    """Yield the form at a factor, or its refusal; nothing for an axis that a product does not have.

    Args:
        site: the product.
        options: axis and limits are used.
        factor: positions that become channels, F >= 2.
    """
    if options.axis is AxisName.AUTO:
        merged = _fewest(site, options, factor)
        fold = MatMulFold(factor=factor, left=site.left, merged=merged)
        yield COLUMNS if site.left else ROWS, judge(site, options, fold)


def _fewest(site: MatMulSite, options: FoldOptions, factor: int) -> int:
    """Return the fewest axes of positions that the factor divides; 1 if it divides none."""
    for merged in range(1, _most(site) + 1):
        if _positions(site, options, factor, merged) is not None:
            return merged
    return 1


def judge(site: MatMulSite, options: FoldOptions, fold: MatMulFold) -> MatMulForm | Refusal:
    """Check divisibility, samples, non-finite policy and limits."""
    span, what = _span(site, fold.merged), COLUMNS if site.left else ROWS
    planned = _positions(site, options, fold.factor, fold.merged)
    if planned is None:
        return _indivisible(site, fold.factor, what)
    assumed = zip(planned, site.static[span], strict=True)
    if not options.guard_shapes and sum(w is not None and e is None for w, e in assumed) > 1:
        return Refusal(
            Code.UNGUARDED_EXTENT, f"more than one of the extents of the {what} is only assumed"
        )
    mixed = site.samples.mixed(site.planned, span, fold.factor) and not site.is_finite
    if mixed and not options.mix_samples:
        return Refusal(
            Code.MIXES_SAMPLES,
            f"the {what} may be samples of a batch, and a NaN of one would reach others "
            "(--mix-samples allows it)",
        )
    if options.nonfinite is NonFinite.REFUSE and not site.is_finite:
        return Refusal(
            Code.STRUCTURAL_ZEROS,
            f"{fold.structural_zeros():.0%} of the weight would be zeros that spread Inf and NaN",
        )
    shape = (*site.static[: span.start], *planned, *site.static[span.stop :])
    shape = tuple(site.channels[0] if i == _channel(site) else e for i, e in enumerate(shape))
    moves = fold.folding(shape, transposed=site.transposed)
    weight = math.prod(site.weight_shape)
    kept = elements(site.planned) + elements(site.output)
    result = MatMulForm(
        fold=fold,
        shape=shape,
        transposed=site.transposed,
        result=site.result(shape),
        flat=site.flat,
        axis=what,
        factor=fold.factor,
        is_view=all(isinstance(step, Reshape) for step in moves),
        kind="blocked" if site.left else "interleaved",
        flops_ratio=fold.flops_growth(),
        bytes_ratio=(kept + weight * fold.factor**2) / (kept + weight),
    )
    problem = too_large(site, options, result) or guard_problem(site, result, options)
    return problem or result


def _positions(site: MatMulSite, options: FoldOptions, factor: int, merged: int) -> Dims | None:
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


def _varies(site: MatMulSite) -> bool:
    """Check whether C differs between positions: then it fixes their number."""
    if site.addend is None:
        return False
    extents = (1, 1, *site.addend.shape)[-2:]
    return extents[-1 if site.left else -2] > 1


def _span(site: MatMulSite, merged: int) -> slice:
    """Return the axes of the data that make up the positions."""
    end = len(site.planned) - (0 if site.left else 1)
    return slice(end - merged, end)


def _channel(site: MatMulSite) -> int:
    return len(site.planned) - (2 if site.left else 1)


def _most(site: MatMulSite) -> int:
    """Return how many axes can be positions: axes before the rows too, if one matrix serves all."""
    return 1 if site.left or site.batches else len(site.planned) - 1


def _indivisible(site: MatMulSite, factor: int, what: str) -> Refusal:
    extents = site.planned[_span(site, _most(site))]
    shown = " x ".join("?" if e is None else str(e) for e in extents)
    if None in extents:
        return Refusal(
            Code.UNKNOWN_EXTENT,
            f"{shown} {what}: whether {factor} divides their number is not known",
        )
    count = math.prod(e for e in extents if e is not None)
    if count == 1:
        return Refusal(
            Code.ONE_POSITION, f"the data has one of its {what}, so there is none to move"
        )
    return Refusal(Code.FACTOR_DOES_NOT_DIVIDE, f"{count} {what} are not a multiple of {factor}")
