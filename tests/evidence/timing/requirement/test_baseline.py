"""A report of `verify` beside a saved one. No test asserts a measured time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.json import encode
from msgspec.structs import replace

from tests.reports.sample import passing
from widthfold_onnx import UsageError
from widthfold_onnx.evidence.timing.requirement import differences, read_report, with_baseline
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.reports.described.verification import baseline
from widthfold_onnx.reports.formats import Format, render
from widthfold_onnx.results import Baseline, VerifyReport


def report(
    speedup: float, width: float = 0.01, control: float = 0.005, **fields: Any
) -> VerifyReport:
    report_now = passing()
    assert report_now.timing is not None
    figures = {"speedup": speedup, "low": speedup / (1 + width), "high": speedup * (1 + width)}
    figures |= {"control": control} | fields
    return replace(report_now, timing=replace(report_now.timing, **figures))


def compared(now: VerifyReport) -> Baseline:
    assert now.timing is not None
    assert now.timing.baseline is not None
    return now.timing.baseline


@pytest.mark.parametrize(
    ("then", "now", "verdict", "expected"),
    [
        (1.95, 1.71, "slower", "fail"),
        (1.95, 1.94, "no difference", "pass"),
        (1.71, 1.95, "faster", "pass"),
        (1.95, 1.89, "inconclusive", "unverified"),
    ],
)
def test_the_speed_up_is_judged_against_the_saved_one(
    then: float, now: float, verdict: str, expected: str
) -> None:
    width = 0.005 if verdict == "no difference" else 0.01
    judged = with_baseline(report(then, width), report(now, width), "old.json", 1.0)
    comparison = compared(judged)
    assert comparison.verdict == verdict
    assert comparison.ratio == pytest.approx(now / then)
    assert judged.verdict == expected
    assert judged.timing is not None
    assert (judged.timing.fail_under, judged.timing.fail_under_verdict) == (1.0, expected)
    assert judged.timing.speedup == now, "the speed-up itself stays that of the report"
    assert ("beside old.json" in " ".join(judged.reasons)) == (expected != "pass")
    unasked = with_baseline(report(then, width), report(now, width), "old.json", None)
    assert (unasked.verdict, compared(unasked)) == ("pass", comparison)


def test_the_interval_allows_for_both() -> None:
    """The interval of two estimates of known spread holds the quotient as often as it says."""
    random = np.random.default_rng(0)
    held = 0
    for _ in range(500):
        then, now = np.exp(0.7 + np.array([0.015, 0.015]) * random.standard_normal(2))
        widths = np.expm1(1.96 * np.array([0.015, 0.015]))
        comparison = compared(
            with_baseline(report(then, widths[0]), report(now, widths[1]), "a", None)
        )
        assert comparison.low is not None
        assert comparison.high is not None
        held += comparison.low <= 1 <= comparison.high
    assert 0.92 * 500 <= held <= 0.98 * 500


def test_the_noisier_control_counts() -> None:
    quiet, noisy = report(2.0), report(1.8, control=0.08)
    assert compared(with_baseline(quiet, report(1.8), "a", None)).verdict == "slower"
    assert compared(with_baseline(quiet, noisy, "a", None)).verdict == "inconclusive"
    assert compared(with_baseline(noisy, quiet, "a", None)).verdict == "inconclusive"


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": {"machine": "another"}},
        {"environment": {"onnxruntime": "1.0"}},
        {"environment": {"provider_options": {"a": "b"}}},
        {"environment": {"session_options": {"a": "b"}}},
        {"timing": {"threads": 7}},
        {"timing": {"shapes": {"x": [1, 2]}}},
        {"original": "another.onnx"},
    ],
)
def test_what_differs_is_named_and_nothing_is_judged(changes: dict[str, Any]) -> None:
    ((part, value),) = changes.items()
    saved = report(2.0)
    if isinstance(value, dict):
        ((name, _),) = value.items()
        value = replace(getattr(saved, part), **value)
    else:
        name = part
    judged = with_baseline(replace(saved, **{part: value}), report(1.0), "old.json", 1.0)
    comparison = compared(judged)
    assert (comparison.verdict, comparison.ratio) == (None, None)
    assert [text.partition(":")[0] for text in comparison.differs] == [name]
    assert judged.verdict == "unverified"
    assert f"not comparable with old.json: {name}" in " ".join(judged.reasons)
    assert baseline(comparison).startswith("not judged against old.json")


def test_another_version_of_widthfold_or_rewritten_model_is_compared() -> None:
    saved = report(2.0)
    environment = replace(saved.environment, widthfold="0.0", load_before=9.0, command="x")
    assert differences(replace(saved, environment=environment, rewritten="b.onnx"), saved) == []


def test_without_times_nothing_is_judged() -> None:
    untimed = replace(passing(), timing=None)
    assert compared(with_baseline(untimed, report(2.0), "a", None)).differs == [
        "it holds no timing"
    ]
    assert with_baseline(report(2.0), untimed, "a", 1.0) == untimed
    with pytest.raises(UsageError, match="switched off"):
        VerifyOptions(timing=False, baseline=Path("a.json"))


def test_a_run_on_cores_that_were_not_free_says_nothing() -> None:
    busy = {"threads": 4, "crowded": True, "note": "the machine was busy"}
    for then, now in ((busy, {"threads": 4}), ({"threads": 4}, busy)):
        judged = with_baseline(report(1.95, **then), report(1.5, **now), "a", 1.0)
        assert (compared(judged).verdict, judged.verdict) == ("inconclusive", "unverified")
        assert "the machine was busy" in judged.reasons[-1]
    alone = with_baseline(report(1.95, crowded=True), report(1.5, crowded=True), "a", 1.0)
    assert compared(alone).verdict == "slower"


def test_the_figures_are_named_for_what_they_are() -> None:
    (reason,) = with_baseline(report(1.95), report(1.5), "a", 1.0).reasons
    assert "now / then = 0.769" in reason
    assert "original" not in reason


def test_what_is_slower_fails_though_more_is_unknown() -> None:
    unknown = replace(report(1.5), verdict="unverified", reasons=["not proved"])
    judged = with_baseline(report(1.95), unknown, "a", 1.0)
    assert judged.verdict == "fail"
    assert judged.reasons[0] == "not proved"


@pytest.mark.parametrize("least", [0, -1, math.nan, math.inf])
def test_what_is_asked_for_is_a_number_above_0(least: float) -> None:
    with pytest.raises(UsageError, match="fail-under"):
        VerifyOptions(fail_under=least)


@pytest.mark.parametrize(
    "figures",
    [
        {"speedup": 0.0},
        {"low": -1.0},
        {"low": 0.0},
        {"high": 1e308},
        {"low": 3.0},
        {"high": 0.5},
        {"control": -1.0},
        {"control": 1e308},
    ],
)
def test_figures_that_no_clock_measures_are_refused(
    figures: dict[str, float], tmp_path: Path
) -> None:
    edited = tmp_path / "edited.json"
    edited.write_bytes(encode(report(**({"speedup": 1.95} | figures))))
    with pytest.raises(UsageError, match=r"edited\.json' is no JSON report of verify"):
        read_report(edited)


def test_other_schemas_and_what_cannot_be_decoded_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "then.json"
    good = encode(report(1.95))
    nested = b'{"new": ' + b"[" * 100_000 + b"]" * 100_000 + b", " + good[1:]
    for data in (
        encode(replace(report(1.95), schema="widthfold.verify/99")),
        good.replace(b"cpu", b"\xff\xfe"),
        nested,
    ):
        path.write_bytes(data)
        with pytest.raises(UsageError, match="no JSON report of verify"):
            read_report(path)


def test_a_failed_verification_stays_failed() -> None:
    wrong = replace(report(2.0), verdict="fail", reasons=["output y differs"])
    judged = with_baseline(report(2.0, 0.001), wrong, "a", 1.0)
    assert (judged.verdict, judged.reasons) == ("fail", ["output y differs"])


def test_reports_are_read_again_and_every_form_says_it(tmp_path: Path) -> None:
    then, now = tmp_path / "then.json", tmp_path / "now.json"
    then.write_bytes(encode(report(1.95)))
    now.write_bytes(encode(report(1.71)))
    assert read_report(now) == report(1.71)
    judged = with_baseline(read_report(then), read_report(now), then.name, 1.0)
    assert judged.verdict == "fail"
    for form in Format:
        text = render(form, judged, now).replace("&#46;", ".").replace("\\", "")
        assert "then.json" in text, form
    then.write_text("{}")
    with pytest.raises(UsageError, match="no JSON report of verify"):
        read_report(then)
