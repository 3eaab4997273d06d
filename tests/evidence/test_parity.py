import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthfold_onnx.evidence.parity import figures
from widthfold_onnx.evidence.parity.figures import Distance
from widthfold_onnx.evidence.parity.outputs import compare, meaningless, worst
from widthfold_onnx.options import Tolerance

FLOATS = [np.float16, np.float32, np.float64]
NORMAL = Tolerance()


def one(dtype, value):
    return np.array([value], dtype)


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


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, np.bool_])
def test_integers_must_be_equal(dtype):
    reference = np.array([0, 1, 1], dtype)
    candidate = np.array([0, 1, 0], dtype)
    assert compare("y", reference, reference, Tolerance(rtol=0.5)).passed
    row = compare("y", reference, candidate, Tolerance(rtol=0.5))
    assert not row.passed
    assert (row.max_abs, row.ulp, row.tolerance) == (1.0, None, 0.0)


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
    assert row.cosine is None


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


def test_a_scalar_shows_something():
    assert not meaningless([compare("y", np.float32(5)[None], np.float32(5)[None], NORMAL)])


def test_a_zero_reference_has_no_relative_error():
    zeros = np.zeros(3, np.float32)
    assert compare("y", zeros, zeros, NORMAL).max_rel == 0.0
    row = compare("y", zeros, zeros + np.float32(1e-20), NORMAL)
    assert (row.passed, row.max_rel) == (False, None)


def test_cosine():
    a = np.array([3e300, 4e300])
    assert compare("y", a, a, NORMAL).cosine == pytest.approx(1.0)
    assert compare("y", a, -a, NORMAL).cosine == pytest.approx(-1.0)
    assert compare("y", a, np.array([-4e300, 3e300]), NORMAL).cosine == pytest.approx(0, abs=1e-12)


def test_a_distance_past_the_largest_float_is_none():
    row = compare("y", np.array([1.7e308, 1]), np.array([-1.7e308, 1]), NORMAL)
    assert (row.passed, row.max_abs) == (False, None)


def test_complex_numbers_count_both_parts():
    reference = np.array([1 + 2j, 3 - 4j], np.complex64)
    assert compare("y", reference, reference, NORMAL).passed
    row = compare("y", reference, reference + np.complex64(0.5j), NORMAL)
    assert row.max_abs == 0.5


def test_worst_keeps_the_worse_of_each_figure():
    reference = np.array([1.0, -2.0, 4.0], np.float32)
    first = compare("y", reference, reference, NORMAL)
    second = compare("y", reference, np.array([1.0, -2.0, 5.0], np.float32), NORMAL)
    nan = np.array([np.nan, -2.0, 4.0], np.float32)
    third = compare("y", nan, reference, NORMAL)
    for one_way in (worst(worst(first, second), third), worst(third, worst(second, first))):
        assert one_way.max_abs == 1.0
        assert one_way.max_rel == 0.25
        assert one_way.ulp == second.ulp
        assert one_way.cosine == second.cosine
        assert not one_way.nonfinite_match
        assert not one_way.passed
        assert one_way.note == "NaN or Inf at other places"


def test_worst_forgets_not_meaningful_when_one_set_shows_something():
    equal, varied = np.ones(3, np.float32), np.arange(3, dtype=np.float32)
    dull, good = compare("y", equal, equal, NORMAL), compare("y", varied, varied, NORMAL)
    assert meaningless([worst(dull, dull)])
    for row in (worst(dull, good), worst(good, dull)):
        assert (row.note, row.caveat) == ("", "")
    assert not meaningless([dull, good])


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
    assert row.psnr == pytest.approx(10 * np.log10(64 / ((1 + 8.5**2) / 6)))
    assert row.argmax_agreement == 0.5
    assert (row.worst.index, row.worst.original, row.worst.rewritten) == ([1, 2], 0.5, 9.0)


def test_equal_arrays_have_no_worst_element_and_no_psnr():
    array = np.array([[1.0, 2.0]], np.float32)
    row = compare("y", array, array, NORMAL)
    assert (row.worst, row.psnr, row.mean_abs, row.argmax_agreement) == (None, None, 0.0, 1.0)
    assert row.ulp_histogram == [2]


def test_argmax_needs_two_classes():
    one_class = np.ones((5, 1), np.float32)
    assert compare("y", one_class, one_class, NORMAL).argmax_agreement is None
    assert compare("y", np.float32(1), np.float32(1), NORMAL).argmax_agreement is None
    labels = np.array([[3, 1], [1, 3]])
    assert compare("y", labels, labels[::-1], NORMAL).argmax_agreement == 0.0


@pytest.mark.parametrize("dtype", FLOATS)
def test_ulp_bins_are_powers_of_two(dtype):
    steps = [0, 1, 2, 3, 4, 7, 8, 15, 16]
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    reference = np.ones(len(steps), dtype)
    candidate = (reference.view(unsigned) + np.array(steps, unsigned)).view(dtype)
    row = compare("y", reference, candidate, NORMAL)
    assert row.ulp_histogram == [1, 1, 2, 2, 2, 1]


def test_the_widest_ulp_bins():
    top = np.array([np.finfo(np.float64).max])
    apart = 2 * int(top.view(np.uint64)[0])
    row = compare("y", top, -top, NORMAL)
    assert row.ulp_histogram == [0] * apart.bit_length() + [1]
    # 2**54 - 1 has 54 digits, and rounds to 2**54 as a float64
    low = np.zeros(1, np.uint64)
    row = compare("y", low.view(float), (low + np.uint64(2**54 - 1)).view(float), NORMAL)
    assert row.ulp_histogram == [0] * 54 + [1]


def test_worst_adds_histograms_and_keeps_the_farther_element():
    reference = np.array([1.0, -2.0, 4.0], np.float32)
    near = compare("y", reference, np.array([1.0, -2.5, 4.0], np.float32), NORMAL)
    far = compare("y", reference, np.array([1.0, -2.0, 6.0], np.float32), NORMAL)
    for row in (worst(near, far), worst(far, near)):
        assert row.worst.index == [2]
        assert row.worst.rewritten == 6.0
        assert sum(row.ulp_histogram) == 6
        assert row.ulp_histogram[0] == 4
        assert row.psnr == far.psnr < near.psnr
        assert row.mean_abs == far.mean_abs
    equal = compare("y", reference, reference, NORMAL)
    assert worst(equal, near).psnr == near.psnr
    assert worst(equal, near).worst == near.worst


def test_worst_of_complex_numbers_is_indexed_by_number():
    reference = np.array([1 + 2j, 3 - 4j], np.complex64)
    row = compare("y", reference, reference + np.array([0, 0.5j], np.complex64), NORMAL)
    assert (row.worst.index, row.worst.original, row.worst.rewritten) == ([1], -4.0, -3.5)


def test_worst_keeps_the_numbers_of_the_side_that_was_nearer_to_failing():
    array = np.arange(3, dtype=np.float32)
    plain = compare("y", array, array, NORMAL)
    near = msgspec.structs.replace(plain, max_rel=8e-6, movement=1e-7)
    given = {"max_rel": 1e-3, "movement": 1e-3, "tolerance": 1e-2}
    far = msgspec.structs.replace(plain, note="b", caveat="ill-conditioned", **given)
    for row in (worst(near, far), worst(far, near)):
        assert (row.max_rel, row.movement, row.tolerance) == (8e-6, 1e-7, 1e-5)
        assert (row.note, row.caveat) == ("b", "ill-conditioned")
    failed = msgspec.structs.replace(plain, passed=False, max_rel=1e-4, note="c")
    row = worst(far, failed)
    assert (row.max_rel, row.note, row.tolerance, row.passed) == (1e-4, "c", 1e-5, False)


MOVED = Distance(1e-3, 1e-4)


@pytest.mark.parametrize(
    ("away", "passed"), [((0.0099, 0, 0, 0), True), ((0.0101, 0, 0, 0), False)]
)
def test_a_multiple_of_the_movement_is_allowed(away, passed):
    reference = np.array([1.0] + 9 * [0.5])
    candidate = reference.copy()
    candidate[:4] += away
    row = compare("y", reference, candidate, NORMAL, movement=MOVED, multiple=10)
    assert (row.passed, row.movement, row.tolerance) == (passed, 1e-3, 1e-2)
    assert (row.caveat == "ill-conditioned") is passed
    for chosen in (Tolerance(rtol=1e-4), Tolerance(atol=1e-4), Tolerance(per_output={"y": 1e-4})):
        assert not compare("y", reference, candidate, chosen, movement=MOVED, multiple=10).passed


def test_the_mean_may_not_be_further_off_either():
    reference = np.array([1.0] + 9 * [0.5])
    row = compare("y", reference, reference + 2e-3, NORMAL, movement=MOVED, multiple=10)
    assert (row.passed, row.note) == (False, "the mean distance is 0.002, allowed 0.001")


@pytest.mark.parametrize(
    ("steps", "passed"),
    [((1, 0, 0, 0), True), ((1, 1, 1, 0), True), ((2, 0, 0, 0), False), ((1, 1, 1, 1), False)],
)
def test_integers_are_no_further_off_than_copies_and_not_many_more_of_them(steps, passed):
    reference = np.arange(4, dtype=np.uint8)
    candidate = reference + np.array(steps, np.uint8)
    row = compare("y", reference, candidate, NORMAL, movement=Distance(1, 0.25), multiple=3)
    assert row.passed is passed


def test_texts_may_differ_where_those_of_copies_do():
    reference, candidate = np.array(["a", "b"]), np.array(["a", "c"])
    assert compare("y", reference, candidate, NORMAL, movement=Distance(1, 0.5)).passed
    assert not compare("y", reference, candidate, NORMAL, movement=Distance()).passed


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.complex64, np.int8, np.bool_])
@pytest.mark.parametrize("hole", [False, True])
def test_blocks_change_no_figure(dtype, hole, monkeypatch):
    rng = np.random.default_rng(0)
    sides = [(50 * rng.standard_normal((4, 17))).astype(dtype) for _ in range(2)]
    if hole and np.dtype(dtype).kind == "f":
        for side in sides:
            side.flat[[0, 9]], side.flat[30] = np.nan, -np.inf
    whole = compare("y", *sides, NORMAL)
    monkeypatch.setattr(figures, "BLOCK", 7)
    parts = compare("y", *sides, NORMAL)
    for field in msgspec.structs.fields(whole):
        one, other = getattr(whole, field.name), getattr(parts, field.name)
        exact = field.name not in ("mean_abs", "cosine", "psnr") or one is None
        assert other == (one if exact else pytest.approx(one, rel=1e-9)), field.name
