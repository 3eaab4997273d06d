"""widthfold compare."""

from __future__ import annotations

from pathlib import Path

import click

from widthfold_onnx.cli.common import guarded
from widthfold_onnx.cli.reporting import ReportArguments, deliver, report_arguments
from widthfold_onnx.cli.verify import leave_by

REPORT = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command("compare")
@guarded
@click.argument("saved", type=REPORT)
@click.argument("now", type=REPORT)
@click.option(
    "--fail-under",
    type=float,
    metavar="X",
    help="Exit 1 if the speed-up of NOW / that of SAVED is below X by more than noise, and 4 if "
    "that is not known.",
)
@report_arguments
def compare_command(
    saved: Path, now: Path, fail_under: float | None, reporting: ReportArguments
) -> None:
    """Judge the speed-up of one JSON report of verify against that of another.

    Runs nothing. Exits as NOW did when it was made, or by --fail-under if that is worse.
    """
    from widthfold_onnx.pipeline import compare
    from widthfold_onnx.results import VerifyReport

    to = reporting.destinations(VerifyReport, [saved, now])
    result = compare(saved, now, fail_under)
    deliver(result, to, Path(result.rewritten))
    leave_by(result)
