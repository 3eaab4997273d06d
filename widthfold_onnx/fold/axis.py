"""One spatial axis of a Conv, folded: where every tap of the kernel goes.

Conv along one axis, kernel extent K, stride s, dilation d, begin pad p:

    y[j] = sum_k W[k] * x[s*j + d*k - p]            x is zero outside [0, L)

Split the output into F digits and the input into P digits. Interleaved, the digit is the inner
part of the index (j = F*j' + g, i = P*i' + f); blocked, it is the outer part
(j = J'*g + j', i = L'*f + i'). With t = s*(g's weight)*g + d*k - p, either way

    interleaved   (q, f) = divmod(t, P)             stride' = s*F / P
    blocked       (f, q) = divmod(t, L')            stride' = s, and no tap may leave its block

tap k of output digit g reads input digit f at position stride'*j' + q. For a fixed g distinct k
give distinct t, so every weight is placed once and none is added. Everything known by a name is
an instance: K = 1 is block-diagonal (the width folding of the paper), K > 1 Toeplitz, F = 1 with
P = s space-to-depth, F = J with P = L the whole axis (only j' = 0 exists, so stride' is free and
taps that always read padding are dropped). Derivation: DESIGN, "The algebra of one axis".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from widthfold_onnx.refusal import Refusal

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ConvAxis:
    """Geometry of one spatial axis. `length` is None where the input's extent is not known."""

    length: int | None
    kernel: int
    stride: int = 1
    dilation: int = 1
    pad_begin: int = 0
    pad_end: int = 0

    @property
    def out_length(self) -> int | None:
        """Output extent J; can be <= 0 where the kernel is larger than the padded input."""
        if self.length is None:
            return None
        span = self.dilation * (self.kernel - 1) + 1
        return (self.length + self.pad_begin + self.pad_end - span) // self.stride + 1


@dataclass(frozen=True, kw_only=True, eq=False)
class FoldedAxis:
    """The folded axis: a Conv axis again, with digits that become channels.

    Tap n takes the original weight at `k[n]` to output digit `g[n]`, input digit `f[n]`, kernel
    position `q[n]`. `in_length` and `out_length` are the extents that the fold needs: the input
    is zero-extended to `in_length` before it, the output cut back from `out_length` after it
    (None: the axis is kept and its extent does not matter).
    """

    original_kernel: int
    out_digits: int
    in_digits: int
    blocked: bool
    kernel: int
    stride: int
    dilation: int
    pad_begin: int
    pad_end: int
    in_length: int | None
    out_length: int | None
    g: Index
    f: Index
    q: Index
    k: Index

    @property
    def folded(self) -> bool:
        """Whether any position moves into channels."""
        return self.out_digits * self.in_digits > 1


def keep_axis(axis: ConvAxis) -> FoldedAxis:
    """The axis as it is: the instance F = P = 1, for which no extent needs to be known."""
    taps = np.arange(axis.kernel)
    zero = np.zeros_like(taps)
    return FoldedAxis(
        original_kernel=axis.kernel,
        out_digits=1,
        in_digits=1,
        blocked=False,
        kernel=axis.kernel,
        stride=axis.stride,
        dilation=axis.dilation,
        pad_begin=axis.pad_begin,
        pad_end=axis.pad_end,
        in_length=None,
        out_length=None,
        g=zero,
        f=zero,
        q=taps,
        k=taps,
    )


def fold_axis(
    axis: ConvAxis, out_digits: int, in_digits: int, *, blocked: bool = False
) -> FoldedAxis | Refusal:
    """Fold one axis by F = `out_digits` on the output and P = `in_digits` on the input.

    The extents need not be divisible: the result says to which lengths they must be extended.

    Args:
        axis: the axis; its length must be known.
        out_digits: F >= 1.
        in_digits: P >= 1.
        blocked: digits are the outer part of the index.

    Returns:
        The folded axis, or why there is none.
    """
    length, count = axis.length, axis.out_length
    if length is None or count is None:
        return Refusal("unknown-extent", "the extent of the axis is not known")
    if length < 1 or count < 1:
        return Refusal("empty-tensor", f"the axis goes from {length} to {count} positions")
    out_rest = -(-count // out_digits)
    in_rest = axis.stride * out_rest if blocked else -(-length // in_digits)
    if in_rest * in_digits < length:
        return Refusal(
            "blocks-do-not-cover",
            f"{in_digits} blocks of {in_rest} positions do not cover the input's {length}",
        )
    stride = 1 if out_rest == 1 else axis.stride
    if not blocked and out_rest > 1:
        stride, rest = divmod(axis.stride * out_digits, in_digits)
        if rest:
            return Refusal(
                "stride-mismatch",
                f"input factor {in_digits} does not divide stride {axis.stride} times "
                f"factor {out_digits}",
            )
    g, k = (a.ravel() for a in np.indices((out_digits, axis.kernel)))
    weight_of_g = out_rest if blocked else 1
    t = axis.stride * weight_of_g * g + axis.dilation * k - axis.pad_begin
    last = stride * (out_rest - 1)
    if blocked:
        f, q = np.divmod(t, in_rest)
        live = (f >= 0) & (f < in_digits)
        if np.any(q + last >= in_rest):
            return Refusal(
                "taps-cross-blocks",
                f"a kernel of {axis.kernel} at stride {axis.stride} and pad {axis.pad_begin} "
                "reads across the border of a block",
            )
    else:
        q, f = np.divmod(t, in_digits)
        # The tap reads q, q + stride', ..., q + last; it is dead if none of them lies in the input.
        first_inside = np.maximum(q, q % stride)
        live = (first_inside < in_rest) & (first_inside <= q + last)
    g, f, q, k = g[live], f[live], q[live], k[live]
    return _place(axis, out_digits, in_digits, blocked, stride, in_rest, out_rest, (g, f, q, k))


def _place(
    axis: ConvAxis,
    out_digits: int,
    in_digits: int,
    blocked: bool,
    stride: int,
    in_rest: int,
    out_rest: int,
    taps: tuple[Index, Index, Index, Index],
) -> FoldedAxis:
    """Choose kernel extent, dilation and pads for taps at positions q; pads are never negative.

    Where the taps start right of position 0 or end before the last position that is read, zero
    taps are added: an ONNX Conv cannot skip input by itself.
    """
    g, f, q, k = taps
    low = int(q.min()) if q.size else 0
    dilation = int(np.gcd.reduce(q - low)) if q.size else 0
    dilation = dilation or 1
    low -= max(0, -(-low // dilation)) * dilation
    kernel = (int(q.max()) - low) // dilation + 1 if q.size else 1
    needed = (out_rest - 1) * stride + (kernel - 1) * dilation + 1 - in_rest + low
    missing = max(0, -(-(1 - stride - needed) // dilation))
    return FoldedAxis(
        original_kernel=axis.kernel,
        out_digits=out_digits,
        in_digits=in_digits,
        blocked=blocked,
        kernel=kernel + missing,
        stride=stride,
        dilation=dilation,
        pad_begin=-low,
        pad_end=max(0, needed + missing * dilation),
        in_length=in_digits * in_rest,
        out_length=out_digits * out_rest,
        g=g,
        f=f,
        q=(q - low) // dilation,
        k=k,
    )
