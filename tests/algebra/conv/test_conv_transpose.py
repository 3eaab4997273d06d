"""Folded ConvTranspose against the loop oracle, on integers, bit for bit."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algebra.folds import by_fold, folds
from tests.oracle import conv_transpose
from widthfold_onnx.algebra.axis import ConvAxis, FoldedAxis, fold_axis, keep_axis
from widthfold_onnx.algebra.conv import ConvFold, fold_weight
from widthfold_onnx.refusal import Refusal


def transposed(
    length: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int], more: int
) -> ConvAxis:
    """One axis of a ConvTranspose as the Conv that it is, by the identity of `algebra.axis`."""
    reach = dilation * (kernel - 1)
    return ConvAxis(
        length=length,
        kernel=kernel,
        dilation=dilation,
        pad_begin=reach - pads[0],
        pad_end=reach - pads[1] + more,
        base_dilation=stride,
    )


def as_conv_weight(weight: np.ndarray, group: int) -> np.ndarray:
    """[C, O/group, *kernel] as [O, C/group, *kernel] of the mirrored kernel, element by element."""
    channels, outputs, *kernel = weight.shape
    inputs = channels // group
    result = np.zeros((group * outputs, inputs, *kernel), weight.dtype)
    for c, o, *taps in np.ndindex(*weight.shape):
        mirrored = [extent - 1 - tap for extent, tap in zip(kernel, taps, strict=True)]
        result[(c // inputs * outputs + o, c % inputs, *mirrored)] = weight[(c, o, *taps)]
    return result


def least(axis: ConvAxis) -> FoldedAxis:
    """The fold without which an axis is no Conv axis."""
    if axis.base_dilation == 1:
        return keep_axis(axis)
    folded = fold_axis(axis, axis.base_dilation, 1)
    assert isinstance(folded, FoldedAxis)
    return folded


@st.composite
def cases(draw: st.DrawFn):
    """A ConvTranspose and a fold of it: all ranks, forms, groups and channel orders."""
    rank = draw(st.integers(1, 3))
    group = draw(st.sampled_from([1, 1, 2, 3]))
    attributes, axes, folded = [], [], []
    for _ in range(rank):
        kernel, stride, dilation = (draw(st.integers(1, n)) for n in (4, 3, 3))
        length = draw(st.integers(1, 9 if rank < 3 else 4))
        pads = draw(st.integers(0, 4)), draw(st.integers(0, 4))
        more = draw(st.integers(0, max(stride, dilation) - 1))
        axis = transposed(length, kernel, stride, dilation, pads, more)
        if axis.out_length < 1:
            pads = (0, 0)
            axis = transposed(length, kernel, stride, dilation, pads, more)
        attributes.append((kernel, stride, dilation, pads, more))
        axes.append(axis)
        form = draw(st.sampled_from(["least", "interleaved", "blocked", "whole", "any"]))
        factor = draw(st.integers(1, 5))
        if form == "whole":
            result = fold_axis(axis, axis.out_length, axis.length)
        elif form == "blocked":
            result = fold_axis(axis, factor, factor, blocked=True)
        else:
            tiles = {
                "least": (stride, 1),
                "interleaved": (factor * stride, factor),
                "any": (draw(st.integers(1, 9)), draw(st.integers(1, 9))),
            }
            result = fold_axis(axis, *tiles[form])
        folded.append(least(axis) if isinstance(result, Refusal) else result)
    fold = draw(folds(folded, group))
    channels, out = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return attributes, axes, fold, (group * channels, out), fold.batch * draw(st.integers(1, 2))


@settings(max_examples=5 * settings().max_examples)
@given(cases(), st.integers(0, 1 << 32))
def test_fold_conv_unfold_is_the_conv_transpose(case, seed: int) -> None:
    attributes, axes, fold, (channels, out), samples = case
    kernel, strides, dilations, pads, more = zip(*attributes, strict=True)
    rng = np.random.default_rng(seed)
    x = rng.integers(-99, 100, (samples, channels, *(a.length for a in axes)))
    w = rng.integers(1, 100, (channels, out, *kernel))
    b = rng.integers(-99, 100, fold.group * out)
    begins, ends = zip(*pads, strict=True)
    expected = conv_transpose(
        *(x, w, b),
        strides=strides,
        dilations=dilations,
        pads=[*begins, *ends],
        output_padding=more,
        group=fold.group,
    )
    result = by_fold(x, as_conv_weight(w, fold.group), b, axes, fold)
    np.testing.assert_array_equal(result, expected)


def test_the_sub_pixel_form_multiplies_no_inserted_zero() -> None:
    """Kernel 4 at stride 2 and pad 1, the usual upsampling: three taps, each output uses two."""
    axis = transposed(12, 4, 2, 1, (1, 1), 0)
    folded = fold_axis(axis, 2, 1)
    assert isinstance(folded, FoldedAxis)
    assert (axis.out_length, folded.extended_out_length) == (24, 24)
    assert (folded.kernel, folded.stride, folded.pad_begin, folded.pad_end) == (3, 1, 1, 1)
    patches = fold_axis(transposed(12, 2, 2, 1, (0, 0), 0), 2, 1)
    assert isinstance(patches, FoldedAxis)
    assert (patches.kernel, patches.in_tile, patches.out_tile) == (1, 1, 2)
    fold = ConvFold(axes=(patches,))
    assert fold.structural_zeros() == 0
    assert fold.flops_growth(24 / 12) == 1
    np.testing.assert_array_equal(
        fold_weight(as_conv_weight(np.array([[[3, 7]]]), 1), fold), [[[3]], [[7]]]
    )


def test_values_computed_by_hand() -> None:
    """x = 1 2 3 through 1 10 100 at stride 2: 1 10 102 20 203 30 300, folded by 3 to 6 digits."""
    axis = transposed(3, 3, 2, 1, (0, 0), 1)
    whole = fold_axis(axis, 8, 3)
    assert isinstance(whole, FoldedAxis)
    weight = as_conv_weight(np.array([[[1, 10, 100]]]), 1)
    folded = fold_weight(weight, ConvFold(axes=(whole,)))
    np.testing.assert_array_equal(folded[:, :, 0] @ [1, 2, 3], [1, 10, 102, 20, 203, 30, 300, 0])


def test_refusals() -> None:
    def refusal(axis: ConvAxis, *tiles: int, blocked: bool = False) -> tuple[str, str]:
        result = fold_axis(axis, *tiles, blocked=blocked)
        assert isinstance(result, Refusal)
        return result.code, result.reason

    axis = transposed(12, 2, 2, 1, (0, 0), 0)
    assert refusal(axis, 2, 2, blocked=True) == (
        "stride-mismatch",
        "positions of a block stay 2 apart in the output",
    )
    assert refusal(axis, 4, 4) == (
        "stride-mismatch",
        "input factor 4 times 2 does not divide stride 1 times factor 4",
    )


@pytest.mark.parametrize(("pads", "taps"), [((-3, 0), 3), ((0, -4), 3), ((-5, -2), 5), ((2, 1), 1)])
def test_a_crop_becomes_zero_taps(pads: tuple[int, int], taps: int) -> None:
    """A runtime need not know negative pads: the kernel reaches further."""
    axis = ConvAxis(length=11, kernel=1, dilation=2, pad_begin=pads[0], pad_end=pads[1])
    whole = keep_axis(axis)
    assert min(whole.pad_begin, whole.pad_end) >= 0
    assert whole.kernel == taps
    again = ConvAxis(
        length=11, kernel=whole.kernel, dilation=2, pad_begin=whole.pad_begin, pad_end=whole.pad_end
    )
    assert again.out_length == axis.out_length


def test_taps_that_meet_no_position_take_no_memory() -> None:
    """The inverse of an STFT at factor 16: 131 thousand of 67 million taps meet a position."""
    axis = transposed(170, 4096, 1024, 1, (0, 0), 0)
    tracemalloc.start()
    try:
        fold = fold_axis(axis, 16 * 1024, 16)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(fold, FoldedAxis)
    assert fold.taps.k.size == 16 * 4096
    assert peak < 200 << 20
