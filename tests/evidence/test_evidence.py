"""Options of the child process, and the report where it gives no answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.json import encode

from tests.reports.sample import passing
from tests.small_models import build, save
from widthfold_onnx import evidence
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence import verify_files
from widthfold_onnx.model.loader import LoadedModel, load
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.results import VerifyReport


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    return load(save(build(), tmp_path / "m.onnx"))


def test_the_gain_is_judged_beside_the_baseline_alone(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child knows of no baseline: it would ask that gain of the speed-up itself."""
    thresholds: list[float | None] = []

    def child(*arguments: object, on_message: object) -> VerifyReport:
        (options,) = [item for item in arguments if isinstance(item, VerifyOptions)]
        thresholds.append(options.fail_under)
        return passing()

    monkeypatch.setattr(evidence, "isolated", child)
    saved = tmp_path / "saved.json"
    saved.write_bytes(encode(passing()))
    options = VerifyOptions(baseline=saved, fail_under=0.5)
    report = verify_files(model, model.path, options)
    assert thresholds == [None]
    assert (report.timing.fail_under, report.timing.baseline.report) == (0.5, "saved.json")


def test_without_an_answer_nothing_is_verified(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def child(*arguments: object, on_message: object) -> VerifyReport:
        raise UnverifiedError("it crashed")

    monkeypatch.setattr(evidence, "isolated", child)
    report = verify_files(model, model.path.with_name("new.onnx"), VerifyOptions())
    assert (report.verdict, report.reasons) == ("unverified", ["it crashed"])
    assert (report.original, report.rewritten) == ("m.onnx", "new.onnx")
