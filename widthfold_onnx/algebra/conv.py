"""Fold axes of a Conv: compute its weight, bias, groups and cost.

Channel order. With groups r, channels c of a group, batch tiles b and spatial tiles a1, a2, ...

    channel-major (NCHW path)   (b, r, c, a1, a2, ...)
    tile-major    (NHWC path)   (b, r, a1, a2, ..., c)

Both keep the channels of a group together, so every fold works inside `group`. A batch fold takes
n = F*n' + b and makes F times as many groups with the same weights, W' = 1_F (x) W per group; as
one dense group it is the block-diagonal I_F (x) W.

The Conv is regrouped before it is folded (`algebra.channels`: other groups, or more channels).

Structural zeros of a weight hold the number that stands for 0: in a quantized weight its zero
point, which may differ per output channel.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.algebra.axis import UNIT, FoldedAxis
from widthfold_onnx.algebra.channels import Regrouping, regroup_bias, regroup_weight
from widthfold_onnx.algebra.layouts import ConvLayout
from widthfold_onnx.arrays import Array


@dataclass(frozen=True, kw_only=True)
class ConvFold:
    """The fold of one Conv.

    Attributes:
        axes: one entry per spatial axis; kept axes are the instance F = P = 1.
        group: groups of the regrouped Conv.
        batch: samples moved into channels.
        dense: merge all groups of the folded Conv into one, with structural zeros between them.
        tile_major: channel order, see the module docstring.
        lift: axes of extent 1 put before the spatial ones ([N, C, H, W] as [N, C, 1, H, W]): no
            arithmetic changes, but a runtime picks another kernel for another rank.
        regrouping: the change from the original to the Conv that is folded.
        summed: the Conv loses its first axis. The positions of the axis become samples, and each
            of its taps gets output channels of its own, ordered (k, a, c). After the Conv the
            results of the taps are shifted and added. A Conv of one axis becomes a product of
            matrices. The other axes are not folded, and there is one group.
    """

    axes: tuple[FoldedAxis, ...]
    group: int = 1
    batch: int = 1
    dense: bool = False
    tile_major: bool = False
    lift: int = 0
    regrouping: Regrouping = field(default_factory=Regrouping)
    summed: bool = False

    @property
    def out_factor(self) -> int:
        """Number of positions that become channels, per output channel of the regrouped Conv."""
        return self.batch * math.prod(a.out_tile for a in self.axes)

    @property
    def in_factor(self) -> int:
        """Number of positions that become channels, per input channel of the regrouped Conv."""
        return self.batch * math.prod(a.in_tile for a in self.axes)

    def channels(self, inputs: int, outputs: int) -> tuple[int, int]:
        """Return input and output channels of the folded Conv for the original channels."""
        inputs, outputs = self.regrouping.channels(inputs, outputs)
        return inputs * self.in_factor, outputs * self.out_factor * self.sums

    @property
    def sums(self) -> int:
        """Number of results that are added up for each output: one per tap, else 1."""
        return self.axes[0].kernel if self.summed else 1

    @property
    def shifts(self) -> list[tuple[int, int]]:
        """Zeros added before and after the result of each tap; a negative number cuts.

        For tap k of K: (pad_begin - k*dilation, pad_end - (K - 1 - k)*dilation).
        """
        axis = self.axes[0]
        begins = [axis.pad_begin - k * axis.dilation for k in range(axis.kernel)]
        ends = [axis.pad_end - k * axis.dilation for k in range(axis.kernel)]
        return list(zip(begins, reversed(ends), strict=True))

    @property
    def bias_tap(self) -> int | None:
        """The tap that adds the bias: the first one that reaches every position; None if none."""
        return next((k for k, pads in enumerate(self.shifts) if max(pads) <= 0), None)

    @property
    def window(self) -> tuple[FoldedAxis, ...]:
        """The axes of the folded Conv's kernel, the lifted axes first."""
        return (*[UNIT] * self.lift, *(self.axes[1:] if self.summed else self.axes))

    def layout(self, *, output: bool) -> ConvLayout:
        """Return the layout of its input or output.

        It is valid only if the tensor is neither extended nor cut, and if tile-major channels are
        of one group: the caller checks both (`rules.spatial_fold`).
        """
        tiles = tuple((a.out_tile if output else a.in_tile, a.blocked) for a in self.axes)
        return ConvLayout(self.batch, tiles, self.lift, self.tile_major)

    @property
    def new_group(self) -> int:
        """Groups of the folded Conv."""
        return 1 if self.dense else self.group * self.batch

    @property
    def kernel(self) -> tuple[int, ...]:
        """Kernel extents of the folded Conv."""
        return tuple(axis.kernel for axis in self.window)

    @property
    def key(self) -> Hashable:
        """The values that determine its weight, besides the weight of the original."""
        axes = tuple((a.out_tile, a.in_tile, a.geometry) for a in self.axes)
        channels = (self.group, self.regrouping, self.batch, self.dense, self.tile_major)
        return (axes, channels, self.lift, self.summed)

    def weight_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the folded weight for an original [O, C/group, *kernel]."""
        outputs, per_group = self.regrouping.shape(*shape[:2])
        channels = per_group * self.group * self.in_factor
        outputs *= self.out_factor * self.sums
        return (outputs, channels // self.new_group, *self.kernel)

    def weight_growth(self) -> float:
        """Return the elements of the folded weight / elements of the original."""
        return self._copies * self.regrouping.growth

    def flops_growth(self, stretch: float = 1.0) -> float:
        """Return the multiply-adds, after / before.

        A Conv multiplies every weight at every position, and the fold divides the positions by
        `out_factor`. `stretch` is output positions after extension / positions at which the
        original multiplies its weights.
        """
        return self.weight_growth() / self.out_factor * stretch

    def structural_zeros(self) -> float:
        """Return the share of structural zeros in the folded weight, 0 to 1."""
        return 1.0 - self._live_copies * self.regrouping.kept_share / self.weight_growth()

    def spread(self) -> float:
        """Return the number of outputs that Inf or NaN in one input may reach, after / before.

        On average this is elements of the folded weight / elements that are no structural zeros.
        Zeros at padded channels do not count, because they spread nothing. If the kernel reads
        padding only, no output was reached before, and the ratio is `out_factor`.
        """
        met = self._copies * self.regrouping.met_ratio
        return met / self._live_copies if self._live_copies else float(self.out_factor)

    @property
    def _copies(self) -> float:
        """Elements of the folded weight / elements of the regrouped weight."""
        per_axis = (a.out_tile * a.in_tile * a.kernel / a.original_kernel for a in self.axes)
        return self.batch * (self.batch * self.group if self.dense else 1) * math.prod(per_axis)

    @property
    def _live_copies(self) -> float:
        """The part of `_copies` that is no structural zero."""
        return self.batch * math.prod(a.taps.k.size / a.original_kernel for a in self.axes)


def fold_weight(weight: Array, fold: ConvFold, zero: npt.ArrayLike = 0) -> Array:
    """Return the weight of the folded Conv; numbers are copied bit for bit, all else is `zero`.

    >>> from widthfold_onnx.algebra.axis import ConvAxis, fold_axis
    >>> fold = ConvFold(axes=(fold_axis(ConvAxis(length=4, kernel=1), 2, 2),))
    >>> fold_weight(np.array([[[5]]]), fold).tolist()
    [[[5], [0]], [[0], [5]]]

    Args:
        weight: [O, C/group, *kernel], any dtype.
        fold: the fold.
        zero: value of structural zeros; one number, or [O, 1, ...] for one per output channel.

    Returns:
        `fold.weight_shape(weight.shape)`, same dtype.
    """
    rank = len(fold.axes)
    zeros = np.broadcast_to(np.asarray(zero, weight.dtype), (len(weight), *(1,) * (rank + 1)))
    weight, zeros = regroup_weight(weight, fold.regrouping), zeros.ravel()
    out, per_group = weight.shape[:2]
    slots = [n for a in fold.axes for n in (a.out_tile, a.in_tile, a.kernel)]
    tap_weights = np.empty((out, per_group, *slots), weight.dtype)
    tap_weights[...] = regroup_bias(zeros, fold.regrouping).reshape(out, *(1,) * (len(slots) + 1))
    # Axis i gets broadcasting dimension i, so that all combinations of taps are assigned at once.
    taps = [axis.taps for axis in fold.axes]
    targets = [_broadcastable(t, i, rank) for i, (*gfq, _) in enumerate(taps) for t in gfq]
    sources = [_broadcastable(k, i, rank) for i, (*_, k) in enumerate(taps)]
    channels: tuple[Any, ...] = (slice(None), slice(None))
    tap_weights[(*channels, *targets)] = weight[(*channels, *sources)]

    tap_weights = tap_weights.reshape(fold.group, out // fold.group, per_group, *slots)
    g, f, q = ([3 + 3 * i + part for i in range(rank)] for part in range(3))
    order = [0, *g, 1, *f, 2, *q] if fold.tile_major else [0, 1, *g, 2, *f, *q]
    inner = fold.in_factor // fold.batch * per_group
    group_weights = tap_weights.transpose(order).reshape(
        out * fold.out_factor // fold.batch, inner, fold.sums, *fold.kernel
    )
    tiled = np.concatenate([*np.moveaxis(group_weights, 2, 0)] * fold.batch)
    if not fold.dense:
        return tiled
    return _densify(tiled, fold.group * fold.batch, fold_per_channel(zeros, fold))


def fold_per_channel(numbers: Array, fold: ConvFold) -> Array:
    """Return numbers per output channel of the folded Conv: all tiles of a channel share one.

    Args:
        numbers: [O], such as the scale or zero point of a quantized weight.
        fold: the fold.

    Returns:
        [O * fold.out_factor * fold.sums], same dtype.
    """
    tiles = fold.out_factor // fold.batch
    per_group = regroup_bias(numbers, fold.regrouping).reshape(fold.group, -1)
    if fold.tile_major:
        repeated = np.tile(per_group, (1, tiles))
    else:
        repeated = np.repeat(per_group, tiles, axis=1)
    return np.tile(repeated.ravel(), fold.batch * fold.sums)


def fold_bias(bias: Array, fold: ConvFold) -> Array:
    """Return the bias of the folded Conv; with summed taps it is 0 but for `fold.bias_tap`."""
    numbers = fold_per_channel(bias, fold)
    if fold.summed:
        numbers.reshape(fold.sums, -1)[[k for k in range(fold.sums) if k != fold.bias_tap]] = 0
    return numbers


def _broadcastable(index: npt.NDArray[np.int64], axis: int, rank: int) -> npt.NDArray[np.int64]:
    """Reshape a 1-D index array to lie along one of `rank` broadcasting dimensions."""
    return index.reshape([-1 if i == axis else 1 for i in range(rank)])


def _densify(weight: Array, group: int, zeros: Array) -> Array:
    """Return a grouped weight [O, C/group, ...] as a block-diagonal one [O, C, ...] of one group.

    `zeros` [O] fills the elements outside of the blocks.
    """
    out, channels = weight.shape[:2]
    dense = np.empty((group, out // group, group, channels, *weight.shape[2:]), weight.dtype)
    dense[...] = zeros.reshape(group, -1, *(1,) * weight.ndim)
    for r, block in enumerate(np.split(weight, group)):
        dense[r, :, r] = block
    return dense.reshape(out, group * channels, *weight.shape[2:])
