"""Render JUnit XML of a verification: one case per output and level, proof, run and timing.

Jenkins, GitLab and Azure read it. Case names do not depend on results, so that a service can
follow one case through many runs.
"""

from __future__ import annotations

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite
from msgspec import structs

from widthfold_onnx.reports.described.verification import (
    difference,
    integers,
    proof,
    speed,
    verdict,
    witness,
)
from widthfold_onnx.reports.words import clauses
from widthfold_onnx.results import OutputParity, Timing, VerifyReport
from widthfold_onnx.text import printable

_LONGEST = 2000
_FIGURES = ("threads", "speedup", "low", "high", "control")

Outcome = str | Error | Failure | Skipped
"""The text of a case that passed, else the error, the failure or why it was skipped."""


def render(report: VerifyReport) -> str:
    """Render the report as an XML document, in one suite."""
    suite = TestSuite(printable(report.rewritten))
    for name, value in _properties(report).items():
        suite.add_property(name, printable(str(value), _LONGEST))
    suite.add_testcases([_output(row) for row in report.outputs])
    if report.proof is not None:
        line = clauses(proof(report.proof), report.proof.reason, witness(report))
        suite.add_testcase(_judged("proof by evaluation", report.proof.verdict, line))
    if report.integers is not None:
        line = integers(report.integers)
        suite.add_testcase(_judged("new nodes on integers", report.integers.verdict, line))
    if report.timing is not None:
        suite.add_testcase(_timing(report.timing))
    suite.add_testcase(_verdict(report))
    document = JUnitXml("widthfold")
    document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]
    text = document.tostring().decode()  # type: ignore[no-untyped-call]
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<!-- {report.schema} -->\n{text}\n'


def _properties(report: VerifyReport) -> dict[str, object]:
    """Return the models, the environment, and the figures of the timing."""
    timing = report.timing
    return {
        "original": report.original,
        "rewritten": report.rewritten,
        "input_sets": report.input_sets,
        **structs.asdict(report.environment),
        **({name: getattr(timing, name) for name in _FIGURES} if timing is not None else {}),
    }


def _case(name: str, group: str, outcome: Outcome, seconds: float = 0.0) -> TestCase:
    """Return a case; it has passed if its outcome is a text."""
    case = TestCase(name, group, seconds)
    if not isinstance(outcome, str):
        case.result = [outcome]
    elif outcome:
        case.system_out = outcome
    return case


def _output(row: OutputParity) -> TestCase:
    outcome: Outcome = printable(row.note, _LONGEST)
    if row.caveat == "unsteady":
        outcome = Skipped(row.note)
    elif not row.passed:
        outcome = Failure(printable(difference(row), _LONGEST), "difference")
    return _case(f"{printable(row.name, _LONGEST)} at level {row.level}", "outputs", outcome)


def _judged(name: str, result: str, line: str) -> TestCase:
    """Return the case of a proof or an integer run; one that decided nothing is skipped.

    The case of the verdict judges that.
    """
    line = printable(line, _LONGEST)
    if result == "different":
        return _case(name, "proof", Failure(line, "different"))
    return _case(name, "proof", line if result in ("equal", "exact") else Skipped(line))


def _timing(timing: Timing) -> TestCase:
    """Return the case of the timing; a slowdown passes, as the case of the verdict judges it."""
    line = printable(speed(timing), _LONGEST)
    outcome = Skipped(line) if timing.verdict == "inconclusive" else line
    return _case("original / rewritten", "timing", outcome, timing.rewritten.median_ms / 1000)


def _verdict(report: VerifyReport) -> TestCase:
    reason = printable(clauses(verdict(report), *report.reasons), _LONGEST)
    outcomes: dict[str, Outcome] = {
        "fail": Failure(reason, "fail"),
        "unverified": Error(reason, "unverified"),
        "pass": reason,
    }
    return _case("verdict", "verdict", outcomes[report.verdict])
