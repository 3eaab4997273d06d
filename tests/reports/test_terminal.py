from __future__ import annotations

import pytest

from widthfold_onnx.reports.console import say, show
from widthfold_onnx.reports.described import described
from widthfold_onnx.results import OptimizeReport, OptimizeSummary, SiteReport


def test_no_line_begins_like_a_command_to_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    site = SiteReport(
        node="::error file=a::pwned",
        graph="",
        op="Conv",
        status="refused",
        code="already-wide",
        reason="::warning::no",
    )
    counts = OptimizeSummary(folded=0, kept=0, refused=1, bytes_before=1, bytes_after=1)
    report = OptimizeReport(
        model="m", sites=[site], regions=[], summary=counts, written=None, verification=None
    )
    show(described(report))
    say("  ::stop-commands::x")
    out = capsys.readouterr().out
    assert "::error" in out
    assert not [line for line in out.splitlines() if line.lstrip().startswith("::")]
