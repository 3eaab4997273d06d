"""Windows of Conv and pooling, compared with a loop over positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthfold_onnx.evidence.proof import geometry
from widthfold_onnx.evidence.proof.field import residues
from widthfold_onnx.evidence.proof.geometry import (
    check_groups,
    conv,
    conv_transpose,
    padded,
    read_transposed_windows,
    read_windows,
)
from widthfold_onnx.evidence.proof.values import UnevaluableError

PRIME = 11_862_989


@st.composite
def axes(draw: st.DrawFn) -> dict[str, int]:
    """Draw one axis at which a window fits."""
    number = st.integers
    axis = {
        "extent": draw(number(1, 17)),
        "kernel": draw(number(1, 5)),
        "stride": draw(number(1, 4)),
        "dilation": draw(number(1, 3)),
        "begin": draw(number(-2, 4)),
        "end": draw(number(-2, 4)),
    }
    room = axis["extent"] + axis["begin"] + axis["end"]
    missing = (axis["kernel"] - 1) * axis["dilation"] + 1 - room
    return axis | {"extent": axis["extent"] + max(0, missing)}


def attributes_of(axis: dict[str, int], **others: Any) -> dict[str, Any]:
    return {
        "strides": [axis["stride"]],
        "dilations": [axis["dilation"]],
        "pads": [axis["begin"], axis["end"]],
        **others,
    }


def positions_of(axis: dict[str, int]) -> list[list[int]]:
    """Return the positions that each window reads, as the operator text numbers them."""
    windows, start = [], -axis["begin"]
    last = (axis["kernel"] - 1) * axis["dilation"]
    while start + last < axis["extent"] + axis["end"]:
        windows.append([start + k * axis["dilation"] for k in range(axis["kernel"])])
        start += axis["stride"]
    return windows


@given(axes())
def test_windows_read_these_positions(axis: dict[str, int]) -> None:
    windows = read_windows(attributes_of(axis), [axis["kernel"]], [axis["extent"]])
    expected = positions_of(axis)
    inside = range(max(0, -axis["begin"]), axis["extent"] + min(0, axis["end"]))
    data = np.arange(1, axis["extent"] + 1)
    assert windows.counts == (len(expected),)
    views = windows.of(windows.padded(data))
    assert views.tolist() == [[p + 1 if p in inside else 0 for p in row] for row in expected]
    assert windows.sums(data).tolist() == views.sum(axis=-1).tolist()


@given(axes(), st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))
def test_same_pads_give_one_window_per_stride(axis: dict[str, int], auto_pad: str) -> None:
    attributes = attributes_of(axis, auto_pad=auto_pad)
    windows = read_windows(attributes, [axis["kernel"]], [axis["extent"]])
    assert windows.counts == (-(-axis["extent"] // axis["stride"]),)
    (begin,), (end,) = windows.begins, windows.ends
    assert abs(begin - end) <= 1, "the pads are halves"
    assert end >= begin if auto_pad == "SAME_UPPER" else begin >= end


@given(axes())
def test_a_further_window_begins_in_the_data(axis: dict[str, int]) -> None:
    axis = axis | {"begin": max(axis["begin"], 0), "end": max(axis["end"], 0)}
    attributes = attributes_of(axis, ceil_mode=1)
    windows = read_windows(attributes, [axis["kernel"]], [axis["extent"]])
    whole = positions_of(axis)
    is_rest = whole[-1][-1] + 1 < axis["extent"] + axis["end"]
    begins_inside = whole[-1][0] + axis["stride"] < axis["extent"]
    assert windows.counts == (len(whole) + (is_rest and begins_inside),)


@given(axes(), st.integers(1, 3), st.integers(0, 2**32))
def test_a_transposed_conv_is_the_adjoint_of_the_conv(
    axis: dict[str, int], channels: int, seed: int
) -> None:
    """The sum of conv(x, w) * y is the sum of x * conv_transpose(y, w), for every x and y."""
    draw = np.random.default_rng(seed)
    axis = axis | {"begin": max(axis["begin"], 0), "end": max(axis["end"], 0)}
    windows = read_windows(attributes_of(axis), [axis["kernel"]], [axis["extent"]])
    x = draw.integers(-9, 10, (1, 2, axis["extent"])).astype(np.float32)
    weight = draw.integers(-9, 10, (channels, 2, axis["kernel"])).astype(np.float32)
    result = conv(x, weight, 1, windows, PRIME)
    y = draw.integers(-9, 10, result.shape).astype(np.float32)
    unread = axis["extent"] + axis["begin"] + axis["end"] - windows.reach[0]
    transposed_attributes = attributes_of(axis, output_padding=[unread])
    transposed = read_transposed_windows(transposed_attributes, [axis["kernel"]], windows.counts)
    adjoint = conv_transpose(y, weight, 1, transposed, PRIME)
    assert adjoint.shape == x.shape
    assert (result * y).sum() == (x * adjoint).sum()


@pytest.mark.parametrize("slice_bytes", [geometry.SLICE_BYTES, 1])
def test_a_conv_of_groups_is_a_loop(slice_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "SLICE_BYTES", slice_bytes)  # 1: one position at a time
    draw = np.random.default_rng(0)
    x = draw.integers(-(PRIME // 2), PRIME // 2, (2, 6, 7, 5))
    weight = draw.integers(-(PRIME // 2), PRIME // 2, (9, 2, 3, 2))
    weight[:, 1, 2, 0] = 0  # a column that meets only zeros
    attributes = {"strides": [2, 1], "pads": [1, 0, 0, 2], "dilations": [1, 2]}
    windows = read_windows(attributes, [3, 2], [7, 5])
    result = conv(x.astype(np.float32), weight.astype(np.float32), 3, windows, PRIME)
    expected = np.zeros(result.shape, object)
    for n, o, i, j in np.ndindex(*result.shape):
        for c, k, m in np.ndindex(2, 3, 2):
            row, column = 2 * i + k - 1, j + 2 * m
            if 0 <= row < 7 and column < 5:
                number = int(x[n, o // 3 * 2 + c, row, column])
                expected[n, o, i, j] += number * int(weight[o, c, k, m])
    assert residues(result, PRIME).tolist() == (expected % PRIME).tolist()


def test_negative_pads_cut() -> None:
    array = np.arange(12).reshape(3, 4)
    assert padded(array, (-1, 2), (0, -3)).tolist() == [[0, 0, 4], [0, 0, 8]]
    cut = padded(array, (0, -1), (1, -1), constant_values=7)
    assert cut.tolist() == [[1, 2], [5, 6], [9, 10], [7, 7]]


@pytest.mark.parametrize(
    ("attributes", "kernel", "extents", "reason"),
    [
        ({}, [4], [3], "a window of 4 does not fit into 3 positions"),
        ({"dilations": [3]}, [3], [6], "a window of 7 does not fit into 6 positions"),
        ({"strides": [0]}, [3], [6], "its kernel, strides or dilations make no sense"),
        ({"kernel_shape": [2]}, [3], [6], "its kernel, strides or dilations make no sense"),
        ({"strides": [1, 1]}, [3], [6], "its attributes do not fit 1 spatial axes"),
        ({"pads": [1]}, [3], [6], "its attributes do not fit 1 spatial axes"),
    ],
)
def test_windows_that_do_not_fit(
    attributes: dict[str, Any], kernel: list[int], extents: list[int], reason: str
) -> None:
    with pytest.raises(UnevaluableError) as error:
        read_windows(attributes, kernel, extents)
    assert str(error.value) == reason


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"output_padding": [1, 1]}, "its attributes do not fit 1 spatial axes"),
        ({"pads": [5, 5]}, "its result would have -4 positions"),
        ({"output_shape": [20], "strides": [2]}, "3 positions do not become 20"),
    ],
)
def test_transposed_windows_that_do_not_fit(attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnevaluableError) as error:
        read_transposed_windows(attributes, [4], [3])
    assert str(error.value) == reason


def test_channels_that_do_not_fit() -> None:
    check_groups(6, 4, 2, 3)
    for arguments in ((6, 4, 2, 2), (6, 5, 2, 3), (0, 4, 0, 3)):
        with pytest.raises(UnevaluableError, match=f"{arguments[0]} channels do not fit a weight"):
            check_groups(*arguments)
