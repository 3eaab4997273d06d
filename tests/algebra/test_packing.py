"""Packings: what folds is undone, and no move is needless."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from tests.algebra.folds import cases, run
from widthfold_onnx.algebra.axis import ConvAxis, FoldedAxis, fold_axis
from widthfold_onnx.algebra.packing import Reshape, pack


@given(cases())
def test_unfold_undoes_fold(case) -> None:
    _, fold, (samples, channels), _, _ = case
    rest = [5, 3, 2][: len(fold.axes)]
    shape = (samples, channels, *(f.in_tile * r for f, r in zip(fold.axes, rest, strict=True)))
    tiles = tuple((f.in_tile, f.blocked) for f in fold.axes)
    packing = pack(shape, tiles, tile_major=fold.tile_major, group=fold.group, batch=fold.batch)
    array = np.arange(np.prod(shape)).reshape(shape)
    there = run(packing.moves, array)
    np.testing.assert_array_equal(run(packing.inverse_moves, there), array)


def test_a_patch_kernel_folds_in_blocks() -> None:
    """Kernel 2 at stride 2 never crosses a block border: a view although the axis is convolved."""
    axis = fold_axis(ConvAxis(length=24, kernel=2, stride=2), 3, 3, blocked=True)
    assert isinstance(axis, FoldedAxis)
    packing = pack((1, 5, 24), ((3, True),))
    assert packing.is_view


def test_no_transpose_moves_only_axes_of_extent_1() -> None:
    for shape, tiles in (((1, 1, 1, 64), (1, 8)), ((3, 2, 8, 1), (8, 1)), ((1, 1, 7, 1), (1, 1))):
        for tile_major in (False, True):
            packing = pack(shape, tuple((d, False) for d in tiles), tile_major=tile_major)
            for move in packing.moves:
                if not isinstance(move, Reshape):
                    moved = [i for i, j in enumerate(move.order) if i != j]
                    assert len(moved) > 1
