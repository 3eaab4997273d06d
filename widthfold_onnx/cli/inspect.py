"""widthfold inspect."""

from __future__ import annotations

from pathlib import Path

import click

from widthfold_onnx.cli.common import MODEL, fold_options, guarded, report_option
from widthfold_onnx.options import FoldOptions


@click.command("inspect")
@guarded
@click.argument("model", type=MODEL)
@fold_options(default_factor=8)
@report_option
def inspect_command(model: Path, fold: FoldOptions, report: Path | None) -> None:
    """Show every site of MODEL: shapes, channels, cost, and what each fold would do."""
    from widthfold_onnx.pipeline import inspect
    from widthfold_onnx.reports.json import check_report, write_report
    from widthfold_onnx.reports.terminal import show_inspect

    if report is not None:
        check_report(report, [model])
    result = inspect(model, fold)
    if report is not None:
        write_report(result, report, [model])
    show_inspect(result)
