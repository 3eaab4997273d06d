"""The layouts of tensors between Convs, one element at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from widthfold_onnx.algebra.layouts import ConvLayout, applied

CASES = [
    (ConvLayout(1, ((3, False),)), (2, 5, 21)),
    (ConvLayout(1, ((3, True),)), (2, 5, 21)),
    (ConvLayout(2, ((1, False),)), (6, 5, 7)),
    (ConvLayout(2, ((3, True), (5, False))), (6, 7, 33, 65)),
    (ConvLayout(3, ((2, False), (1, False), (3, True))), (3, 2, 10, 7, 15)),
    (ConvLayout(2, ((3, True), (5, False)), tile_major=True), (6, 7, 33, 65)),
]


@pytest.mark.parametrize(("layout", "shape"), CASES)
def test_every_element_lies_where_its_tiles_say(layout: ConvLayout, shape: tuple[int, ...]) -> None:
    packed = layout.packed(np.arange(np.prod(shape)).reshape(shape))
    rests = [extent // count for extent, (count, _) in zip(shape[2:], layout.tiles, strict=True)]
    assert packed.shape == (shape[0] // layout.batch, shape[1] * math.prod(layout.factors), *rests)
    rng = np.random.default_rng(0)
    for _ in range(200):
        n, c, *places = (int(rng.integers(extent)) for extent in shape)
        sample, tile = divmod(n, layout.batch)
        order, there = [], []
        for place, rest, (count, blocked) in zip(places, rests, layout.tiles, strict=True):
            q, r = divmod(place, rest if blocked else count)
            there.append(r if blocked else q)
            order.append((q if blocked else r, count))
        order.insert(len(order) if layout.tile_major else 0, (c, shape[1]))
        channel = tile
        for number, count in order:
            channel = channel * count + number
        wanted = np.ravel_multi_index((n, c, *places), shape)
        assert packed[(sample, channel, *there)] == wanted
        assert layout.channels(shape[1])[channel] == c


@pytest.mark.parametrize(("layout", "shape"), CASES)
def test_there_and_back(layout: ConvLayout, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    back = applied(layout.packed(array), layout.steps(shape, inverse=True))
    np.testing.assert_array_equal(back, array)
    assert not layout.is_logical
    assert layout.fits(shape)
    opened = [
        None if factor == 1 and i != 1 else e
        for i, (e, factor) in enumerate(zip(shape, layout.factors, strict=True))
    ]
    assert layout.fits(opened)
    back = applied(layout.packed(array), layout.steps(opened, inverse=True))
    np.testing.assert_array_equal(back, array)


def test_what_does_not_fit_is_an_error() -> None:
    for (layout, shape), axis in itertools.product(CASES, (0, 2)):
        if layout.factors[axis] > 1:
            wrong = [extent + (i == axis) for i, extent in enumerate(shape)]
            assert not layout.fits(wrong)
            with pytest.raises(ValueError, match="reshape"):
                layout.packed(np.zeros(wrong))
