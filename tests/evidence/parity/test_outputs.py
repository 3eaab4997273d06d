"""Two arrays against each other: tolerances, integers, texts, NaN and Inf."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthfold_onnx.evidence.parity import outputs
from widthfold_onnx.evidence.parity.judgement import report_rows
from widthfold_onnx.evidence.parity.outputs import Allowance, Distance, compare, distance, pairs
from widthfold_onnx.options import Tolerance

FLOATS = [np.float16, np.float32, np.float64]
NORMAL = Tolerance()


@pytest.mark.parametrize(
    ("dtype", "step"),
    [(np.float32, 1e-5), (np.float16, 2e-3), (np.float64, 1e-12)],
)
def test_the_default_tolerance_is_relative_to_the_largest_reference(dtype, step):
    reference = np.array([1e-3, 100.0, -7.0], dtype)
    good, bad = reference.copy(), reference.copy()
    good[0] += dtype(100 * step * 0.9)
    bad[0] += dtype(100 * step * 1.2)
    assert compare("y", reference, good, NORMAL).passed
    row = compare("y", reference, bad, NORMAL)
    assert not row.passed
    assert row.max_rel == pytest.approx(step * 1.2, rel=0.05)
    assert row.max_abs == pytest.approx(step * 120, rel=0.05)
    assert row.tolerance == step


def test_max_rel_is_the_smallest_tolerance_that_passes():
    reference = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    candidate = reference * np.float32(1.001)
    needed = compare("y", reference, candidate, NORMAL).max_rel
    assert compare("y", reference, candidate, Tolerance(rtol=needed * 1.0001)).passed
    assert not compare("y", reference, candidate, Tolerance(rtol=needed * 0.999)).passed


def test_tolerances_per_output_and_absolute():
    reference, candidate = np.array([1.0, 2.0], np.float32), np.array([1.0, 2.1], np.float32)
    assert compare("y", reference, candidate, Tolerance(per_output={"y": 0.06})).passed
    assert not compare("z", reference, candidate, Tolerance(per_output={"y": 0.06})).passed
    assert compare("y", reference, candidate, Tolerance(atol=0.11)).passed


def test_the_reported_tolerance_is_all_that_was_allowed():
    reference, candidate = np.array([4.0, 1.0], np.float32), np.array([4.0, 1.5], np.float32)
    row = compare("y", reference, candidate, Tolerance(rtol=0.05, atol=0.2))
    assert (row.passed, row.max_rel) == (False, 0.125)
    assert row.tolerance == pytest.approx(0.05 + 0.2 / 4)
    near = compare("y", reference, candidate, Tolerance(rtol=0.05, atol=0.4))
    assert (near.passed, near.tolerance) == (True, pytest.approx(0.15))
    assert (row.share_of_allowed > 1) > (near.share_of_allowed > 1)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, np.bool_])
def test_integers_must_be_equal(dtype):
    reference = np.array([0, 1, 1], dtype)
    candidate = np.array([0, 1, 0], dtype)
    assert compare("y", reference, reference, Tolerance(rtol=0.5)).passed
    row = compare("y", reference, candidate, Tolerance(rtol=0.5))
    assert not row.passed
    assert (row.max_abs, row.tolerance) == (1.0, 0.0)


def test_large_integers_that_differ_by_one_differ():
    reference = np.array([2**62, -(2**63)], np.int64)
    row = compare("y", reference, reference + np.array([1, 0]), NORMAL)
    assert not row.passed
    assert row.max_abs == 1.0
    ends = compare("y", np.array([-(2**63)]), np.array([2**63 - 1]), NORMAL)
    assert ends.max_abs == pytest.approx(2.0**64)


def test_texts():
    reference = np.array(["a", "b"], dtype=object)
    assert compare("y", reference, reference.copy(), NORMAL).passed
    row = compare("y", reference, np.array(["a", "c"], dtype=object), NORMAL)
    assert (row.passed, row.note, row.dtype) == (False, "texts differ", "string")


def test_another_dtype_or_shape_fails_with_a_note():
    reference = np.ones((2, 3), np.float32)
    row = compare("y", reference, np.ones((3, 2), np.float32), NORMAL)
    assert (row.passed, row.max_abs) == (False, None)
    assert row.note == "float32[3, 2] instead of float32[2, 3]"
    assert "float64[2, 3] instead of" in compare("y", reference, np.ones((2, 3)), NORMAL).note


@pytest.mark.parametrize(
    ("candidate", "same"),
    [
        ([1, np.nan, np.inf, -np.inf], True),
        ([np.nan, 1, np.inf, -np.inf], False),
        ([1, np.nan, np.inf, np.inf], False),
        ([1, np.inf, np.inf, -np.inf], False),
        ([1, np.nan, 5, -np.inf], False),
        ([np.nan, np.nan, np.inf, -np.inf], False),
    ],
)
def test_nan_and_inf_must_be_at_the_same_places(candidate, same):
    reference = np.array([1, np.nan, np.inf, -np.inf], np.float32)
    row = compare("y", reference, np.array(candidate, np.float32), NORMAL)
    assert row.nonfinite_match is same
    assert row.passed is same


def test_a_finite_error_beside_equal_nans_is_seen():
    reference = np.array([1, np.nan, 3], np.float32)
    assert not compare("y", reference, np.array([1.1, np.nan, 3], np.float32), NORMAL).passed


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "empty"),
        ([np.nan, np.inf], "no value is finite"),
        ([5, 5, 5], "all values are equal"),
    ],
)
def test_outputs_that_show_nothing_are_noted(values, words):
    array = np.array(values, np.float32)
    row = compare("y", array, array, NORMAL)
    assert row.passed
    assert row.caveat == "meaningless"
    assert words in row.note


SATURATED = np.array([[0, 1, 0], [1, 0, 0]], np.float32)


@pytest.mark.parametrize(
    ("values", "is_saturated"),
    [
        (SATURATED, True),
        (SATURATED.astype(np.float16) * 3 - 1, True),
        (SATURATED + np.float32([[1e-30, -1e-7, 0]]), True),  # a truth in float64, say
        (SATURATED + np.float32([[1e-4, 0, 0]]), False),
        (SATURATED * np.float32([1, 1, 0.5]) + np.float32([[0, 0, 0.5], [0, 0, 0]]), False),
        (SATURATED.astype(np.int64), False),
        (SATURATED.astype(np.bool_), False),
        (np.float32([0, 1]), False),
        (np.float32([0, 1, np.inf, 1]), False),
        (np.float32([-3e38, 3e38, 3e38, -3e38]), True),  # their distance is Inf
    ],
)
def test_an_output_of_two_values_is_a_weak_check(values, is_saturated):
    row = compare("y", values, values, NORMAL)
    assert row.passed
    assert row.caveat == ("saturated" if is_saturated else "")
    assert row.note == ("a weak check: every value is one of two" if is_saturated else "")


def test_a_saturated_output_that_differs_is_reported_as_differing():
    row = compare("y", SATURATED, SATURATED[::-1].copy(), NORMAL)
    assert not row.passed
    assert row.caveat == ""


def test_one_set_that_is_not_saturated_is_enough():
    varied = np.arange(6, dtype=np.float32)
    dull, good = (compare("y", each, each, NORMAL) for each in (SATURATED, varied))
    assert reported(dull, dull)[0].caveat == "saturated"
    assert reported(dull, good) == reported(good, dull) == [good]


def test_a_scalar_shows_something():
    assert compare("y", np.float32(5)[None], np.float32(5)[None], NORMAL).caveat == ""


def test_a_zero_reference_has_no_relative_error():
    zeros = np.zeros(3, np.float32)
    assert compare("y", zeros, zeros, NORMAL).max_rel == 0.0
    row = compare("y", zeros, zeros + np.float32(1e-20), NORMAL)
    assert (row.passed, row.max_rel) == (False, None)


def test_a_distance_past_the_largest_float_is_none():
    row = compare("y", np.array([1.7e308, 1]), np.array([-1.7e308, 1]), NORMAL)
    assert (row.passed, row.max_abs) == (False, None)


def test_complex_numbers_count_both_parts():
    reference = np.array([1 + 2j, 3 - 4j], np.complex64)
    assert compare("y", reference, reference, NORMAL).passed
    row = compare("y", reference, reference + np.complex64(0.5j), NORMAL)
    assert row.max_abs == 0.5


@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_an_array_equals_itself(values):
    array = np.array(values, np.float32)
    row = compare("y", array, array.copy(), NORMAL)
    assert row.passed
    assert row.max_abs in (0.0, None)


def test_figures_against_hand_computed_values():
    reference = np.array([[1.0, 2.0, 4.0], [8.0, -8.0, 0.5]], np.float32)
    candidate = reference.copy()
    candidate[0, 1] = 3.0
    candidate[1, 2] = 9.0
    row = compare("y", reference, candidate, NORMAL)
    assert (row.max_abs, row.max_rel) == (8.5, 8.5 / 8)
    assert row.mean_abs == pytest.approx((1 + 8.5) / 6)
    assert (row.worst.index, row.worst.original, row.worst.rewritten) == ([1, 2], 0.5, 9.0)


def test_worst_of_complex_numbers_is_indexed_by_number():
    reference = np.array([1 + 2j, 3 - 4j], np.complex64)
    row = compare("y", reference, reference + np.array([0, 0.5j], np.complex64), NORMAL)
    assert (row.worst.index, row.worst.original, row.worst.rewritten) == ([1], -4.0, -3.5)


def reported(*rows):
    return report_rows({("all", row.name, i): row for i, row in enumerate(rows)})


def test_a_row_is_the_set_that_was_nearest_to_failing():
    array = np.arange(3, dtype=np.float32)
    equal = compare("y", array, array, NORMAL)
    assert equal.worst is None
    near = msgspec.structs.replace(equal, max_rel=8e-6, movement=1e-7)
    moved = {"max_rel": 1e-3, "movement": 1e-3, "tolerance": 1e-2}
    far = msgspec.structs.replace(equal, note="b", caveat="ill-conditioned", **moved)
    failed = msgspec.structs.replace(equal, passed=False, max_rel=1e-4)
    nan = compare("y", array, np.array([np.nan, 1, 2], np.float32), NORMAL)
    ranked = [equal, near, far, failed, nan]
    for i, row in enumerate(ranked):
        assert reported(*ranked[: i + 1]) == reported(*reversed(ranked[: i + 1])) == [row]
    other = msgspec.structs.replace(equal, name="z")
    assert reported(equal, other, near) == [near, other]


def test_a_row_says_something_when_one_set_does():
    flat, varied = np.ones(3, np.float32), np.arange(3, dtype=np.float32)
    dull = compare("y", flat, flat + np.float32(1e-6), NORMAL)
    good = compare("y", varied, varied, NORMAL)
    assert reported(dull, dull)[0].caveat == "meaningless"
    assert reported(dull, good) == reported(good, dull) == [good]


MOVED = Distance(1e-3, 1e-4)


@pytest.mark.parametrize(
    ("away", "passed"), [((0.0099, 0, 0, 0), True), ((0.0101, 0, 0, 0), False)]
)
def test_a_multiple_of_the_movement_is_allowed(away, passed):
    reference = np.array([1.0] + 9 * [0.5])
    candidate = reference.copy()
    candidate[:4] += away
    row = compare("y", reference, candidate, NORMAL, Allowance(MOVED, 10))
    assert (row.passed, row.movement, row.tolerance) == (passed, 1e-3, 1e-2)
    assert (row.caveat == "ill-conditioned") is passed
    for chosen in (Tolerance(rtol=1e-4), Tolerance(atol=1e-4), Tolerance(per_output={"y": 1e-4})):
        assert not compare("y", reference, candidate, chosen, Allowance(MOVED, 10)).passed


def test_the_mean_may_not_be_further_off_either():
    reference = np.array([1.0] + 9 * [0.5])
    row = compare("y", reference, reference + 2e-3, NORMAL, Allowance(MOVED, 10))
    assert (row.passed, row.note) == (False, "the mean distance is 0.002, allowed 0.001")


@pytest.mark.parametrize(
    ("steps", "passed"),
    [((1, 0, 0, 0), True), ((1, 1, 1, 0), True), ((2, 0, 0, 0), False), ((1, 1, 1, 1), False)],
)
def test_integers_are_no_further_off_than_copies_and_not_many_more_of_them(steps, passed):
    reference = np.arange(4, dtype=np.uint8)
    candidate = reference + np.array(steps, np.uint8)
    row = compare("y", reference, candidate, NORMAL, Allowance(Distance(1, 0.25), 3))
    assert row.passed is passed


def test_texts_may_differ_where_those_of_copies_do():
    reference, candidate = np.array(["a", "b"]), np.array(["a", "c"])
    assert compare("y", reference, candidate, NORMAL, Allowance(Distance(1, 0.5))).passed
    assert not compare("y", reference, candidate, NORMAL, Allowance(Distance())).passed


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.complex64, np.int8, np.bool_])
@pytest.mark.parametrize("hole", [False, True])
def test_blocks_change_no_figure(dtype, hole, monkeypatch):
    rng = np.random.default_rng(0)
    sides = [(50 * rng.standard_normal((4, 17))).astype(dtype) for _ in range(2)]
    if hole and np.dtype(dtype).kind == "f":
        for side in sides:
            side.flat[[0, 9]], side.flat[30] = np.nan, -np.inf
    whole = compare("y", *sides, NORMAL)
    monkeypatch.setattr(outputs, "COMPARED_ELEMENTS", 7)
    parts = compare("y", *sides, NORMAL)
    for field in msgspec.structs.fields(whole):
        first, other = getattr(whole, field.name), getattr(parts, field.name)
        exact = field.name != "mean_abs" or first is None
        assert other == (first if exact else pytest.approx(first, rel=1e-9)), field.name


def test_a_distance_is_that_of_finite_elements():
    a = np.array([1, np.nan, -np.inf, 5], np.float32)
    b = np.array([2, np.nan, -np.inf, 2], np.float32)
    assert distance(a, b) == (3, 2)
    assert distance(a[:0], b[:0]) == (0, 0)
    assert distance(np.array(["a", "b"]), np.array(["a", "c"])) == (1, 0.5)


def test_a_distance_says_nothing_where_nothing_can_be_said():
    flat = np.ones(3)
    assert distance(flat, np.ones(4)) is None
    assert distance(flat, np.ones(3, int)) is None
    assert distance(flat, flat * np.nan) is None


def test_an_output_that_one_run_lacks_is_empty_there() -> None:
    first, second = np.ones((2, 3), np.float32), np.arange(4)
    paired = pairs({"a": first, "b": second}, {"c": second, "b": first})
    assert {name: (x.shape, y.shape) for name, (x, y) in paired.items()} == {
        "a": ((2, 3), (0, 2, 3)),
        "b": ((4,), (2, 3)),
        "c": ((0, 4), (4,)),
    }
    assert [y.dtype for _, y in paired.values()] == [np.float32, np.float32, np.int64]
