"""Render annotations of a GitHub workflow: one `::error` line per reason, ten at most.

The runner takes every line that starts with `::` for a command. So nothing else is printed, and no
line starts with text of a model.
"""

from __future__ import annotations

from pathlib import Path

from widthfold_onnx.reports.described import described
from widthfold_onnx.reports.words import clauses, gain_text, short_text
from widthfold_onnx.results import OptimizeReport, SiteReport, VerifyReport
from widthfold_onnx.text import printable

MAX_ANNOTATIONS = 10
"""GitHub shows this many annotations of a kind and step; it drops the rest silently."""

_NAME = 80
_LONGEST = 1000


def render(report: VerifyReport | OptimizeReport, file: Path) -> str:
    """Return the annotations and a last line that sums up.

    Args:
        report: the result. Reasons of a failure become errors; reasons of a pass and nodes that
            `optimize` could fold become warnings.
        file: the model file as the caller named it, to which the annotations belong.
    """
    checks = report if isinstance(report, VerifyReport) else report.verification
    kind = "warning" if checks is None or checks.verdict == "pass" else "error"
    findings: list[tuple[str, str]] = []
    if checks is not None:
        title = "pass, but" if checks.verdict == "pass" else str(checks.verdict)
        findings = [(title, reason) for reason in checks.reasons]
    elif isinstance(report, OptimizeReport) and report.written is None:
        sites = [site for site in report.sites if site.status == "folded"]
        findings = [(f"{short_text(s.node, _NAME)} can be folded", _reason(s)) for s in sites]
    if len(findings) > MAX_ANNOTATIONS:
        remainder = len(findings) - MAX_ANNOTATIONS + 1
        findings[MAX_ANNOTATIONS - 1 :] = [(f"{remainder} more", "the report lists them")]
    lines = [
        f"::{kind} file={_property(str(file))},title={_property(title)}::{_data(message)}\n"
        for title, message in findings
    ]
    description = described(report)
    summary = clauses(description.head.text, *map(str, description.remarks))
    return "".join([*lines, f"widthfold: {printable(summary, _LONGEST)}\n"])


def _reason(site: SiteReport) -> str:
    speed = "" if site.gain is None else f"alone it ran at {gain_text(site.gain)}"
    return clauses(site.reason, speed)


def _data(text: str) -> str:
    """Escape text for a message: `printable` escapes line breaks, so only "%" is left."""
    return printable(text, _LONGEST).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
