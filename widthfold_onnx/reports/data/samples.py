"""Renders the samples of a timing as CSV, one run a line."""

from __future__ import annotations

import csv
import io

from widthfold_onnx.results import VerifyReport

HEADER = ("model", "process", "session", "run", "ms")
"""Also what a file of samples is known by; see `reports.files`."""


def render(report: VerifyReport) -> str:
    """Render the samples that a report keeps; the header alone if nothing was timed."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(HEADER)
    sides = {} if report.timing is None else report.timing.sides
    for model, side in sides.items():
        for process, sessions in enumerate(side.samples_ms):
            for session, runs in enumerate(sessions):
                lines.writerows((model, process, session, run, ms) for run, ms in enumerate(runs))
    return text.getvalue()
