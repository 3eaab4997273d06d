"""Describe the search of `optimize`, and the result of `tune`."""

from __future__ import annotations

from widthfold_onnx.reports.described.inputs import size_gain
from widthfold_onnx.reports.description import Column, Description, Line, tabulated
from widthfold_onnx.reports.words import clauses, counted, gain_text, shapes_text
from widthfold_onnx.results import SearchReport, TunedModel, TuneReport

NOT_KEPT = "not kept, because the store may only be read"


def _count(name: str) -> Column[TunedModel]:
    """Return the column of a count; empty for a model that was not tuned."""
    heading = {"measured": "new", "stored": "known before"}.get(name, name)
    return Column(heading, lambda row: "" if row.reason else str(getattr(row, name)))


TUNED_MODELS: tuple[Column[TunedModel], ...] = (
    Column("model", lambda row: row.model),
    *map(_count, ("layers", "forms", "measured", "stored", "skipped", "failed")),
    Column("pending", lambda row: str(row.pending or "")),
    Column("why", lambda row: row.reason, sentences=True),
)


def describe(report: TuneReport) -> Description:
    """Describe the result of `tune`."""
    lines = [
        f"{machine.measured} measurement(s) on {machine.provider}: {machine.machine}"
        for machine in report.machines
    ]
    if report.store_read_only and any(machine.measured for machine in report.machines):
        lines.append(NOT_KEPT)
    return Description(
        head=Line("", ""),
        tables=tabulated("models", TUNED_MODELS, report.models),
        remarks=[Line("", line) for line in lines],
    )


INPUTS = 3
"""Most inputs whose shapes stand in one line."""


def lines(report: SearchReport | None, *, is_full: bool) -> list[Line]:
    """Return the lines on measurements, speed at each size, and the level to deploy at."""
    if report is None:
        return []
    speeds = [Line("speed", outcome(report))]
    if report.accepted and report.whole is not None and not is_full:
        speeds = [
            Line(f"speed at {shapes_text(row.shapes, INPUTS)}", size_gain(row))
            for row in report.sizes
        ]
    entries = [
        Line(f"search on {report.provider}", measurements(report)),
        *speeds,
        Line("", clauses(deployment(report), report.note)),
    ]
    return [line for line in entries if line.text]


def measurements(report: SearchReport) -> str:
    """Count the forms and the measurements of a search."""
    if not report.layers and report.whole is None:
        return "no layer has a form to measure"
    source = "all measured before"
    if report.predicted:
        source = f"{counted(report.predicted, 'layer')} predicted for {report.target}, not measured"
    elif report.measured or report.pending:
        source = f"{counted(report.measured, 'measurement')} taken"
    parts = [
        f"{counted(report.forms, 'form')} of {counted(report.layers, 'layer')}",
        source + (f" and {NOT_KEPT}" if report.measured and report.store_read_only else ""),
        "ended early" if report.interrupted else "",
        f"{counted(report.pending, 'layer')} left to measure" if report.pending else "",
    ]
    return ", ".join(filter(None, parts))


def deployment(report: SearchReport) -> str:
    """Return the level at which each model is fastest; "" if they were not timed."""
    if not report.folded_setting:
        return ""
    is_other = report.original_setting != report.folded_setting
    original = f" (the original is fastest at {report.original_setting})" if is_other else ""
    return f"deploy it at level {report.folded_setting}{original}"


def outcome(report: SearchReport) -> str:
    """Describe the time of the whole model in the chosen forms."""
    model_gain = report.whole
    if model_gain is None:
        if not report.layers:
            return ""
        if report.accepted:
            return "the whole model was not timed"
        judged = " that was measured" if report.pending and not report.predicted else ""
        return f"no choice of forms{judged} {'is sure to gain' if report.predicted else 'gains'}"
    if not model_gain.pairs:
        return f"folded, the whole model was not timed: {report.failure}"
    at = f" at {shapes_text(report.sizes[0].shapes, INPUTS)}" if report.sizes else ""
    folded = f"folded, the whole model ran at {gain_text(model_gain)}{at}"
    if any(row.verdict == "slower" for row in report.sizes[1:]):
        return f"{folded}, and is slower at another size"
    if not report.accepted:
        rule = f"its low end {model_gain.low:.3f} is not above {report.bar:.3f}"
        control = f"the limit of noise (A/A control {1 + report.control:.3f})"
        return f"{folded}; {rule}, {control}"
    return f"the whole model ran at {gain_text(model_gain)} of the original's best{at}"
