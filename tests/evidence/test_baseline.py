"""A report of `verify` beside a saved one. No test asserts a measured time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.reports.sample import passing
from widthfold_onnx import UsageError, VerifyOptions
from widthfold_onnx.evidence.timing.baseline import against, differences, read_report
from widthfold_onnx.pipeline import compare
from widthfold_onnx.reports import Format, wording
from widthfold_onnx.reports.data.json import encode
from widthfold_onnx.reports.formats import render
from widthfold_onnx.results import Baseline, VerifyReport


def report(
    speedup: float, width: float = 0.01, control: float = 0.005, **fields: Any
) -> VerifyReport:
    made = passing()
    assert made.timing is not None
    figures = {"speedup": speedup, "low": speedup / (1 + width), "high": speedup * (1 + width)}
    return replace(made, timing=replace(made.timing, control=control, **figures, **fields))


def compared(now: VerifyReport) -> Baseline:
    assert now.timing is not None
    assert now.timing.baseline is not None
    return now.timing.baseline


@pytest.mark.parametrize(
    ("then", "now", "verdict", "outcome"),
    [
        (1.95, 1.71, "slower", "fail"),
        (1.95, 1.94, "no difference", "pass"),
        (1.71, 1.95, "faster", "pass"),
        (1.95, 1.89, "inconclusive", "unverified"),
    ],
)
def test_the_speed_up_is_judged_against_the_saved_one(
    then: float, now: float, verdict: str, outcome: str
) -> None:
    width = 0.005 if verdict == "no difference" else 0.01
    judged = against(report(then, width), report(now, width), "old.json", 1.0)
    found = compared(judged)
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(now / then)
    assert judged.verdict == outcome
    assert judged.timing is not None
    assert (judged.timing.fail_under, judged.timing.fail_under_verdict) == (1.0, outcome)
    assert judged.timing.speedup == now, "the speed-up itself stays that of the report"
    assert ("beside old.json" in " ".join(judged.reasons)) == (outcome != "pass")
    unasked = against(report(then, width), report(now, width), "old.json", None)
    assert (unasked.verdict, compared(unasked)) == ("pass", found)


def test_the_interval_allows_for_both() -> None:
    """Of two estimates of known spread, it holds the quotient as often as it says."""
    random = np.random.default_rng(0)
    held = 0
    for _ in range(500):
        then, now = np.exp(0.7 + np.array([0.015, 0.015]) * random.standard_normal(2))
        widths = np.expm1(1.96 * np.array([0.015, 0.015]))
        found = compared(against(report(then, widths[0]), report(now, widths[1]), "a", None))
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1 <= found.high
    assert 0.92 * 500 <= held <= 0.98 * 500


def test_the_noisier_control_counts() -> None:
    quiet, noisy = report(2.0), report(1.8, control=0.08)
    assert compared(against(quiet, report(1.8), "a", None)).verdict == "slower"
    assert compared(against(quiet, noisy, "a", None)).verdict == "inconclusive"
    assert compared(against(noisy, quiet, "a", None)).verdict == "inconclusive"


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
    judged = against(replace(saved, **{part: value}), report(1.0), "old.json", 1.0)
    found = compared(judged)
    assert (found.verdict, found.ratio) == (None, None)
    assert [text.partition(":")[0] for text in found.differs] == [name]
    assert judged.verdict == "unverified"
    assert f"not comparable with old.json: {name}" in " ".join(judged.reasons)
    assert wording.baseline(found).startswith("not judged against old.json")


def test_another_version_of_widthfold_or_rewritten_model_is_compared() -> None:
    saved = report(2.0)
    environment = replace(saved.environment, widthfold="0.0", load_before=9.0, command="x")
    assert differences(replace(saved, environment=environment, rewritten="b.onnx"), saved) == []


def test_without_times_nothing_is_judged() -> None:
    untimed = replace(passing(), timing=None)
    assert compared(against(untimed, report(2.0), "a", None)).differs == ["it holds no timing"]
    with pytest.raises(UsageError, match="there is none"):
        against(report(2.0), untimed, "a", None)
    with pytest.raises(UsageError, match="switched off"):
        VerifyOptions(timing=False, baseline=Path("a.json"))


def test_a_failed_verification_stays_failed() -> None:
    wrong = replace(report(2.0), verdict="fail", reasons=["output y differs"])
    judged = against(report(2.0, 0.001), wrong, "a", 1.0)
    assert (judged.verdict, judged.reasons) == ("fail", ["output y differs"])


def test_reports_are_read_again_and_every_form_says_it(tmp_path: Path) -> None:
    then, now = tmp_path / "then.json", tmp_path / "now.json"
    then.write_bytes(encode(report(1.95)))
    now.write_bytes(encode(report(1.71)))
    assert read_report(now) == report(1.71)
    judged = compare(then, now, 1.0)
    assert judged.verdict == "fail"
    for form in set(Format) - {Format.CSV}:
        text = render(form, judged, now).replace("&#46;", ".").replace("\\", "")
        assert "then.json" in text, form
    then.write_text("{}")
    with pytest.raises(UsageError, match="no JSON report of verify"):
        compare(then, now)
