"""`widthfold verify --baseline`; no test asserts a measured time."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.tool import widthfold


def test_verify_judges_itself_against_a_report(pair: tuple[Path, Path], tmp_path: Path) -> None:
    saved, again = tmp_path / "saved.json", tmp_path / "again.json"
    quick = ("--provider", "cpu", "--seeds", 1, "--time-budget", 0.5)
    assert widthfold("verify", *pair, *quick, "--report", saved).code == 0
    run = widthfold("verify", *pair, *quick, "--baseline", saved, "--report", again)
    assert run.code == 0
    comparison = json.loads(again.read_text())["timing"]["baseline"]
    assert (comparison["report"], comparison["differs"]) == ("saved.json", [])
    assert comparison["low"] < comparison["ratio"] < comparison["high"]
    for least, code in ((1e-4, 0), (1e4, 1)):
        run = widthfold("verify", *pair, *quick, "--baseline", saved, "--fail-under", least)
        assert run.code == code, run
    run = widthfold("verify", *pair, *quick, "--baseline", saved, "--report", saved)
    assert (run.code, "is an input or another output" in run.line) == (2, True)
    run = widthfold("verify", *pair, *quick, "--baseline", pair[0])
    assert (run.code, "no JSON report of verify" in run.line) == (2, True)
