"""Folded Conv against the loop oracle, on integers, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.algebra.folds import by_fold, cases, run
from tests.oracle import conv, extend
from widthfold_onnx.algebra.axis import ConvAxis, FoldedAxis, fold_axis, keep_axis
from widthfold_onnx.algebra.conv import ConvFold, fold_bias, fold_per_channel, fold_weight
from widthfold_onnx.algebra.packing import pack_positions


@settings(max_examples=5 * settings().max_examples)
@given(cases())
def test_fold_conv_unfold_is_the_conv(case) -> None:
    axes, fold, (samples, in_channels), (out_channels, per_group), seed = case
    if min(axis.out_length for axis in axes) < 1:
        return
    rng = np.random.default_rng(abs(seed))
    x = rng.integers(-99, 100, (samples, in_channels, *(a.length for a in axes)))
    w = rng.integers(1, 100, (out_channels, per_group, *(a.kernel for a in axes)))
    b = rng.integers(-99, 100, out_channels)
    pads = [a.pad_begin for a in axes] + [a.pad_end for a in axes]
    strides, dilations = [a.stride for a in axes], [a.dilation for a in axes]
    expected = conv(x, w, b, strides=strides, dilations=dilations, pads=pads, group=fold.group)
    np.testing.assert_array_equal(by_fold(x, w, b, axes, fold), expected)


@st.composite
def axes_of_taps(draw: st.DrawFn) -> tuple[ConvAxis, FoldedAxis, list[ConvAxis]]:
    """An axis, kept or folded by its strides, and none or two others; some pads are negative."""
    strides = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2), (1, 3)]))
    axis = ConvAxis(
        length=draw(st.integers(1, 13)),
        kernel=draw(st.integers(1, 7)),
        stride=strides[0],
        base_dilation=strides[1],
        dilation=draw(st.integers(1, 3)),
        pad_begin=draw(st.integers(-2, 8)),
        pad_end=draw(st.integers(-2, 8)),
    )
    assume((axis.out_length or 0) > 0)
    keeps_stride = strides == (1, 1)
    taps = keep_axis(axis) if keeps_stride else fold_axis(axis, axis.base_dilation, axis.stride)
    assert isinstance(taps, FoldedAxis)
    other = ConvAxis(length=3, kernel=2, stride=draw(st.integers(1, 2)), pad_end=1)
    return axis, taps, draw(st.sampled_from([[], [other, replace(other, length=4)]]))


@given(axes_of_taps(), st.integers(0, 99))
def test_what_the_taps_of_an_axis_give_adds_up_to_the_conv(case, seed: int) -> None:
    axis, taps, others = case
    fold = ConvFold(axes=(taps, *map(keep_axis, others)), tile_major=taps.is_folded, summed=True)
    rng = np.random.default_rng(seed)
    x = rng.integers(-99, 100, (2, 3, axis.length, *(a.length for a in others)))
    w = rng.integers(1, 100, (5, 3, axis.kernel, *(a.kernel for a in others)))
    b = rng.integers(-99, 100, 5) * (fold.bias_tap is not None)
    assert fold_weight(w, fold).shape == fold.weight_shape(w.shape)

    stuffed = np.zeros((*x.shape[:2], axis.base_dilation * (axis.length - 1) + 1, *x.shape[3:]))
    stuffed[:, :, :: axis.base_dilation] = x
    axes = [axis, *others]
    expected = conv(
        stuffed,
        w,
        b,
        strides=[a.stride for a in axes],
        dilations=[a.dilation for a in axes],
        pads=[a.pad_begin for a in axes] + [a.pad_end for a in axes],
    )

    x = extend(x, 2, 0, (taps.extended_length or axis.length) - axis.length)
    into, _ = pack_positions(x.shape, taps.in_tile)
    results = conv(
        run(into.moves, x),
        fold_weight(w, fold),
        fold_bias(b, fold),
        strides=[a.stride for a in fold.window],
        pads=[a.pad_begin for a in fold.window] + [a.pad_end for a in fold.window],
    )
    parts = np.split(results.reshape(2, -1, *results.shape[1:]), fold.sums, axis=2)
    positions = parts[0].shape[1]
    assume(all(positions + min(a, 0) + min(b, 0) > 0 for a, b in fold.shifts))
    total = sum(extend(part, 1, *pads) for part, pads in zip(parts, fold.shifts, strict=True))
    _, back = pack_positions(
        (2, 5, total.shape[1] * taps.out_tile, *total.shape[3:]), taps.out_tile
    )
    result = run(back.inverse_moves, total)
    np.testing.assert_array_equal(result[:, :, : axis.out_length], expected)


def test_every_tap_has_the_numbers_of_its_channels_and_one_the_bias() -> None:
    fold = ConvFold(axes=(keep_axis(ConvAxis(length=8, kernel=3)),), summed=True)
    numbers = np.array([4, 5])
    np.testing.assert_array_equal(fold_per_channel(numbers, fold), [4, 5, 4, 5, 4, 5])
    np.testing.assert_array_equal(fold_bias(numbers, fold), [4, 5, 0, 0, 0, 0])


@given(cases())
def test_gaps_hold_the_zero_point_of_their_channel(case) -> None:
    """A folded weight less its zero point is the fold of the weight less its own zero point."""
    axes, fold, _, (outputs, per_group), seed = case
    kernel = [axis.kernel for axis in axes]
    rng = np.random.default_rng(abs(seed))
    weight = rng.integers(-9, 10, (outputs, per_group, *kernel))
    zeros = rng.permutation(outputs) + 11
    folded = fold_weight(weight, fold, zeros.reshape(-1, 1, *[1] * len(kernel)))
    shape = (-1, *[1] * (folded.ndim - 1))
    less = folded - fold_per_channel(zeros, fold).reshape(shape)
    expected = fold_weight(weight - zeros.reshape(-1, 1, *[1] * len(kernel)), fold)
    np.testing.assert_array_equal(less, expected)
    np.testing.assert_array_equal(fold_weight(weight, fold, 7) - 7, fold_weight(weight - 7, fold))


def test_paper_case_is_the_kernel_1_instance() -> None:
    """Width 64 folded by 8 under a 5x1 kernel: W' is W (x) I_8, block-diagonal."""
    height = keep_axis(ConvAxis(length=32, kernel=5))
    width = fold_axis(ConvAxis(length=64, kernel=1), 8, 8)
    assert isinstance(width, FoldedAxis)
    fold = ConvFold(axes=(height, width))
    weight = np.arange(1.0, 6.0).reshape(1, 1, 5, 1)
    folded = fold_weight(weight, fold)
    np.testing.assert_array_equal(folded, np.kron(np.eye(8)[..., None, None], weight))
    assert fold.flops_growth() == 8
    assert fold.structural_zeros() == 7 / 8


def test_numbers_are_copied_bit_for_bit() -> None:
    """NaN payloads, infinities and signed zeros arrive as they were."""
    axis = fold_axis(ConvAxis(length=8, kernel=4, stride=4), 1, 4)
    assert isinstance(axis, FoldedAxis)
    weight = np.array([np.nan, -np.inf, -0.0, 1e-45], np.float32).reshape(1, 1, 4)
    weight.view(np.uint32)[0, 0, 0] = 0x7FC12345
    folded = fold_weight(weight, ConvFold(axes=(axis,)))
    assert folded.shape == (1, 4, 1)
    assert folded.tobytes() == weight.tobytes()
