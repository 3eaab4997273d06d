"""Folds that are drawn, and a Conv as a fold computes it."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.oracle import conv
from widthfold_onnx.algebra.axis import ConvAxis, FoldedAxis, fold_axis, keep_axis
from widthfold_onnx.algebra.conv import ConvFold, fold_bias, fold_weight
from widthfold_onnx.algebra.packing import Move, Reshape, pack
from widthfold_onnx.refusal import Refusal


def run(moves: tuple[Move, ...], array: np.ndarray) -> np.ndarray:
    """The values after the emitted Reshapes and Transposes."""
    for move in moves:
        if isinstance(move, Reshape):
            shape = [
                array.shape[i] if keep else -1 if extent is None else extent
                for i, (extent, keep) in enumerate(zip(move.extents, move.keep, strict=True))
            ]
            array = array.reshape(shape)
        else:
            pairs = zip(move.extents, array.shape, strict=True)
            assert all(extent in (None, actual) for extent, actual in pairs)
            array = array.transpose(move.order)
    return array


@st.composite
def folds(draw: st.DrawFn, axes: list[FoldedAxis], group: int) -> ConvFold:
    return ConvFold(
        axes=tuple(axes),
        group=group,
        batch=draw(st.integers(1, 3)),
        dense=draw(st.booleans()),
        tile_major=draw(st.booleans()),
    )


def by_fold(
    x: np.ndarray, w: np.ndarray, b: np.ndarray, axes: list[ConvAxis], fold: ConvFold
) -> np.ndarray:
    """Extend, fold, the Conv of the oracle, unfold, cut."""
    lengths = [axis.length for axis in axes]
    out_lengths = [axis.out_length for axis in axes]
    needed = [f.extended_length or length for f, length in zip(fold.axes, lengths, strict=True)]
    extended = np.pad(
        x, [(0, 0), (0, 0)] + [(0, n - m) for n, m in zip(needed, lengths, strict=True)]
    )
    produced = [
        f.extended_out_length or length for f, length in zip(fold.axes, out_lengths, strict=True)
    ]
    into = pack(
        extended.shape,
        tuple((f.in_tile, f.blocked) for f in fold.axes),
        tile_major=fold.tile_major,
        group=fold.group,
        batch=fold.batch,
    )
    back = pack(
        (len(x), len(w), *produced),
        tuple((f.out_tile, f.blocked) for f in fold.axes),
        tile_major=fold.tile_major,
        group=fold.group,
        batch=fold.batch,
    )
    folded_weight = fold_weight(w, fold)
    assert folded_weight.shape == fold.weight_shape(w.shape)
    assert np.count_nonzero(folded_weight) == round(
        folded_weight.size * (1 - fold.structural_zeros())
    )
    for axis in fold.axes:
        assert axis.pad_begin >= 0
        assert axis.pad_end >= 0
    folded = conv(
        run(into.moves, extended),
        folded_weight,
        fold_bias(b, fold),
        strides=[a.stride for a in fold.axes],
        dilations=[a.dilation for a in fold.axes],
        pads=[a.pad_begin for a in fold.axes] + [a.pad_end for a in fold.axes],
        group=fold.new_group,
    )
    result = run(back.inverse_moves, folded)
    return result[(slice(None), slice(None), *(slice(n) for n in out_lengths))]


@st.composite
def cases(draw: st.DrawFn):
    """A Conv and a fold of it: all ranks, forms, groups, channel orders; pads may be negative."""
    rank = draw(st.integers(1, 3))
    group = draw(st.sampled_from([1, 1, 2, 3]))
    axes, folded = [], []
    for _ in range(rank):
        axis = ConvAxis(
            length=draw(st.integers(1, 13 if rank < 3 else 7)),
            kernel=draw(st.integers(1, 4)),
            stride=draw(st.integers(1, 3)),
            dilation=draw(st.integers(1, 3)),
            pad_begin=draw(st.integers(-2, 4)),
            pad_end=draw(st.integers(-2, 4)),
        )
        axes.append(axis)
        form = draw(st.sampled_from(["keep", "interleaved", "strided", "blocked", "whole", "any"]))
        factor = draw(st.integers(1, 6))
        if form == "keep" or axis.out_length < 1:
            result = keep_axis(axis)
        elif form == "whole":
            result = fold_axis(axis, axis.out_length, axis.length)
        elif form == "blocked":
            result = fold_axis(axis, factor, factor, blocked=True)
        else:
            tiles = {
                "interleaved": factor * axis.stride,
                "strided": factor,
                "any": draw(st.integers(1, 13)),
            }
            result = fold_axis(axis, factor, tiles[form])
        folded.append(keep_axis(axis) if isinstance(result, Refusal) else result)
    fold = draw(folds(folded, group))
    channels, out = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    samples = fold.batch * draw(st.integers(1, 2))
    return axes, fold, (samples, group * channels), (group * out, channels), draw(st.integers())
