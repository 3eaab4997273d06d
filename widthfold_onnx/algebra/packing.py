"""Pack and unpack a tensor by Reshapes and Transposes, as few as the order allows.

A tensor [N, C, L1, L2, ...] consists of atoms: N of (n, b), C of groups and channels (r, c), a
folded axis Li of its tile and its rest (interleaved: rest then tile; blocked: tile then rest).
A packing is a sequence of arrangements of atoms. Two neighbouring arrangements differ by a Reshape
if the atoms with an extent above 1 keep their order. Otherwise they differ by a Transpose. An axis
is cut no further than packing needs, so that unknown extents mostly keep their place.

    NCHW path   cut - order as (n | b r c a.. | rest..) - merge
    NHWC path   to channels-last - cut - order as (n | rest.. | b r a.. c) - merge - to NCHW

The NCHW path gives channel-major channels, the NHWC path tile-major ones (see `algebra.conv`).
In the NHWC path the two outer Transposes cancel against a channels-last runtime's own, and
packing the last axis needs no other Transpose: one Reshape stands between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

from widthfold_onnx.arrays import Dims, size_of

Axis = tuple[str, ...]
Arrangement = tuple[Axis, ...]

CACHED_PACKINGS = 8192
"""Packings that are kept: 8,700 forms of a net of 23 layers share 2,900 on each path."""


@dataclass(frozen=True)
class Reshape:
    """A row-major regrouping.

    Attributes:
        rank: number of axes before the Reshape.
        extents: extents after it, None where unknown.
        keep: `keep[i]` says that axis i has the same extent before, so that a 0 copies it.
    """

    rank: int
    extents: Dims
    keep: tuple[bool, ...]

    @property
    def inferred(self) -> int:
        """Number of extents that the runtime must infer; it can infer one."""
        pairs = zip(self.extents, self.keep, strict=True)
        return sum(extent is None and not keep for extent, keep in pairs)


@dataclass(frozen=True)
class Transpose:
    """Output axis i is input axis `order[i]`; the input has these extents, None where unknown."""

    order: tuple[int, ...]
    extents: Dims


@dataclass(frozen=True)
class ShiftedSum:
    """[N, D, K*O, ...] as [N, D', O, ...]: the sum over k of the channels k*O to k*O + O - 1.

    Attributes:
        pads: positions that addend k gets along D before and behind; negative ones are cut.
        channels: O.
        rank: number of axes.
    """

    pads: Sequence[tuple[int, int]]
    channels: int
    rank: int


Move = Reshape | Transpose
MoveOrSum = Move | ShiftedSum


def shape_after(shape: Dims, moves: Iterable[Move]) -> Dims:
    """Return the extents behind some moves of a tensor."""
    for move in moves:
        shape = move.extents if isinstance(move, Reshape) else tuple(shape[i] for i in move.order)
    return shape


def inferred(moves: Sequence[MoveOrSum], *, shuffles: bool = False) -> int:
    """Return the most extents that a runtime must infer in one of some moves; it can infer one.

    Args:
        moves: the moves.
        shuffles: whether a pixel shuffle becomes one node, which infers none.
    """
    if shuffles and pixel_shuffle(moves) is not None:
        return 0
    return max((move.inferred for move in moves if isinstance(move, Reshape)), default=0)


def are_views(moves: Iterable[MoveOrSum]) -> bool:
    """Check whether moves leave every element where it is in memory."""
    return all(isinstance(move, Reshape) for move in moves)


def pixel_shuffle(moves: Sequence[MoveOrSum]) -> int | None:
    """Return the block of the DepthToSpace that equals some moves; None if there is none.

    [N, C*b*b, H, W] as [N, C, b, b, H, W], ordered as [N, C, H, b, W, b], as [N, C, H*b, W*b]:
    mode CRD in the operator's text.
    """
    match moves:
        case [
            Reshape(4, (_, _, int(block), int(other), _, _), (True, *_)),
            Transpose((0, 1, 4, 2, 5, 3)),
            Reshape(),
        ] if block == other:
            return block
    return None


@dataclass(frozen=True, eq=False)
class Packing:
    """The packing of one tensor: extents of all atoms, and the arrangements on its path."""

    atoms: Mapping[str, int | None]
    path: tuple[Arrangement, ...]

    @property
    def is_view(self) -> bool:
        """True if no element moves in memory."""
        return are_views(self.moves)

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """The moves that pack a tensor."""
        return self._moves(self.path)

    @cached_property
    def inverse_moves(self) -> tuple[Move, ...]:
        """The moves that unpack a tensor."""
        return self._moves(self.path[::-1])

    def _moves(self, path: tuple[Arrangement, ...]) -> tuple[Move, ...]:
        axes = [self._axes(arrangement) for arrangement in path]
        if axes[0] == axes[-1]:
            return ()  # nothing is folded, so the NHWC path needs no Transpose
        flat = [tuple(chain.from_iterable(arrangement)) for arrangement in axes]
        moves: list[Move] = []
        start, last = 0, len(path) - 1
        for end in range(1, last + 1):
            if flat[start] != flat[end]:
                order = tuple(path[start].index(axis) for axis in path[end])
                moves.append(Transpose(order, tuple(map(self._extent, path[start]))))
            elif end < last and flat[end] == flat[end + 1]:
                continue  # a longer run of regroupings is one Reshape
            elif axes[start] != axes[end]:
                moves.append(self._reshape(axes[start], axes[end]))
            start = end
        return tuple(moves)

    def _reshape(self, old: Arrangement, new: Arrangement) -> Reshape:
        keep = tuple(i < len(old) and old[i] == axis for i, axis in enumerate(new))
        return Reshape(len(old), tuple(map(self._extent, new)), keep)

    def _extent(self, axis: Axis) -> int | None:
        """Return the extent of a group of atoms, None where one is unknown."""
        return size_of(map(self.atoms.__getitem__, axis))

    def _axes(self, arrangement: Arrangement) -> Arrangement:
        """Return an arrangement without its atoms of extent 1."""
        atoms = self.atoms
        return tuple([tuple([a for a in axis if atoms[a] != 1]) for axis in arrangement])


@lru_cache(maxsize=CACHED_PACKINGS)
def pack(
    shape: Dims,
    tiles: tuple[tuple[int, bool], ...],
    *,
    tile_major: bool = False,
    group: int = 1,
    batch: int = 1,
    lift: int = 0,
) -> Packing:
    """Describe how a tensor is packed.

    Args:
        shape: [N, C, *spatial], after zero-extension; None where not known and not folded.
        tiles: per spatial axis the number of tiles and whether they are blocked.
        tile_major: whether the path is the NHWC path.
        group: groups of the channels.
        batch: samples moved into channels.
        lift: axes of extent 1 put before the spatial ones, at most one.
    """
    n, c, *lengths = shape
    if c is None:
        raise ValueError("the channel count must be known")
    atoms: dict[str, int | None] = {
        "n": None if n is None else n // batch,
        "b": batch,
        "r": group,
        "c": c // group,
    }
    spatial: list[Axis] = []
    for i, (length, (count, blocked)) in enumerate(zip(lengths, tiles, strict=True)):
        atoms[f"tile{i}"] = count
        atoms[f"rest{i}"] = None if length is None else length // count
        spatial.append((f"tile{i}", f"rest{i}") if blocked else (f"rest{i}", f"tile{i}"))
    samples, channels = ("n", "b"), ("r", "c")
    tile = tuple(f"tile{i}" for i in range(len(spatial)))
    rest = tuple((f"rest{i}",) for i in range(len(spatial)))

    rests = [a for (a,) in rest]
    lifted: Arrangement = ((),) * lift
    logical = (samples, channels, *spatial)
    if tile_major:
        cut = _cut(atoms, samples, *spatial, channels)
        path = (
            logical,
            (samples, *spatial, channels),
            cut,
            _ordered(atoms, cut, "n", *rests, "b", "r", *tile, "c"),
            (("n",), *lifted, *rest, ("b", "r", *tile, "c")),
            (("n",), ("b", "r", *tile, "c"), *lifted, *rest),
        )
        return Packing(atoms, path)
    # In channel-major order groups and channels stay neighbours and need not be split.
    cut = (*_cut(atoms, samples), channels, *_cut(atoms, *spatial))
    ordered = _ordered(atoms, cut, "n", "b", "r", "c", *tile, *rests)
    return Packing(
        atoms, (logical, cut, ordered, (("n",), ("b", *channels, *tile), *lifted, *rest))
    )


def pack_positions(shape: Sequence[int | None], tile: int) -> tuple[Packing, Packing]:
    """Describe [N, C, L, ...] as [N * L/tile, tile*C, ...], and with N and L/tile as two axes."""
    n, c, length, *extents = shape
    rest = None if length is None else length // tile
    plane = [f"plane{i}" for i in range(len(extents))]
    atoms = {"n": n, "c": c, "rest": rest, "tile": tile, **dict(zip(plane, extents, strict=True))}
    other_axes = tuple((name,) for name in plane)
    cut = (("n",), ("c",), *_cut(atoms, ("rest", "tile")), *other_axes)
    path = (
        (("n",), ("c",), ("rest", "tile"), *other_axes),
        cut,
        _ordered(atoms, cut, "n", "rest", "tile", "c", *plane),
        (("n",), ("rest",), ("tile", "c"), *other_axes),
        (("n", "rest"), ("tile", "c"), *other_axes),
    )
    return Packing(atoms, path), Packing(atoms, path[:-1])


def _cut(atoms: Mapping[str, int | None], *axes: Axis) -> Arrangement:
    """Split each axis into its atoms, but no further than packing needs."""
    return tuple(
        piece
        for axis in axes
        for piece in ([axis] if 1 in (atoms[a] for a in axis) else [(a,) for a in axis])
    )


def _ordered(atoms: Mapping[str, int | None], pieces: Arrangement, *order: str) -> Arrangement:
    """Return the pieces in the order of their atoms; atoms of extent 1 do not count."""

    def place(piece: Axis) -> int:
        moving_atoms = [a for a in piece if atoms[a] != 1]
        return min(order.index(a) for a in moving_atoms or piece)

    return tuple(sorted(pieces, key=place))
