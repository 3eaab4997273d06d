"""Define how folded and padded tensors lie in memory: packed layouts and padded layouts.

A packed layout is a bijection between the elements of a logical and of a packed tensor. The
channels stay on one axis, which has the same index in both, counted from the same end. So an op
that acts on each element alone, or with one number per channel, need only know that axis to run on
a packed tensor. There are two kinds.

Between Convs (`ConvLayout`) a tensor [N, C, L1, ...] has the channels (b, c, a1, a2, ...): batch
tile, channel, spatial tiles; or, tile-major, (b, a1, a2, ..., c). In a channel-major layout groups
and their channels are neighbours, so it does not depend on the groups of the Conv at either end. A
tile-major layout is for one group. `algebra.packing.pack` maps the elements.

Between products (`RowLayout`) a tile of the positions becomes channels by a single Reshape:

    weight right: [.., L, C] as [.., L/F, F*C]; m = F*m' + f;       channel f*C + c
    weight left:  [.., C, L] as [.., C*F, L/F]; m = (L/F)*f + m';   channel c*F + f

On the right, axes directly before the rows may be merged with them: L is their product, and the
packed tensor has fewer axes. Leading axes are batches and stay.

A padded layout (`PaddedLayout`) is an injection: channels with zeros behind or between them. The
channels form segments. A segment of n channels takes m >= n places, its channels the first n.
Channel c of a segment that starts at channel c0 and at place p0 lies at

    places[c] = p0 + (c - c0)

All other places are padding. `places` is strictly increasing, so channels keep their order.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from widthfold_onnx.algebra.axis import Congruence
from widthfold_onnx.algebra.packing import Move, Reshape, are_views, pack
from widthfold_onnx.arrays import Array, Dims, size_of


class PackedLayout(ABC):
    """A bijection between the elements of a logical tensor and of a packed one.

    It is for logical tensors whose extents it divides (`fits`).
    """

    @property
    @abstractmethod
    def channel_axis(self) -> int:
        """Axis of the channels, in logical and packed tensors."""

    @property
    @abstractmethod
    def channel_major(self) -> bool:
        """True if the packed positions of a channel are neighbours: channels can be joined."""

    @abstractmethod
    def rank(self, logical: int) -> int:
        """Return the rank of the packed tensor for a logical rank."""

    @abstractmethod
    def changed_axes(self, rank: int) -> frozenset[int]:
        """Return the logical axes that packing changes: folded axes and channels, at least."""

    @abstractmethod
    def fits(self, shape: Dims) -> bool:
        """Check whether this layout is valid, and fits tensors of logical extents `shape`.

        `conditions` says what must hold of open extents.
        """

    @abstractmethod
    def conditions(self, shape: Dims) -> dict[int, Congruence]:
        """Return what must hold of the open extents among the logical ones, `shape`, by axis."""

    @abstractmethod
    def smallest_shape(self, channels: int) -> tuple[int, ...]:
        """Return the smallest logical extents with `channels` channels that it fits."""

    @abstractmethod
    def moves(self, shape: Dims, *, inverse: bool = False) -> tuple[Move, ...]:
        """Return the moves that pack, or with `inverse` unpack, logical extents `shape`."""

    def is_view(self, shape: Dims) -> bool:
        """Check whether packing a tensor of logical extents `shape` moves no element in memory."""
        return are_views(self.moves(shape))

    def pack_array(self, array: Array) -> Array:
        """Pack a logical array into this layout; its extents must be divisible."""
        return apply_moves(array, self.moves(array.shape))

    def names_channels(self, axis: int, rank: int) -> bool:
        """Check whether an axis holds the channels, both at logical rank `rank` and packed."""
        return all((axis - self.channel_axis) % r == 0 for r in (rank, self.rank(rank)))

    def channel_of_each(self, count: int) -> npt.NDArray[np.int64]:
        """Return the original channel of every packed channel, for `count` channels."""
        return self.pack_array(np.indices(self.smallest_shape(count))[self.channel_axis]).ravel()

    def packed_constant(self, numbers: Array, rank: int) -> Array:
        """Return one number per channel so that it broadcasts to packed tensors of a logical rank.

        It has as few axes as possible: a runtime fuses [C] into a product, but not [1, 1, C].
        """
        packed_rank = self.rank(rank)
        trailing_axes = packed_rank - 1 - self.channel_axis % packed_rank
        return numbers.ravel()[self.channel_of_each(numbers.size)].reshape(
            -1, *(1,) * trailing_axes
        )


def apply_moves(array: Array, moves: Sequence[Move]) -> Array:
    """Return an array after the moves."""
    for move in moves:
        if isinstance(move, Reshape):
            pairs = enumerate(zip(move.extents, move.keep, strict=True))
            array = array.reshape(
                [
                    extent if extent is not None else array.shape[i] if keep else -1
                    for i, (extent, keep) in pairs
                ]
            )
        else:
            array = array.transpose(move.order)
    return array


@dataclass(frozen=True)
class ConvLayout(PackedLayout):
    """The packing of the data or the result of a Conv, [N, C, *spatial].

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

    def changed_axes(self, rank: int) -> frozenset[int]:
        """Return the folded axes and the channels."""
        return frozenset({1} | {i for i, factor in enumerate(self.factors) if factor > 1})

    def fits(self, shape: Dims) -> bool:
        """Check whether all folded extents are open or divisible, and something is packed."""
        if len(shape) != len(self.factors) or shape[1] is None:
            return False
        if min(self.factors) < 1 or self.lift not in (0, 1):
            return False
        if math.prod(self.factors) == 1 and not self.lift:
            return False
        pairs = zip(shape, self.factors, strict=True)
        return all(e is None or e % f == 0 for e, f in pairs)

    def conditions(self, shape: Dims) -> dict[int, Congruence]:
        """Return for every open folded axis that its tiles divide the extent."""
        axes = enumerate(zip(shape, self.factors, strict=True))
        return {i: Congruence(0, f) for i, (extent, f) in axes if extent is None and f > 1}

    def smallest_shape(self, channels: int) -> tuple[int, ...]:
        """Return the extents with one position per tile."""
        return (self.batch, channels, *self.factors[2:])

    def moves(self, shape: Dims, *, inverse: bool = False) -> tuple[Move, ...]:
        """Return the moves that pack, or with `inverse` unpack, logical extents `shape`."""
        packing = pack(
            shape, self.tiles, tile_major=self.tile_major, batch=self.batch, lift=self.lift
        )
        return packing.inverse_moves if inverse else packing.moves


@dataclass(frozen=True)
class RowLayout(PackedLayout):
    """The packing of data or result of a product.

    Attributes:
        factor: number F of tiles, which become channels.
        weight_on_left: positions are columns, not rows.
        merged: number of axes that make up the positions; 1 with the weight on the left.
    """

    factor: int
    weight_on_left: bool = False
    merged: int = 1

    @property
    def channel_axis(self) -> int:
        """The last axis; with the weight on the left the last but one."""
        return -2 if self.weight_on_left else -1

    @property
    def channel_major(self) -> bool:
        """True on the left, where a channel holds all tiles; on the right a tile all channels."""
        return self.weight_on_left

    def rank(self, logical: int) -> int:
        """Return the rank of the packed tensor: smaller by the axes that are merged."""
        return logical - self.merged + 1

    def changed_axes(self, rank: int) -> frozenset[int]:
        """Return the axes of positions and channels; all axes if some are merged."""
        return frozenset(range(rank - 2 if self.merged == 1 else 0, rank))

    def fits(self, shape: Dims) -> bool:
        """Check whether the factor divides the positions; at most one of their axes may be open."""
        most_axes = 1 if self.weight_on_left else len(shape) - 1
        if len(shape) < 2 or self.factor < 2 or not 1 <= self.merged <= most_axes:
            return False
        if shape[self.channel_axis] is None:
            return False
        positions = shape[self.positions(len(shape))]
        count = size_of(positions)
        return positions.count(None) == 1 if count is None else count % self.factor == 0

    def conditions(self, shape: Dims) -> dict[int, Congruence]:
        """Return the condition on the open axis of positions: F divides all positions together."""
        positions = self.positions(len(shape))
        fixed_count = math.prod(extent for extent in shape[positions] if extent is not None)
        modulus = self.factor // math.gcd(self.factor, fixed_count)
        open_axes = (i for i in range(positions.start, positions.stop) if shape[i] is None)
        return {axis: Congruence(0, modulus) for axis in open_axes if modulus > 1}

    def smallest_shape(self, channels: int) -> tuple[int, ...]:
        """Return the extents with one row or column per tile."""
        positions = (self.factor, *(1,) * (self.merged - 1))
        return (channels, *positions) if self.weight_on_left else (*positions, channels)

    def packed_shape(self, shape: Dims) -> Dims:
        """Return the packed extents for logical extents `shape`; None where they stay open."""
        positions = size_of(shape[self.positions(len(shape))])
        length = None if positions is None else positions // self.factor
        channels = shape[self.channel_axis]
        channels = None if channels is None else channels * self.factor
        batches = shape[: len(shape) - 1 - self.merged]
        return (*batches, channels, length) if self.weight_on_left else (*batches, length, channels)

    def moves(self, shape: Dims, *, inverse: bool = False) -> tuple[Reshape]:
        """Return the Reshape that packs a tensor of logical extents `shape`, or unpacks it."""
        extents, batch_axes = self.packed_shape(shape), len(shape) - 1 - self.merged
        source, result = (extents, tuple(shape)) if inverse else (tuple(shape), extents)
        return (Reshape(len(source), result, tuple(i < batch_axes for i in range(len(result)))),)

    def positions(self, rank: int) -> slice:
        """Return the axes of a tensor that make up the positions."""
        end = rank if self.weight_on_left else rank - 1
        return slice(end - self.merged, end)


@dataclass(frozen=True)
class PaddedLayout:
    """The places of channels among padding.

    Attributes:
        segments: channels and places of each segment.
    """

    segments: tuple[tuple[int, int], ...]

    @property
    def channels(self) -> int:
        """Number of channels."""
        return sum(count for count, _ in self.segments)

    @property
    def width(self) -> int:
        """Number of places: channels and padding."""
        return sum(width for _, width in self.segments)

    @property
    def is_padded(self) -> bool:
        """True if there is padding."""
        return self.width > self.channels

    @cached_property
    def places(self) -> npt.NDArray[np.intp]:
        """The place of every channel."""
        counts, widths = (np.array(column, np.intp) for column in zip(*self.segments, strict=True))
        gaps = np.cumsum(widths) - widths - (np.cumsum(counts) - counts)
        places: npt.NDArray[np.intp] = np.arange(self.channels) + np.repeat(gaps, counts)
        return places

    def expand(self, array: Array, axis: int, fill: float = 0) -> Array:
        """Insert `fill` at the padding of an axis, which holds one element per channel.

        The other numbers are copied bit for bit.
        """
        shape = list(array.shape)
        shape[axis] = self.width
        result = np.full(shape, fill, array.dtype)
        result[(slice(None),) * axis + (self.places,)] = array
        return result

    def layout_of_group(self, groups: int) -> PaddedLayout | None:
        """Return the layout of one of equal groups of channels; None if the groups differ."""
        if self.channels % groups or self.width % groups:
            return None
        starts = np.arange(groups)[:, None] * (self.width // groups)
        places = self.places.reshape(groups, -1) - starts
        if (places != places[0]).any() or places.max() >= self.width // groups:
            return None
        ends = [*places[0][1:].tolist(), self.width // groups]
        return PaddedLayout(
            tuple((1, end - place) for place, end in zip(places[0], ends, strict=True))
        )
