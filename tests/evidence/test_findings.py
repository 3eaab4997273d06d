"""Findings of the checks of two models, and the verdict that they make."""

from __future__ import annotations

import pytest

from widthfold_onnx.evidence.findings import Findings

FAILURE = Findings(failures=("an output differs",))
DOUBT = Findings(doubts=("it does not run",))
REMARK = Findings(remarks=("no truth",))


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        (Findings(), "pass"),
        (REMARK, "pass"),
        (DOUBT + REMARK, "unverified"),
        (DOUBT + FAILURE, "fail"),
        (REMARK + FAILURE, "fail"),
    ],
)
def test_the_worst_finding_decides(findings: Findings, verdict: str) -> None:
    assert findings.verdict == verdict


def test_failures_come_first_and_each_kind_keeps_its_order() -> None:
    second = Findings(failures=("another",), remarks=("a second remark",))
    total = REMARK + DOUBT + FAILURE + second
    assert total.failures == ("an output differs", "another")
    assert total.reasons == (
        *("an output differs", "another"),
        "it does not run",
        *("no truth", "a second remark"),
    )
    assert Findings() + total == total == total + Findings()
