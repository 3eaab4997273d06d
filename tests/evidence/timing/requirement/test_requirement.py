"""`--fail-under`: what becomes of a speed-up and its interval. No test asserts a measured time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.reports.sample import DIFFERENT, passing, timing
from widthfold_onnx import UsageError
from widthfold_onnx.evidence.timing.requirement import gate
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.reports.described.verification import meaning
from widthfold_onnx.results import Timing
from widthfold_onnx.runtime.intervals import noise, speed_verdict


def measured(low: float, high: float, control: float = 0.005, **fields) -> Timing:
    verdict = speed_verdict(low, high, control)
    middle = (low * high) ** 0.5
    fields |= {"speedup": middle, "low": low, "high": high, "control": control}
    return replace(timing(), verdict=verdict, **fields)


@pytest.mark.parametrize(
    ("timing", "least", "expected"),
    [
        (measured(0.995, 1.004), 1.0, "pass"),  # identical models
        (measured(0.985, 0.990), 1.0, "pass"),  # a percent is noise
        (measured(0.90, 0.91), 1.0, "fail"),
        (measured(0.90, 0.91, 0.2), 1.0, "pass"),  # two copies of one model differ by more
        (measured(0.90, 0.91), 0.9, "pass"),
        (measured(0.90, 0.91), 0.8, "pass"),
        (measured(1.70, 1.72), 1.0, "pass"),
        (measured(1.70, 1.72), 1.7, "pass"),
        (measured(1.70, 1.72), 1.8, "fail"),
        (measured(0.6, 1.7), 1.0, "unverified"),
        (measured(0.6, 0.7), 1.0, "fail"),  # wide, but clear
        (measured(1.3, 1.7), 1.0, "pass"),
        (measured(1.3, 1.7), 1.5, "unverified"),
        (measured(1.3, 1.7), 2.0, "fail"),
        (measured(0.97, 1.04, 0.04), 1.0, "pass"),  # identical, on a noisy host
        (measured(0.80, 0.98, 0.04), 1.0, "unverified"),
        (measured(0.96, 1.04), 1.0, "unverified"),  # as one process may
        (measured(0.5, 0.6, crowded=True, threads=4), 1.0, "unverified"),
        (measured(1.5, 1.6, crowded=True, threads=4), 1.0, "unverified"),
        (measured(0.5, 0.6, crowded=True, threads=1), 1.0, "fail"),
    ],
)
def test_the_rule(timing: Timing, least: float, expected: str) -> None:
    verdict, why = gate(timing, least)
    assert verdict == expected
    assert bool(why) == (expected != "pass")
    if why:
        for part in (
            f"--fail-under {least:g}",
            f"[{timing.low:.3f}, {timing.high:.3f}]",
            "control",
        ):
            assert part in why


@given(
    low=st.floats(0.2, 4),
    width=st.floats(1, 3),
    control=st.floats(0, 1),
)
def test_at_one_it_is_the_verdict_on_speed(low: float, width: float, control: float) -> None:
    timing = measured(low, low * width, control)
    verdict, _ = gate(timing, 1.0)
    if timing.verdict == "inconclusive":
        assert verdict == ("pass" if low * noise(control) >= 1 else "unverified")
    else:
        assert verdict == ("fail" if timing.verdict == "slower" else "pass")


@given(low=st.floats(0.5, 1), high=st.floats(1, 2), control=st.floats(0, 1))
def test_an_interval_that_holds_what_is_required_never_fails(
    low: float, high: float, control: float
) -> None:
    for least in (0.8, 1.0, 1.5):
        verdict, _ = gate(measured(low * least, high * least, control), least)
        assert verdict == ("pass" if low * least / least * noise(control) >= 1 else "unverified")


@given(width=st.floats(0, 0.4))
def test_identical_models_pass_however_noisy_the_host(width: float) -> None:
    """Then the control shows what the pair shows."""
    timing = measured(1 - width, 1 + width, width)
    assert gate(timing, 1.0) == ("pass", "")


def test_a_required_speed_needs_a_timing() -> None:
    with pytest.raises(UsageError, match="switched off"):
        VerifyOptions(timing=False, fail_under=1.0)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="above 0"):
            VerifyOptions(fail_under=wrong)


def test_a_report_tells_slow_from_wrong() -> None:
    report = passing()
    assert report.timing is not None
    slow = replace(report, verdict="fail", timing=replace(report.timing, fail_under_verdict="fail"))
    assert meaning(slow).endswith("computes what the original computes, but is too slow")
    wrong = replace(slow, proof=DIFFERENT)
    assert meaning(wrong).endswith("does not compute what the original computes")
    unsure = replace(
        report, verdict="unverified", timing=replace(report.timing, fail_under_verdict="unverified")
    )
    assert meaning(unsure).endswith("but may be too slow")
