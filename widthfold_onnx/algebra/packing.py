"""Pack and unpack a tensor by as few Reshapes and Transposes as possible.

The axes of a tensor [N, C, L1, L2, ...] are split into atoms: N into (n, b), C into groups and
channels (r, c), a folded axis Li into its tile and its rest (interleaved: rest, tile; blocked:
tile, rest). A packing is a sequence of arrangements of atoms. Two neighbouring arrangements differ
by a Reshape if the atoms with an extent above 1 keep their order, else by a Transpose. An axis is
split no further than packing needs: a Reshape can copy an unknown extent that keeps its axis.

    NCHW path   cut - order as (n | b r c a.. | rest..) - merge
    NHWC path   to channels-last - cut - order as (n | rest.. | b r a.. c) - merge - to NCHW

The NCHW path gives channel-major channels, the NHWC path tile-major ones (see `algebra.conv`).
In the NHWC path a channels-last runtime cancels the two outer Transposes against its own. Packing
the last axis needs no third one: a single Reshape stands between the two.
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
"""Number of packings to cache: the forms of a net of 23 layers need 2,900 on each path."""


@dataclass(frozen=True)
class Reshape:
    """Other axes for the same elements in the same order.

    Attributes:
        rank: number of axes before the Reshape.
        extents: extents after it, None where unknown.
        keep: whether axis i is axis i before it, too: then a 0 in the shape copies its extent.
    """

    rank: int
    extents: Dims
    keep: tuple[bool, ...]

    @property
    def inferred(self) -> int:
        """Number of extents that are left to the runtime, which can infer one."""
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
        pads: zeros added before and after addend k along D; a negative number cuts.
        channels: O.
        rank: number of axes.
    """

    pads: Sequence[tuple[int, int]]
    channels: int
    rank: int


Move = Reshape | Transpose
MoveOrSum = Move | ShiftedSum


def shape_after(shape: Dims, moves: Iterable[Move]) -> Dims:
    """Return the extents of a tensor after the moves."""
    for move in moves:
        shape = move.extents if isinstance(move, Reshape) else tuple(shape[i] for i in move.order)
    return shape


def inferred(moves: Sequence[MoveOrSum], *, shuffles: bool = False) -> int:
    """Return how many extents one of the moves leaves to the runtime, at most; it can infer one.

    Args:
        moves: the moves.
        shuffles: whether a pixel shuffle becomes a DepthToSpace, which leaves none.
    """
    if shuffles and pixel_shuffle(moves) is not None:
        return 0
    return max((move.inferred for move in moves if isinstance(move, Reshape)), default=0)


def are_views(moves: Iterable[MoveOrSum]) -> bool:
    """Check whether moves leave every element where it is in memory."""
    return all(isinstance(move, Reshape) for move in moves)


def pixel_shuffle(moves: Sequence[MoveOrSum]) -> int | None:
    """Return the block size of the DepthToSpace that equals the moves; None if none does.

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

    Two interleaved tiles of the last axis, with 3 channels and with a single one:

    >>> [type(move).__name__ for move in pack((1, 3, 8), ((2, False),)).moves]
    ['Reshape', 'Transpose', 'Reshape']
    >>> pack((1, 1, 8), ((2, False),)).is_view, pack((1, 1, 8), ((2, True),)).is_view
    (False, True)

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
    """Describe two packings of [N, C, L, ...], whose L/tile positions become samples.

    The first leads to [N * L/tile, tile*C, ...], the second to [N, L/tile, tile*C, ...].
    """
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
    """Split each axis into its atoms; an axis with an atom of extent 1 stays whole."""
    return tuple(
        piece
        for axis in axes
        for piece in ([axis] if 1 in (atoms[a] for a in axis) else [(a,) for a in axis])
    )


def _ordered(atoms: Mapping[str, int | None], pieces: Arrangement, *order: str) -> Arrangement:
    """Sort the pieces by the order of their atoms; atoms of extent 1 do not count."""

    def rank(piece: Axis) -> int:
        moving_atoms = [a for a in piece if atoms[a] != 1]
        return min(order.index(a) for a in moving_atoms or piece)

    return tuple(sorted(pieces, key=rank))
