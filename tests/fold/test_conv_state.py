"""The states of tensors between Convs, one element at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from widthfold_onnx.fold.conv_layout import ConvLayout
from widthfold_onnx.fold.packed_layout import applied

CASES = [
    (ConvLayout(1, ((3, False),)), (2, 5, 21)),
    (ConvLayout(1, ((3, True),)), (2, 5, 21)),
    (ConvLayout(2, ((1, False),)), (6, 5, 7)),
    (ConvLayout(2, ((3, True), (5, False))), (6, 7, 33, 65)),
    (ConvLayout(3, ((2, False), (1, False), (3, True))), (3, 2, 10, 7, 15)),
    (ConvLayout(2, ((3, True), (5, False)), tile_major=True), (6, 7, 33, 65)),
]


@pytest.mark.parametrize(("state", "shape"), CASES)
def test_every_element_lies_where_its_digits_say(state: ConvLayout, shape: tuple[int, ...]) -> None:
    packed = state.packed(np.arange(np.prod(shape)).reshape(shape))
    rests = [extent // count for extent, (count, _) in zip(shape[2:], state.tiles, strict=True)]
    assert packed.shape == (shape[0] // state.batch, shape[1] * math.prod(state.factors), *rests)
    rng = np.random.default_rng(0)
    for _ in range(200):
        n, c, *places = (int(rng.integers(extent)) for extent in shape)
        sample, tile = divmod(n, state.batch)
        order, there = [], []
        for place, rest, (count, blocked) in zip(places, rests, state.tiles, strict=True):
            q, r = divmod(place, rest if blocked else count)
            there.append(r if blocked else q)
            order.append((q if blocked else r, count))
        order.insert(len(order) if state.tile_major else 0, (c, shape[1]))
        channel = tile
        for number, count in order:
            channel = channel * count + number
        wanted = np.ravel_multi_index((n, c, *places), shape)
        assert packed[(sample, channel, *there)] == wanted
        assert state.channels(shape[1])[channel] == c


@pytest.mark.parametrize(("state", "shape"), CASES)
def test_there_and_back(state: ConvLayout, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    back = applied(state.packed(array), state.steps(shape, inverse=True))
    np.testing.assert_array_equal(back, array)
    assert not state.is_logical
    assert state.fits(shape)
    opened = [
        None if factor == 1 and i != 1 else e
        for i, (e, factor) in enumerate(zip(shape, state.factors, strict=True))
    ]
    assert state.fits(opened)
    back = applied(state.packed(array), state.steps(opened, inverse=True))
    np.testing.assert_array_equal(back, array)


def test_what_does_not_fit_is_an_error() -> None:
    for (state, shape), axis in itertools.product(CASES, (0, 2)):
        if state.factors[axis] > 1:
            wrong = [extent + (i == axis) for i, extent in enumerate(shape)]
            assert not state.fits(wrong)
            with pytest.raises(ValueError, match="reshape"):
                state.packed(np.zeros(wrong))
