"""Fold one spatial axis of a Conv: find where every tap of the kernel goes.

Conv along one axis, kernel extent K, stride s, dilation d, begin pad p, base dilation u:

    y[j] = sum_k W[k] * x[i]    where u*i = s*j + d*k - p; x is zero outside [0, L)

A Conv has u = 1. A larger u puts u - 1 zeros between two positions of x: a tap reads one of them
if u does not divide the right side. With s = 1 this is a ConvTranspose of stride u with a mirrored
kernel (XLA calls u the base dilation, dumoulin2016 "fractionally strided").

Split the output into F tiles and the input into P tiles. Interleaved, the tile is the inner
part of the index (j = F*j' + g, i = P*i' + f); blocked, it is the outer part
(j = J'*g + j', i = L'*f + i').

    interleaved   (q, u*f) = divmod(s*g + d*k - p, u*P)     stride' = s*F / (u*P)

    blocked       (f, q) = divmod(s*J'*g + d*k - p, L')     stride' = s, and u = 1

The blocked form is legal where no tap leaves its block. In both forms tap k of output tile g reads
input tile f at position stride'*j' + q; if u does not divide the remainder, the tap reads zeros
only and is dropped. For a fixed g distinct k give distinct f and q, so every weight is placed once
and none is added. All named folds are instances:

    K = 1             block-diagonal, the width folding of the paper
    K > 1             Toeplitz
    F = 1, P = s      space-to-depth
    P = 1             sub-pixel convolution: F = u for a ConvTranspose; any F for a Conv, with
                      stride' = s*F: each tile makes the kernel only s positions longer, so that
                      this has the fewest zeros
    F = J, P = L      the whole axis: only j' = 0 exists, so stride' is free, and taps that
                      always read padding are dropped
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from widthfold_onnx.refusal import Code, Refusal

Index = npt.NDArray[np.int64]


class Congruence(NamedTuple):
    """A condition on an extent: extent = remainder (mod modulus)."""

    remainder: int
    modulus: int


NO_CONDITION = Congruence(0, 1)
"""The condition that every extent meets."""


class Tiling(NamedTuple):
    """Tiles of an axis, and the positions of each tile, in output and input.

    Attributes:
        out_tile: F.
        in_tile: P.
        out_rest: output positions per tile.
        in_rest: input positions per tile.
        stride: stride'.
        blocked: tiles are the outer part of the index.
    """

    out_tile: int
    in_tile: int
    out_rest: int
    in_rest: int
    stride: int
    blocked: bool


class Taps(NamedTuple):
    """The taps that are kept, one element per tap in each vector.

    Tap n moves the weight from `k[n]` to `q[n]`, between input tile `f[n]` and output tile `g[n]`.

    Attributes:
        g: output tiles.
        f: input tiles.
        q: positions in the folded kernel.
        k: positions in the original kernel.
    """

    g: Index
    f: Index
    q: Index
    k: Index

    def where(self, is_kept: npt.NDArray[np.bool_]) -> Taps:
        """Return the taps that a mask keeps."""
        return Taps(*(vector[is_kept] for vector in self))


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """The kernel of a Conv along one axis."""

    kernel: int
    stride: int = 1
    dilation: int = 1
    pad_begin: int = 0
    pad_end: int = 0

    def output_extent(self, dilated_extent: int) -> int:
        """Return the output extent for an input with the zeros of its base dilation.

        It can be <= 0 if the kernel is larger than the padded input.
        """
        span = self.dilation * (self.kernel - 1) + 1
        return (dilated_extent + self.pad_begin + self.pad_end - span) // self.stride + 1


@dataclass(frozen=True, kw_only=True)
class ConvAxis(Window):
    """Geometry of one spatial axis. `length` is None if the input's extent is not known.

    Pads count positions of the input with the zeros of its base dilation; a negative pad crops.

    Attributes:
        is_open: the model leaves the extent open; `length`, if known, is only one example.
        pad_period: extents of an open axis that differ by a multiple of it have the same pads.
    """

    length: int | None
    base_dilation: int = 1
    is_open: bool = False
    pad_period: int = 1

    @property
    def out_length(self) -> int | None:
        """Output extent J."""
        if self.length is None:
            return None
        return self.output_extent(self.base_dilation * (self.length - 1) + 1)

    @property
    def positions(self) -> int | None:
        """Number of positions at which every tap is multiplied, also where it reads padding.

        These are the output positions, or with a base dilation the input positions.
        """
        return self.out_length if self.base_dilation == 1 else self.length


@dataclass(frozen=True, kw_only=True, eq=False)
class FoldedAxis(Window):
    """The folded axis: a Conv axis again, with tiles that become channels.

    The input is zero-extended to `extended_length` before the fold, and the output is cut back from
    `extended_out_length` after it. Both are None if the axis is kept or its extent is not known.
    The fold of an open axis is right for every extent that meets `condition`; each of them is
    extended, and its output cut, by the same number of positions.
    """

    original_kernel: int
    out_tile: int = 1
    in_tile: int = 1
    blocked: bool = False
    extended_length: int | None = None
    extended_out_length: int | None = None
    taps: Taps
    condition: Congruence = NO_CONDITION

    @property
    def is_folded(self) -> bool:
        """True if any position moves into channels."""
        return self.out_tile * self.in_tile > 1

    @property
    def geometry(self) -> tuple[object, ...]:
        """Kernel, stride, dilation, pads and taps, without the extents."""
        numbers = (self.kernel, self.stride, self.dilation, self.pad_begin, self.pad_end)
        return (*numbers, *(vector.tobytes() for vector in self.taps))


def keep_axis(axis: ConvAxis) -> FoldedAxis:
    """Return the axis unfolded: F = P = u = 1. Its extent may be unknown.

    A negative pad becomes taps of weight zero at that end of the kernel.
    """
    taps = np.arange(axis.kernel)
    zero = np.zeros_like(taps)
    begin, end = (max(0, -(pad // axis.dilation)) for pad in (axis.pad_begin, axis.pad_end))
    return FoldedAxis(
        original_kernel=axis.kernel,
        kernel=begin + axis.kernel + end,
        stride=axis.stride,
        dilation=axis.dilation,
        pad_begin=axis.pad_begin + begin * axis.dilation,
        pad_end=axis.pad_end + end * axis.dilation,
        taps=Taps(zero, zero, taps + begin, taps),
        condition=Congruence((axis.length or 0) % axis.pad_period, axis.pad_period),
    )


UNIT = keep_axis(ConvAxis(length=1, kernel=1))
"""An unfolded axis of one position and a kernel of 1, as a lift adds it."""


@lru_cache(maxsize=256)  # combinations of a layer's axes ask for the same fold many times
def fold_axis(
    axis: ConvAxis, out_tile: int, in_tile: int, *, blocked: bool = False
) -> FoldedAxis | Refusal:
    """Fold one axis by F = `out_tile` on the output and P = `in_tile` on the input.

    The extents need not be divisible: the result holds the lengths to which they must be extended.
    The fold of an open axis is right for all lengths that differ from this one by a multiple of
    `condition.modulus`. If the length is not known, it is right for the multiples of the modulus.

    >>> fold = fold_axis(ConvAxis(length=8, kernel=3, pad_begin=1, pad_end=1), 2, 2)
    >>> fold.kernel, fold.stride, fold.taps.k.size  # 6 of 2 * 2 * 3 entries are taps
    (3, 1, 6)

    Args:
        axis: the axis.
        out_tile: F >= 1.
        in_tile: P >= 1.
        blocked: tiles are the outer part of the index.

    Returns:
        The folded axis, or why there is none.
    """
    length, count = axis.length, axis.out_length
    if axis.is_open or length is None or count is None:
        return _fold_open(axis, out_tile, in_tile, blocked=blocked)
    if length < 1 or count < 1:
        return Refusal(Code.EMPTY_TENSOR, f"the axis goes from {length} to {count} positions")
    fold = _fold_blocked if blocked else _fold_interleaved
    return fold(axis, length, count, out_tile, in_tile)


def _fold_interleaved(
    axis: ConvAxis, length: int, count: int, out_tile: int, in_tile: int
) -> FoldedAxis | Refusal:
    """Fold an axis of `length` input and `count` output positions, tiles inside."""
    out_rest, in_rest = -(-count // out_tile), -(-length // in_tile)
    base, stride = axis.base_dilation, 1
    if out_rest > 1:
        stride, remainder = divmod(axis.stride * out_tile, base * in_tile)
        if remainder:
            times = f"input factor {in_tile}" + (f" times {base}" if base > 1 else "")
            reason = f"{times} does not divide stride {axis.stride} times factor {out_tile}"
            return Refusal(Code.STRIDE_MISMATCH, reason)
    g, k, t = _meeting(axis, out_tile, 1)
    q, f = np.divmod(t // base, in_tile)
    # The tap reads q, q + stride, ...: it is dead if none of these positions lies in the input.
    first_inside, last = np.maximum(q, q % stride), stride * (out_rest - 1)
    is_live = (first_inside < in_rest) & (first_inside <= q + last)
    tiling = Tiling(out_tile, in_tile, out_rest, in_rest, stride, blocked=False)
    return _folded_axis(axis, tiling, Taps(g, f, q, k).where(is_live))


def _fold_blocked(
    axis: ConvAxis, length: int, count: int, out_tile: int, in_tile: int
) -> FoldedAxis | Refusal:
    """Fold an axis of `length` input and `count` output positions, tiles outside."""
    out_rest = -(-count // out_tile)
    in_rest, stride = axis.stride * out_rest, 1 if out_rest == 1 else axis.stride
    if in_rest * in_tile < length:
        return Refusal(
            Code.BLOCKS_DO_NOT_COVER,
            f"{in_tile} blocks of {in_rest} positions do not cover the input's {length}",
        )
    if axis.base_dilation > 1:
        reason = f"positions of a block stay {axis.base_dilation} apart in the output"
        return Refusal(Code.STRIDE_MISMATCH, reason)
    g, k, t = _meeting(axis, out_tile, out_rest)
    f, q = np.divmod(t, in_rest)
    if np.any(q + stride * (out_rest - 1) >= in_rest):
        return Refusal(
            Code.TAPS_CROSS_BLOCKS,
            f"a kernel of {axis.kernel} at stride {axis.stride} and pad {axis.pad_begin} "
            "reads across the border of a block",
        )
    tiling = Tiling(out_tile, in_tile, out_rest, in_rest, stride, blocked=True)
    return _folded_axis(axis, tiling, Taps(g, f, q, k).where((f >= 0) & (f < in_tile)))


def _meeting(axis: ConvAxis, out_tile: int, tile_step: int) -> tuple[Index, Index, Index]:
    """Return g, k and t of the taps that read a position of x: u divides t.

    t = s * tile_step * g + d*k - p. Whether u divides it depends on g modulo u only, so at most u
    of the g are tried: all of them would take gigabytes for the inverse of an STFT, where u is in
    the thousands.
    """
    base, step = axis.base_dilation, axis.stride * tile_step
    taps = axis.dilation * np.arange(axis.kernel) - axis.pad_begin
    residues, k = np.nonzero((step * np.arange(min(base, out_tile))[:, None] + taps) % base == 0)
    g = (np.arange(0, out_tile, base)[:, None] + residues).ravel()
    k = np.tile(k, -(-out_tile // base))[g < out_tile]
    g = g[g < out_tile]
    return g, k, step * g + taps[k]


def _fold_open(
    axis: ConvAxis, out_tile: int, in_tile: int, *, blocked: bool
) -> FoldedAxis | Refusal:
    """Fold an open axis, if all lengths with its residue modulo the period have the same fold.

    The period is M = lcm(P, s*F / gcd(s*F, u), `pad_period`). If the input grows by M, the output
    grows by u*M/s, a multiple of F, and the pads repeat: so both need the same extension as before.
    Whether taps and pads stay the same, too, is tried at two neighbouring lengths. Where these
    agree all others do, as the shorter one already has room for all taps.
    """
    growth = axis.stride * out_tile
    period = math.lcm(in_tile, growth // math.gcd(growth, axis.base_dilation), axis.pad_period)
    remainder = (axis.length or 0) % period
    reach = axis.dilation * axis.kernel + abs(axis.pad_begin) + abs(axis.pad_end)
    folds = []
    for times in (reach + 2, reach + 3):
        fixed_axis = replace(axis, is_open=False, length=remainder + times * period)
        fold = fold_axis(fixed_axis, out_tile, in_tile, blocked=blocked)
        if isinstance(fold, Refusal):
            return fold
        extension = (fold.extended_length or 0) - (fixed_axis.length or 0)
        surplus = (fold.extended_out_length or 0) - (fixed_axis.out_length or 0)
        folds.append((fold, extension, surplus))
    (first, extension, surplus), (second, *second_growth) = folds
    if first.geometry != second.geometry or second_growth != [extension, surplus]:
        return Refusal(Code.UNKNOWN_EXTENT, "where the taps go depends on the open extent")
    if axis.length is None and (extension or surplus):
        return Refusal(
            Code.UNKNOWN_EXTENT,
            f"the extent is not known, and multiples of {period} are extended by {extension} "
            f"positions and cut by {surplus}",
        )
    return replace(
        first,
        extended_length=None if axis.length is None else axis.length + extension,
        extended_out_length=None if axis.out_length is None else axis.out_length + surplus,
        condition=Congruence(remainder, period),
    )


def _folded_axis(axis: ConvAxis, tiling: Tiling, taps: Taps) -> FoldedAxis:
    """Choose kernel extent, dilation and pads for taps at positions q; no pad is negative.

    Taps of weight zero are added if the first tap lies behind position 0, or if a stride or more of
    the input would stay unread at its end: an ONNX Conv cannot skip input.
    """
    q, stride = taps.q, tiling.stride
    low = int(q.min()) if q.size else 0
    dilation = int(np.gcd.reduce(q - low)) if q.size else 0
    dilation = dilation or 1
    # A pad may not be negative: the first tap moves left by whole dilations, to 0 or below.
    low -= max(0, -(-low // dilation)) * dilation
    kernel = (int(q.max()) - low) // dilation + 1 if q.size else 1
    last_read = (tiling.out_rest - 1) * stride + (kernel - 1) * dilation + low
    needed = last_read + 1 - tiling.in_rest
    extra_taps = max(0, -(-(1 - stride - needed) // dilation))
    return FoldedAxis(
        original_kernel=axis.kernel,
        out_tile=tiling.out_tile,
        in_tile=tiling.in_tile,
        blocked=tiling.blocked,
        kernel=kernel + extra_taps,
        stride=stride,
        dilation=dilation,
        pad_begin=-low,
        pad_end=max(0, needed + extra_taps * dilation),
        extended_length=tiling.in_tile * tiling.in_rest,
        extended_out_length=tiling.out_tile * tiling.out_rest,
        taps=taps._replace(q=(q - low) // dilation),
    )
