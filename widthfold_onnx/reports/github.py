"""Renders annotations of a GitHub workflow: one `::error` line per finding, ten at most.

The runner takes every line that starts with `::` for a command. So this form prints nothing else.
No text of a model ever reaches the start of a line.
"""

from __future__ import annotations

from pathlib import Path

from widthfold_onnx.reports.described.optimization import companion, frozen
from widthfold_onnx.reports.described.tuning import sentence
from widthfold_onnx.reports.described.verification import difference, verdict
from widthfold_onnx.reports.words import clauses, gain, kinds, short
from widthfold_onnx.results import OptimizeReport, SiteReport, VerifyReport
from widthfold_onnx.text import printable

MOST = 10
"""GitHub shows this many annotations of a kind and step; it drops the rest silently."""

_NAME = 80

Finding = tuple[str, str]
"""Title and message."""


def render(report: VerifyReport | OptimizeReport, file: Path) -> str:
    """Return the annotations and a last line that sums up.

    Args:
        report: the result; nodes that `optimize` only planned to fold become warnings, and so do
            the limits of a pass.
        file: the model file that the annotations belong to, as the caller named it.
    """
    if isinstance(report, VerifyReport):
        lines = _lines("error", _failures(report), file)
        if report.verdict == "pass":
            lines = _lines("warning", [("pass, but", why) for why in report.reasons], file)
        return lines + _last(verdict(report))
    lines = ""
    if report.verification is not None:
        lines += _lines("error", _failures(report.verification), file)
    planned = [s for s in report.sites if s.status == "folded"] if report.written is None else []
    if report.verification is None:
        lines += _lines(
            "warning",
            [(f"{short(s.node, _NAME)} can be folded", _planned(s)) for s in planned],
            file,
        )
    nodes = f"{len(report.sites)} {kinds(report.sites)} nodes"
    return lines + _last(
        clauses(
            f"{report.summary.folded} of {nodes} folded",
            *(str(companion(outcome)) for outcome in report.companions),
            frozen(report.summary) if report.summary.frozen else "",
            ""
            if report.search is None
            else f"search on {report.search.provider}: {sentence(report.search)}",
        )
    )


def _planned(site: SiteReport) -> str:
    return clauses(site.reason, "" if site.gain is None else f"alone it ran at {gain(site.gain)}")


def _failures(report: VerifyReport) -> list[Finding]:
    failures: list[Finding] = []
    for row in report.outputs:
        if not row.passed:
            fault = "unsteady" if row.caveat == "unsteady" else "differs"
            title = f"output {short(row.name, _NAME)} {fault}"
            failures.append((title, f"{difference(row)} (level {row.level})"))
    if report.proof is not None and report.proof.verdict == "different":
        failures.append(("proof: different", report.proof.reason))
    if report.integers is not None and report.integers.verdict == "different":
        failures.append(("a new node differs on integers", report.integers.reason))
    if report.verdict != "pass" and not failures:
        failures = [(report.verdict, reason) for reason in report.reasons]
    return failures


def _lines(kind: str, findings: list[Finding], file: Path) -> str:
    shown = findings if len(findings) <= MOST else findings[: MOST - 1]
    if rest := len(findings) - len(shown):
        shown = [*shown, (f"{rest} more", "the report lists them")]
    return "".join(
        f"::{kind} file={_property(str(file))},title={_property(title)}::{_data(message)}\n"
        for title, message in shown
    )


def _last(line: str) -> str:
    return f"widthfold: {printable(line, 1000)}\n"


def _data(text: str) -> str:
    """Escape text: `printable` has removed line breaks, the escape character itself is left."""
    return printable(text, 1000).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
