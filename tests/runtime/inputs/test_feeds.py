"""Random inputs: their values, distributions and types."""

from __future__ import annotations

import numpy as np
import pytest

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.runtime.inputs.feeds import Distribution, distribution_of, draw, random_feeds
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


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int64", "uint64", "bool"])
def test_integers_are_small_indices(dtype):
    array = random_feeds([Port("x", dtype, ())], 0, {"x": (100,)})["x"]
    assert array.dtype == dtype
    assert set(array.tolist()) == {0, 1}


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
