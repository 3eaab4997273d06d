"""Random inputs: their values, distributions and types."""

from __future__ import annotations

import numpy as np
import pytest

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.runtime.inputs.feeds import (
    Distribution,
    InputSet,
    distribution_of,
    draw,
    random_feeds,
    with_small_integers,
)
from widthfold_onnx.runtime.session import Port


def test_random_values_depend_on_seed_and_name_only():
    ports = [Port("a", "float32", (4,)), Port("b", "float32", (4,))]
    shapes = {"a": (4,), "b": (4,)}
    first = random_feeds(ports, 3, shapes)
    again = random_feeds(ports[::-1], 3, shapes)
    np.testing.assert_array_equal(first["a"], again["a"])
    assert not np.array_equal(first["a"], first["b"])
    assert not np.array_equal(first["a"], random_feeds(ports, 4, shapes)["a"])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_are_normal_and_never_zero(dtype):
    array = random_feeds([Port("x", dtype, ())], 0, {"x": (1000,)})["x"]
    assert array.dtype == dtype
    assert np.count_nonzero(array) == 1000
    assert abs(float(array.astype(np.float64).std()) - 1) < 0.1


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_integers_of_8_bits_are_over_their_range(dtype):
    array = random_feeds([Port("x", dtype, ())], 0, {"x": (10000,)})["x"]
    assert array.dtype == dtype
    assert len(set(array.tolist())) == 256


WIDE = ["int16", "uint16", "int32", "uint32", "int64", "uint64"]


def fed(port: Port, kind: Distribution, shape: tuple[int, ...] = (1000,)) -> np.ndarray:
    array = random_feeds([port], 3, {port.name: shape}, kind)[port.name]
    assert (array.dtype, array.shape) == (port.dtype, shape)
    return array


@pytest.mark.parametrize("limit", [None, 2, 30])
@pytest.mark.parametrize("dtype", [*WIDE, "bool"])
def test_normal_integers_are_small_indices(dtype, limit):
    array = fed(Port("x", dtype, (), limit=limit), Distribution.NORMAL)
    assert set(array.tolist()) == {0, 1}


@pytest.mark.parametrize("dtype", [*WIDE, "int8", "uint8"])
def test_integers_that_are_data_have_every_magnitude(dtype):
    limits, port = np.iinfo(dtype), Port("x", dtype, ())
    whole = fed(port, Distribution.UNIFORM)
    assert (whole.min(), whole.max()) == (limits.min, limits.max)
    spread = fed(port, Distribution.RANGE)
    assert set(np.log2(np.abs(spread.astype(float))).astype(int)) == set(
        range(limits.max.bit_length())
    )
    assert (spread < 0).any() == (limits.min < 0)
    level = fed(port, Distribution.CONSTANT)
    assert 1 <= np.ptp(level.astype(float)) <= 4
    assert np.abs(level.astype(float)).max() <= 2 + 2 ** (limits.max.bit_length() / 2)
    pixels = fed(port, Distribution.BYTES)
    assert np.ptp(pixels.astype(float)) == 255


@pytest.mark.parametrize("dtype", WIDE)
def test_few_integers_are_switches_or_leave_a_byte(dtype):
    arrays = {kind: fed(Port("x", dtype, ()), kind, (4,)) for kind in Distribution}
    assert ((arrays[Distribution.UNIFORM] >= 256) & (arrays.pop(Distribution.UNIFORM) < 1024)).all()
    if dtype[0] == "i":
        spread = arrays.pop(Distribution.RANGE)
        assert ((spread >= -1024) & (spread < 0)).all()
    assert set(np.concatenate(list(arrays.values())).tolist()) == {0, 1}
    for kind in Distribution:
        assert set(fed(Port("x", dtype, (), limit=2), kind, (4,)).tolist()) <= {0, 1}


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8"])
def test_indices_are_all_rows_of_a_table(dtype):
    port = Port("x", dtype, (), limit=30)
    for kind in set(Distribution) - {Distribution.NORMAL, Distribution.RANGE}:
        assert set(fed(port, kind).tolist()) == set(range(30))
    first = 0 if dtype == "uint8" else -30
    assert set(fed(port, Distribution.RANGE).tolist()) == set(range(first, 30))
    for limit, rows in ((1, {0}), (2, {0, 1}), (0, {0})):
        port = Port("x", dtype, (), limit=limit)
        assert all(set(fed(port, kind).tolist()) == rows for kind in Distribution)


def test_indices_of_a_long_table_fit_their_type():
    array = fed(Port("x", "int8", (), limit=300), Distribution.UNIFORM)
    assert (array.min(), array.max()) == (0, 126)


def test_one_set_of_truth_values_is_true():
    port = Port("x", "bool", ())
    sums = {kind: fed(port, kind).sum() for kind in Distribution}
    assert sums.pop(Distribution.CONSTANT) == 1000
    assert all(400 < count < 600 for count in sums.values())


@pytest.mark.parametrize(
    ("dtype", "largest"), [("float16", 100), ("float32", 1e4), ("float64", 1e4)]
)
def test_floats_of_many_decades_are_beyond_usual_limits(dtype, largest):
    array = np.abs(fed(Port("x", dtype, ()), Distribution.RANGE).astype(float))
    assert 0.9 * largest < array.max() <= largest * 1.001
    assert array.min() < 1e-5


def test_integers_that_may_be_no_indices_become_zeros_and_ones():
    feeds = {
        "x": np.array([0.5, 7.0]),
        "i": np.array([-3, 4, 1]),
        "u": np.array([255, 0], np.uint8),
        "s": np.array(["a"], object),
    }
    item = InputSet("seed 1", feeds, random=True)
    tame = with_small_integers(item)
    assert tame.label == "seed 1, integers 0 and 1"
    assert tame.feeds["x"] is feeds["x"]
    assert tame.feeds["i"].tolist() == [1, 0, 1]
    assert (tame.feeds["u"].dtype, tame.feeds["u"].tolist()) == (np.uint8, [1, 0])
    assert with_small_integers(tame) is tame


def test_strings_and_scalars():
    feeds = random_feeds(
        [Port("s", "string", (3,)), Port("n", "int64", ())], 0, {"s": (3,), "n": ()}
    )
    assert feeds["s"].dtype == object
    assert all(isinstance(item, str) for item in feeds["s"])
    assert feeds["n"].shape == ()


def test_a_type_without_random_values_is_named():
    with pytest.raises(UnverifiedError, match="input x is seq"):
        random_feeds([Port("x", "seq(tensor(float))", ())], 0, {"x": ()})


def test_five_seeds_cover_all_distributions_that_are_compared():
    assert {distribution_of(seed) for seed in range(5)} == set(Distribution) - {Distribution.SMOOTH}
    assert distribution_of(5) is distribution_of(0) is Distribution.NORMAL


def drawn(kind, dtype=np.float64, seed=3):
    return draw(kind, np.random.default_rng(seed), (4000,)).astype(dtype)


@pytest.mark.parametrize("kind", list(Distribution))
def test_distributions_are_deterministic_and_finite(kind):
    np.testing.assert_array_equal(drawn(kind), drawn(kind))
    assert not np.array_equal(drawn(kind), drawn(kind, seed=4))
    half = drawn(kind, np.float16)
    assert np.isfinite(half).all()
    assert len(np.unique(half)) > 2


def test_what_distributions_look_like():
    uniform = drawn(Distribution.UNIFORM)
    assert 0 <= uniform.min() < 0.01 < 0.99 < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.02
    assert set(drawn(Distribution.BYTES)) == set(range(256))
    constant = drawn(Distribution.CONSTANT)
    assert 5e-4 < constant.std() / abs(constant.mean()) < 2e-3
    wide = np.log10(np.abs(drawn(Distribution.RANGE)))
    assert -6 <= wide.min() < -5.9
    assert 1.9 < wide.max() <= 2
    assert abs(wide.mean() + 2) < 0.2
    assert 0.45 < np.mean(drawn(Distribution.RANGE) > 0) < 0.55


@pytest.mark.parametrize("shape", [(), (1, 1), (0, 3)])
def test_smooth_values_of_hardly_any_elements(shape: tuple[int, ...]) -> None:
    values = draw(Distribution.SMOOTH, np.random.default_rng(3), shape)
    assert values.shape == shape
    assert np.isfinite(values).all()


@pytest.mark.parametrize("shape", [(500,), (2, 60, 54), (1, 45, 50, 1)])
def test_amplitudes_of_smooth_values_fall_as_1_over_frequency(shape: tuple[int, ...]) -> None:
    noise = np.random.default_rng(3).standard_normal(shape)
    values = draw(Distribution.SMOOTH, np.random.default_rng(3), shape)
    frequencies = np.linalg.norm(np.meshgrid(*map(np.fft.fftfreq, shape), indexing="ij"), axis=0)
    fall = np.abs(np.fft.fftn(values)) * frequencies / np.abs(np.fft.fftn(noise))
    np.testing.assert_allclose(fall.flat[1:], fall.flat[1], rtol=1e-6)


@pytest.mark.parametrize("shape", [(509,), (2, 61, 53), (1, 47, 59, 1), (1048573,)])
def test_signs_of_smooth_values_seldom_change(shape: tuple[int, ...]) -> None:
    values = draw(Distribution.SMOOTH, np.random.default_rng(3), shape)
    assert values.shape == shape
    assert (values.mean(), values.std()) == pytest.approx((0, 1), abs=1e-9)
    signs = np.sign(values)
    axis = int(np.argmax(shape))
    assert np.mean(np.diff(signs, axis=axis) != 0) < 0.4  # 0.5 of random ones
