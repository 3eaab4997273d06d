"""Describes the result of `tune`: each model with the counts of its layers and forms."""

from __future__ import annotations

from widthfold_onnx.reports.description import Column, Description, Line, tabulated
from widthfold_onnx.results import TunedModel, TuneReport

UNKEPT = "not kept, because the store may only be read"


def _count(name: str) -> Column[TunedModel]:
    """Return the column of a count; empty for a model that was not tuned."""
    heading = {"measured": "new", "known": "known before"}.get(name, name)
    return Column(heading, lambda row: "" if row.reason else str(getattr(row, name)))


MODELS: tuple[Column[TunedModel], ...] = (
    Column("model", lambda row: row.model),
    *map(_count, ("layers", "forms", "measured", "known", "skipped", "failed")),
    Column("left", lambda row: str(row.left or "")),
    Column("why", lambda row: row.reason, sentences=True),
)


def describe(report: TuneReport) -> Description:
    """Describe the result of `tune`."""
    lines = [
        f"{machine.measured} measurement(s) on {machine.provider}: {machine.machine}"
        for machine in report.machines
    ]
    if report.store_read_only and any(machine.measured for machine in report.machines):
        lines.append(UNKEPT)
    return Description(
        head=Line("", ""),
        tables=tabulated("models", MODELS, report.models),
        remarks=[Line("", line) for line in lines],
    )
