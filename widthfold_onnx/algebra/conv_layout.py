"""Define the layout of a tensor between folded Convs: batch and spatial tiles are channels.

A tensor [N, C, L1, ...] in a layout has the channels (b, c, a1, a2, ...): batch tile, channel,
spatial tiles; or, tile-major, (b, a1, a2, ..., c). In a channel-major layout groups and their
channels are neighbours, so that it does not depend on the groups of the Conv that reads or returns
the tensor; a tile-major layout is for one group. `algebra.packing.pack` maps the elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from widthfold_onnx.algebra.conv_axis import Extent
from widthfold_onnx.algebra.packed_layout import Dims, PackedLayout
from widthfold_onnx.algebra.packing import Step, pack


@dataclass(frozen=True)
class ConvLayout(PackedLayout):
    """The packing of a tensor, without extension.

    Attributes:
        batch: samples moved into channels.
        tiles: per spatial axis the number of tiles and whether they are blocked.
        lift: axes of extent 1 before the spatial ones.
        tile_major: order of the channels, see the module docstring.
    """

    batch: int
    tiles: tuple[tuple[int, bool], ...]
    lift: int = 0
    tile_major: bool = False

    @property
    def is_logical(self) -> bool:
        """True if nothing is packed."""
        return math.prod(self.factors) == 1 and not self.lift

    @property
    def factors(self) -> tuple[int, ...]:
        """Number of positions that became channels, per axis of [N, C, *spatial]; 1 for C."""
        return (self.batch, 1, *(count for count, _ in self.tiles))

    @property
    def channel_axis(self) -> int:
        """The second axis."""
        return 1

    @property
    def channel_major(self) -> bool:
        """True if neither samples nor tiles lie between the channels."""
        return self.batch == 1 and not self.tile_major

    def rank(self, logical: int) -> int:
        """Return the rank of the packed tensor: larger by the lift."""
        return logical + self.lift

    def involved(self, rank: int) -> frozenset[int]:
        """Return the folded axes and the channels."""
        return frozenset({1} | {i for i, factor in enumerate(self.factors) if factor > 1})

    def fits(self, shape: Dims) -> bool:
        """Check whether all folded extents are open or divisible, and something is packed."""
        if len(shape) != len(self.factors) or shape[1] is None:
            return False
        if min(self.factors) < 1 or self.lift not in (0, 1) or self.is_logical:
            return False
        pairs = zip(shape, self.factors, strict=True)
        return all(e is None or e % f == 0 for e, f in pairs)

    def conditions(self, shape: Dims) -> dict[int, Extent]:
        """Return that the tiles divide the extent of every folded axis that is open."""
        axes = enumerate(zip(shape, self.factors, strict=True))
        return {i: Extent(0, f) for i, (extent, f) in axes if extent is None and f > 1}

    def least(self, channels: int) -> tuple[int, ...]:
        """Return the extents with one position per tile."""
        return (self.batch, channels, *self.factors[2:])

    def steps(self, shape: Dims, *, inverse: bool = False) -> tuple[Step, ...]:
        """Return the moves that pack, or with `inverse` unpack, logical extents `shape`."""
        packing = pack(shape, self.tiles, batch=self.batch, lift=self.lift)
        return packing.steps(tile_major=self.tile_major, inverse=inverse)
