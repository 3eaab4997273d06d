"""widthfold verify."""

from __future__ import annotations

from pathlib import Path

import click

from widthfold_onnx.cli.common import (
    MODEL,
    ShapeType,
    guarded,
    leave,
    progress,
    report_option,
)
from widthfold_onnx.cli.running import VerifyArguments, verify_arguments
from widthfold_onnx.errors import CheckFailedError, UnverifiedError


@click.command("verify")
@guarded
@click.argument("original", type=MODEL)
@click.argument("rewritten", type=MODEL)
@verify_arguments
@click.option(
    "--input-shape",
    "input_shapes",
    type=ShapeType(),
    multiple=True,
    help="Sizes for dimensions that the model leaves open, e.g. x:1,3,224,224.",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--time-budget",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds that timing may take.",
)
@click.option("--no-timing", is_flag=True, help="Compare results only.")
@report_option
def verify_command(
    original: Path,
    rewritten: Path,
    running: VerifyArguments,
    input_shapes: tuple[tuple[str, tuple[int, ...]], ...],
    threads: int,
    time_budget: float,
    no_timing: bool,
    report: Path | None,
) -> None:
    """Compare REWRITTEN with ORIGINAL on the runtime: interface, outputs, exact probe, time.

    Exits 0 if everything agrees, 1 if anything differs, 4 if no statement is possible.
    """
    from widthfold_onnx.pipeline import verify
    from widthfold_onnx.reports.json import check_report, write_report
    from widthfold_onnx.reports.terminal import show_verify

    options = running.options(
        dict(input_shapes), timing=not no_timing, threads=threads, time_budget=time_budget
    )
    if report is not None:
        check_report(report, [original, rewritten])
    with progress() as on_progress:
        result = verify(original, rewritten, options, on_progress=on_progress)
    if report is not None:
        write_report(result, report, [original, rewritten])
    show_verify(result)
    if result.verdict == "fail":
        leave("; ".join(result.reasons), CheckFailedError.exit_code)
    if result.verdict == "unverified":
        leave("; ".join(result.reasons), UnverifiedError.exit_code)
