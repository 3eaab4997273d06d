"""Folded axes: their kernels and strides, and why an axis is not folded."""

from __future__ import annotations

import pytest

from widthfold_onnx.algebra.axis import ConvAxis, FoldedAxis, fold_axis
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.refusal import Refusal


def test_dilation_is_removed_by_folding_by_it() -> None:
    axis = fold_axis(ConvAxis(length=12, kernel=3, dilation=3, pad_begin=3, pad_end=3), 3, 3)
    assert isinstance(axis, FoldedAxis)
    assert (axis.kernel, axis.dilation, axis.stride) == (3, 1, 1)
    assert ConvFold(axes=(axis,)).structural_zeros() == pytest.approx(2 / 3)


def test_space_to_depth_of_a_strided_conv_has_no_waste_where_the_kernel_fills_it() -> None:
    axis = fold_axis(ConvAxis(length=12, kernel=4, stride=2, pad_begin=1, pad_end=1), 1, 2)
    assert isinstance(axis, FoldedAxis)
    assert (axis.kernel, axis.stride) == (3, 1)
    even = fold_axis(ConvAxis(length=12, kernel=4, stride=2), 1, 2)
    assert isinstance(even, FoldedAxis)
    assert ConvFold(axes=(even,)).structural_zeros() == 0


def test_refusals() -> None:
    def code(axis: ConvAxis, *tiles: int, blocked: bool = False) -> str:
        result = fold_axis(axis, *tiles, blocked=blocked)
        assert isinstance(result, Refusal)
        return result.code

    assert code(ConvAxis(length=None, kernel=3), 4, 4) == "unknown-extent"
    assert code(ConvAxis(length=2, kernel=5), 2, 2) == "empty-tensor"
    same = ConvAxis(length=12, kernel=3, pad_begin=1, pad_end=1)
    assert code(same, 2, 2, blocked=True) == "taps-cross-blocks"
    assert code(ConvAxis(length=13, kernel=1, stride=2), 3, 4) == "stride-mismatch"
    assert code(ConvAxis(length=12, kernel=1, pad_end=-6), 2, 2, blocked=True) == (
        "blocks-do-not-cover"
    )
