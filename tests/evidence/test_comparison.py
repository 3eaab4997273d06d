import numpy as np
import pytest

from widthfold_onnx.evidence.parity.comparison import TRUTH_FACTOR, TRUTH_ULPS, Judge
from widthfold_onnx.options import Tolerance

EPS = float(np.finfo(np.float32).eps)
TRUTH = np.array([1.0, 0.25])


def away(distance):
    """float32 values of which the second is that far from the truth, relative to the largest."""
    values = TRUTH.astype(np.float32)
    values[1] += np.float32(distance)
    return {"y": values}


def judged(original, rewritten, tolerance=None):
    judge = Judge(tolerance or Tolerance(), set(), [{"y": TRUTH}])
    cells = judge.cells("disabled", [away(original)], [away(rewritten)])
    return judge, cells


@pytest.mark.parametrize("factor", [0.5, 1, 0.97 * TRUTH_FACTOR, 1.03 * TRUTH_FACTOR, 5])
def test_four_times_as_far_from_the_truth_is_the_limit(factor):
    judge, cells = judged(2e-6, factor * 2e-6)
    assert cells["disabled", "y", 0].max_rel < 1e-5
    assert cells["disabled", "y", 0].passed is (factor <= TRUTH_FACTOR)
    assert list(judge.failed(cells)) == ([("disabled", "y", 0)] if factor > TRUTH_FACTOR else [])


@pytest.mark.parametrize(("ulps", "passed"), [(TRUTH_ULPS, True), (TRUTH_ULPS + 0.25, False)])
def test_an_original_that_is_right_by_luck_binds_nobody_to_luck(ulps, passed):
    assert judged(0.0, ulps * EPS)[1]["disabled", "y", 0].passed is passed


def test_a_tolerance_of_the_caller_is_all_that_counts():
    for tolerance in (Tolerance(rtol=1e-5), Tolerance(per_output={"y": 1e-5}), Tolerance(atol=1)):
        assert judged(0.0, 9e-6, tolerance)[1]["disabled", "y", 0].passed
    assert not judged(0.0, 9e-6, Tolerance(per_output={"z": 1e-5}))[1]["disabled", "y", 0].passed


def test_rounding_explains_a_distance_from_the_truth_but_not_any():
    for rewritten, passed in ((3.9e-4, True), (4.2e-4, False)):
        judge, cells = judged(0.0, rewritten)
        assert not cells["disabled", "y", 0].passed
        assert judge.forgiven(cells, [{"y": 1e-4}])["disabled", "y", 0].passed is passed


def test_an_output_that_cannot_be_judged_fails_nobody():
    judge = Judge(Tolerance(), {"y"}, [{}])
    cells = judge.cells("disabled", [away(0.0)], [away(0.5)])
    assert judge.failed(cells) == {}
