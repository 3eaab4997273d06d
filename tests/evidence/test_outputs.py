import numpy as np

from widthfold_onnx.evidence.parity.outputs import distance


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
