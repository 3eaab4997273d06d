"""Prints the results of `tune` as a table with one row for each model."""

from __future__ import annotations

from widthfold_onnx.reports.text.console import printing, say, table
from widthfold_onnx.reports.wording import UNKEPT
from widthfold_onnx.results import TunedModel, TuneReport


@printing()
def show_tune(report: TuneReport) -> None:
    """Print every model, then how much every machine measured."""
    table(
        ["model", "layers", "forms", "new", "known before", "skipped", "failed", "left", "why"],
        [_row(model) for model in report.models],
        below=True,
    )
    for machine in report.machines:
        say(f"{machine.measured} measurement(s) on {machine.provider}: {machine.machine}")
    if report.store_read_only and any(machine.measured for machine in report.machines):
        say(UNKEPT)


def _row(model: TunedModel) -> list[str]:
    if model.reason:
        return [model.model, *[""] * 7, model.reason]
    counts = (model.layers, model.forms, model.measured, model.known, model.skipped, model.failed)
    return [model.model, *map(str, counts), str(model.left or ""), ""]
