"""`widthfold compare` and `verify --baseline`; no test asserts a measured time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cli.tool import widthfold
from tests.evidence.test_baseline import report
from tests.reports.sample import passing
from widthfold_onnx.reports.data.json import encode


@pytest.fixture
def reports(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "then.json", tmp_path / "now.json"
    for path, speedup in zip(paths, (1.95, 1.71), strict=True):
        path.write_bytes(encode(report(speedup)))
    return paths


def test_a_slower_one_fails_where_that_was_asked(reports: tuple[Path, Path]) -> None:
    run = widthfold("compare", *reports)
    assert run.code == 0
    assert "slower beside then.json, where it was 1.950: now / then = 0.877" in run.out.replace(
        "\n", " "
    )
    failed = widthfold("compare", *reports, "--fail-under", 1.0)
    assert failed.code == 1
    assert "slower than --fail-under 1 allows" in failed.line
    assert widthfold("compare", *reports, "--fail-under", 0.8).code == 0
    assert widthfold("compare", *reversed(reports), "--fail-under", 1.0).code == 0


def test_what_is_not_comparable_is_unverified(reports: tuple[Path, Path]) -> None:
    other = report(1.95)
    reports[0].write_bytes(
        encode(replace(other, environment=replace(other.environment, machine="another")))
    )
    assert widthfold("compare", *reports).code == 0
    run = widthfold("compare", *reports, "--fail-under", 1.0)
    assert run.code == 4
    assert "machine: another became" in run.line


def test_it_writes_reports_and_replaces_neither(reports: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert widthfold("compare", *reports, "--report", out).code == 0
    saved = json.loads(out.read_text())["timing"]["baseline"]
    assert (saved["report"], saved["verdict"]) == ("then.json", "slower")
    for path in reports:
        run = widthfold("compare", *reports, "--report", path)
        assert (run.code, "would replace" in run.line) == (2, True)


def test_what_is_no_report_is_refused(reports: tuple[Path, Path], tmp_path: Path) -> None:
    reports[1].write_bytes(encode(replace(passing(), timing=None)))
    assert widthfold("compare", *reports).code == 2
    reports[0].write_text("[]")
    assert "no JSON report of verify" in widthfold("compare", *reports).line
    assert widthfold("compare", tmp_path / "none.json", reports[1]).code == 2


def test_verify_judges_itself_against_a_report(pair: tuple[Path, Path], tmp_path: Path) -> None:
    saved, again = tmp_path / "saved.json", tmp_path / "again.json"
    quick = ("--provider", "cpu", "--seeds", 1, "--time-budget", 0.5)
    assert widthfold("verify", *pair, *quick, "--report", saved).code == 0
    run = widthfold("verify", *pair, *quick, "--baseline", saved, "--report", again)
    assert run.code == 0
    found = json.loads(again.read_text())["timing"]["baseline"]
    assert (found["report"], found["differs"]) == ("saved.json", [])
    assert found["low"] < found["ratio"] < found["high"]
    for least, code in ((1e-4, 0), (1e4, 1)):
        run = widthfold("verify", *pair, *quick, "--baseline", saved, "--fail-under", least)
        assert run.code == code, run
    run = widthfold("verify", *pair, *quick, "--baseline", saved, "--report", saved)
    assert (run.code, "would replace" in run.line) == (2, True)
    run = widthfold("verify", *pair, *quick, "--baseline", pair[0])
    assert (run.code, "no JSON report of verify" in run.line) == (2, True)
