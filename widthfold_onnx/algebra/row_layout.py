"""Define the layout of a tensor between folded products: a tile of the positions is channels.

    weight right   [.., L, C] as [.., L/F, F*C]   m = F*m' + f           channel f*C + c
    weight left    [.., C, L] as [.., C*F, L/F]   m = (L/F)*f + m'       channel c*F + f

Each is a single Reshape. On the right, axes directly before the rows may be merged with them: L is
their product, and the packed tensor has fewer axes. Leading axes are batches and stay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from widthfold_onnx.algebra.conv_axis import Extent
from widthfold_onnx.algebra.packed_layout import Dims, PackedLayout
from widthfold_onnx.algebra.packing import Reshape
from widthfold_onnx.arrays import size_of


@dataclass(frozen=True)
class RowLayout(PackedLayout):
    """The packing of data or result of a product.

    Attributes:
        factor: number F of tiles that are channels.
        left: positions are columns, not rows.
        merged: axes that make up the positions; more than one only on the right.
    """

    factor: int
    left: bool = False
    merged: int = 1

    @property
    def channel_axis(self) -> int:
        """The last axis; with the weight on the left the last but one."""
        return -2 if self.left else -1

    @property
    def channel_major(self) -> bool:
        """True on the left, where a channel holds all tiles; on the right a tile all channels."""
        return self.left

    def rank(self, logical: int) -> int:
        """Return the rank of the packed tensor: smaller by the axes that are merged."""
        return logical - self.merged + 1

    def involved(self, rank: int) -> frozenset[int]:
        """Return the axes of positions and channels; all axes if some are merged."""
        return frozenset(range(rank - 2 if self.merged == 1 else 0, rank))

    def fits(self, shape: Dims) -> bool:
        """Check whether the factor divides the positions; one of their axes at most may be open."""
        most = 1 if self.left else len(shape) - 1
        if len(shape) < 2 or self.factor < 2 or not 1 <= self.merged <= most:
            return False
        if shape[self.channel_axis] is None:
            return False
        positions = self._positions(shape)
        if None in positions:
            return positions.count(None) == 1
        return math.prod(e for e in positions if e is not None) % self.factor == 0

    def conditions(self, shape: Dims) -> dict[int, Extent]:
        """Return what the open axis of positions needs beside the fixed ones."""
        positions = self._positions(shape)
        first = len(shape) - (1 if self.left else 1 + self.merged)
        fixed = math.prod(extent for extent in positions if extent is not None)
        rest = self.factor // math.gcd(self.factor, fixed)
        opened = (first + i for i, extent in enumerate(positions) if extent is None)
        return {axis: Extent(0, rest) for axis in opened if rest > 1}

    def least(self, channels: int) -> tuple[int, ...]:
        """Return the extents with one row or column per tile."""
        positions = (self.factor, *(1,) * (self.merged - 1))
        return (channels, *positions) if self.left else (*positions, channels)

    def extents(self, shape: Dims) -> tuple[int | None, ...]:
        """Return the packed extents for logical extents `shape`; None where they stay open."""
        positions = size_of(self._positions(shape))
        length = None if positions is None else positions // self.factor
        channels = shape[self.channel_axis]
        channels = None if channels is None else channels * self.factor
        batches = shape[: len(shape) - 1 - self.merged]
        return (*batches, channels, length) if self.left else (*batches, length, channels)

    def steps(self, shape: Dims, *, inverse: bool = False) -> tuple[Reshape]:
        """Return the Reshape that packs a tensor of logical extents `shape`, or unpacks it."""
        packed, batch_axes = self.extents(shape), len(shape) - 1 - self.merged
        there, back = (packed, tuple(shape)) if inverse else (tuple(shape), packed)
        return (Reshape(len(there), back, tuple(i < batch_axes for i in range(len(back)))),)

    def _positions(self, shape: Dims) -> tuple[int | None, ...]:
        shape = tuple(shape)
        return shape[-1:] if self.left else shape[-1 - self.merged : -1]
