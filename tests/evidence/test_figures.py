import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthfold_onnx.evidence.parity.figures import distance, ulp_distance

FLOATS = [np.float16, np.float32, np.float64]


def one(dtype, value):
    return np.array([value], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("start", [0.0, 1.0, -1.0, 0.99951172, 65504.0, -3e-8, 6e-8, 2.0**-14])
@pytest.mark.parametrize("steps", [0, 1, 2, 17])
def test_ulp_counts_the_steps_of_nextafter(dtype, start, steps):
    origin = value = dtype(start)
    for _ in range(steps):
        value = np.nextafter(value, dtype(-np.inf))
    assert ulp_distance(one(dtype, origin), one(dtype, value)).tolist() == [steps]
    assert ulp_distance(one(dtype, value), one(dtype, origin)).tolist() == [steps]


@pytest.mark.parametrize("dtype", FLOATS)
def test_ulp_across_zero_and_at_the_ends(dtype):
    tiny, huge = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    assert ulp_distance(one(dtype, 0.0), one(dtype, -0.0)).tolist() == [0]
    assert ulp_distance(one(dtype, -tiny), one(dtype, tiny)).tolist() == [2]
    assert ulp_distance(one(dtype, huge), one(dtype, np.inf)).tolist() == [1]
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    finite = int(one(dtype, huge).view(unsigned)[0])
    assert int(ulp_distance(one(dtype, -huge), one(dtype, huge))[0]) == 2 * finite


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_ulp_of_float16_agrees_with_a_sorted_list_of_all(first, second):
    a, b = (np.array([bits], np.uint16).view(np.float16) for bits in (first, second))
    if np.isnan(a[0]) or np.isnan(b[0]):
        return
    low, high = sorted((float(a[0]), float(b[0])))
    values = np.unique(np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64))
    expected = np.searchsorted(values, high) - np.searchsorted(values, low)
    assert ulp_distance(a, b).tolist() == [expected]


def test_a_distance_is_that_of_finite_elements():
    a = np.array([1, np.nan, -np.inf, 5], np.float32)
    b = np.array([2, np.nan, -np.inf, 2], np.float32)
    assert distance(a, b) == (3, 2)
    assert distance(a[:0], b[:0]) == (0, 0)
    assert distance(np.array(["a", "b"]), np.array(["a", "c"])) == (1, 0.5)


def test_a_distance_says_nothing_where_nothing_can_be_said():
    ones = np.ones(3)
    assert distance(ones, np.ones(4)) is None
    assert distance(ones, np.ones(3, int)) is None
    assert distance(ones, ones * np.nan) is None
