"""The layouts of packed tensors between Convs and between products, one element at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from widthfold_onnx.algebra.layouts import ConvLayout, RowLayout, apply_moves

CONVS = [
    (ConvLayout(1, ((3, False),)), (2, 5, 21)),
    (ConvLayout(1, ((3, True),)), (2, 5, 21)),
    (ConvLayout(2, ((1, False),)), (6, 5, 7)),
    (ConvLayout(2, ((3, True), (5, False))), (6, 7, 33, 65)),
    (ConvLayout(3, ((2, False), (1, False), (3, True))), (3, 2, 10, 7, 15)),
    (ConvLayout(2, ((3, True), (5, False)), tile_major=True), (6, 7, 33, 65)),
]


@pytest.mark.parametrize(("layout", "shape"), CONVS)
def test_every_element_lies_where_its_tiles_say(layout: ConvLayout, shape: tuple[int, ...]) -> None:
    packed = layout.pack_array(np.arange(np.prod(shape)).reshape(shape))
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
        expected = np.ravel_multi_index((n, c, *places), shape)
        assert packed[(sample, channel, *there)] == expected
        assert layout.channel_of_each(shape[1])[channel] == c


@pytest.mark.parametrize(("layout", "shape"), CONVS)
def test_conv_layouts_there_and_back(layout: ConvLayout, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    back = apply_moves(layout.pack_array(array), layout.moves(shape, inverse=True))
    np.testing.assert_array_equal(back, array)
    assert layout.fits(shape)
    opened = tuple(
        None if factor == 1 and i != 1 else e
        for i, (e, factor) in enumerate(zip(shape, layout.factors, strict=True))
    )
    assert layout.fits(opened)
    back = apply_moves(layout.pack_array(array), layout.moves(opened, inverse=True))
    np.testing.assert_array_equal(back, array)


def test_what_fits_no_conv_layout_is_an_error() -> None:
    for (layout, shape), axis in itertools.product(CONVS, (0, 2)):
        if layout.factors[axis] > 1:
            wrong = [extent + (i == axis) for i, extent in enumerate(shape)]
            assert not layout.fits(wrong)
            with pytest.raises(ValueError, match="reshape"):
                layout.pack_array(np.zeros(wrong))


ROWS = [
    (RowLayout(3), (21, 5)),
    (RowLayout(3), (2, 21, 5)),
    (RowLayout(5), (3, 2, 35, 1)),
    (RowLayout(6, merged=2), (7, 2, 3, 5)),
    (RowLayout(6, merged=3), (2, 3, 7, 5)),
    (RowLayout(3, weight_on_left=True), (5, 21)),
    (RowLayout(7, weight_on_left=True), (3, 2, 5, 21)),
]


@pytest.mark.parametrize(("layout", "shape"), ROWS)
def test_every_element_lies_where_its_digit_says(layout: RowLayout, shape: tuple[int, ...]) -> None:
    packed = layout.pack_array(np.arange(np.prod(shape)).reshape(shape))
    axes = 1 if layout.weight_on_left else layout.merged
    batches, channels = shape[: -1 - axes], shape[layout.channel_axis]
    extents = shape[-1:] if layout.weight_on_left else shape[-1 - axes : -1]
    length, f = int(np.prod(extents)), layout.factor
    for index in np.ndindex(*shape):
        leading, c = index[: len(batches)], index[layout.channel_axis]
        places = index[-1:] if layout.weight_on_left else index[-1 - axes : -1]
        m = int(np.ravel_multi_index(places, extents))
        if layout.weight_on_left:
            tile, rest = divmod(m, length // f)
            there, channel = (*leading, c * f + tile, rest), c * f + tile
        else:
            rest, tile = divmod(m, f)
            there, channel = (*leading, rest, tile * channels + c), tile * channels + c
        assert packed[there] == np.ravel_multi_index(index, shape)
        assert layout.channel_of_each(channels)[channel] == c
    assert packed.size == np.prod(shape)
    assert packed.ndim == layout.rank(len(shape))


@pytest.mark.parametrize(("layout", "shape"), ROWS)
def test_row_layouts_there_and_back(layout: RowLayout, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    leading = len(shape) - 1 - layout.merged
    opened = (*(None for _ in range(leading)), *shape[leading:])
    for extents in (shape, opened):
        assert layout.fits(extents)
        assert layout.is_view(extents)
        back = apply_moves(layout.pack_array(array), layout.moves(extents, inverse=True))
        np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(("layout", "shape"), ROWS)
def test_a_constant_meets_the_same_channels(layout: RowLayout, shape: tuple[int, ...]) -> None:
    channels = shape[layout.channel_axis]
    numbers = np.arange(1, channels + 1)
    logical = np.broadcast_to(numbers[:, None] if layout.weight_on_left else numbers, shape)
    constant = layout.packed_constant(numbers, len(shape))
    assert constant.ndim == (2 if layout.weight_on_left else 1)
    packed = layout.pack_array(logical)
    np.testing.assert_array_equal(np.broadcast_to(constant, packed.shape), packed)


def test_which_axis_the_channels_are() -> None:
    assert RowLayout(3).names_channels(-1, 3)
    assert RowLayout(3).names_channels(1, 2)
    assert not RowLayout(3).names_channels(1, 3)
    assert RowLayout(3, merged=2).names_channels(-1, 3)
    assert not RowLayout(3, merged=2).names_channels(2, 3)  # it is axis 1 of the packed tensor
    assert not RowLayout(3, merged=2).names_channels(1, 3)
    assert RowLayout(3, weight_on_left=True).names_channels(1, 3)
    assert not RowLayout(3, weight_on_left=True).names_channels(-1, 3)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (RowLayout(3), (20, 5)),
        (RowLayout(3), (21, None)),
        (RowLayout(1), (21, 5)),
        (RowLayout(0), (21, 5)),
        (RowLayout(3), (21,)),
        (RowLayout(3), ()),
        (RowLayout(6, merged=2), (None, None, 5)),
        (RowLayout(6, merged=3), (2, 21, 5)),
        (RowLayout(6, merged=0), (2, 21, 5)),
        (RowLayout(3, weight_on_left=True), (5, 20)),
        (RowLayout(3, weight_on_left=True, merged=2), (5, 3, 7)),
        (RowLayout(3, weight_on_left=True), (21,)),
    ],
)
def test_what_fits_no_row_layout(layout: RowLayout, shape: tuple[int | None, ...]) -> None:
    assert not layout.fits(shape)
