import numpy as np
import pytest

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.sessions.ports import Port


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
