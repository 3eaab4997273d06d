"""Steps of a quantizer that rounding tips: what is forgiven, and what never is."""

from __future__ import annotations

import numpy as np

from widthfold_onnx.evidence.deployed import Deployed, stepped
from widthfold_onnx.evidence.rows import Judge
from widthfold_onnx.options import Tolerance

PLAIN = [{"y": np.array([10.0, 2.0, 3.0], np.float32)}]
TIPPED = [{"y": np.array([10.0, 2.1, 3.0], np.float32)}]
FAR = [{"y": np.array([10.0, 9.0, 3.0], np.float32)}]


def passed(candidate, deployed, original=TIPPED, tolerance: Tolerance | None = None) -> bool:
    """Whether a candidate passes, by what both models return as deployed."""
    judge = Judge(tolerance or Tolerance(), set(), [{}])
    cells = judge.cells("disabled", PLAIN, candidate)
    ends = Deployed(judge.cells("all", original, deployed), original=original)
    (cell,) = stepped(cells, PLAIN, ends, judge)["y"].values()
    return cell.passed


def test_a_step_that_the_original_takes_between_levels_passes() -> None:
    assert passed(TIPPED, TIPPED)


def test_a_difference_as_deployed_is_never_forgiven() -> None:
    assert not passed(TIPPED, PLAIN)


def test_an_original_that_is_the_same_at_both_levels_forgives_nothing() -> None:
    assert not passed(TIPPED, PLAIN, original=PLAIN)


def test_a_difference_of_another_size_is_not_a_step() -> None:
    assert not passed(FAR, TIPPED)


def test_a_tolerance_that_was_chosen_is_never_exceeded() -> None:
    assert not passed(TIPPED, TIPPED, tolerance=Tolerance(rtol=1e-4))
    assert not passed(TIPPED, TIPPED, tolerance=Tolerance(per_output={"y": 1e-4}))


def test_what_passes_says_why() -> None:
    judge = Judge(Tolerance(), set(), [{}])
    ends = Deployed(judge.cells("all", TIPPED, TIPPED), original=TIPPED)
    (cell,) = stepped(judge.cells("disabled", PLAIN, TIPPED), PLAIN, ends, judge)["y"].values()
    assert cell.note.startswith("equal bit for bit as deployed")
    assert "moves by 0.01 of its largest value" in cell.note
