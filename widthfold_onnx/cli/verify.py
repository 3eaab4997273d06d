"""widthfold verify."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from widthfold_onnx.cli.common import (
    MODEL,
    Sectioned,
    ShapeType,
    guarded,
    leave,
    progress,
    typed_command,
)
from widthfold_onnx.cli.reporting import ReportArguments, deliver, report_arguments
from widthfold_onnx.cli.running import VerifyArguments, verify_arguments
from widthfold_onnx.errors import CheckFailedError, UnverifiedError, UsageError
from widthfold_onnx.options import VerifyOptions

if TYPE_CHECKING:
    from widthfold_onnx.results import VerifyReport


@click.command("verify", cls=Sectioned)
@guarded
@click.argument("original", type=MODEL)
@click.argument("rewritten", type=MODEL)
@verify_arguments
@click.option(
    "--input-shape",
    "input_shapes",
    type=ShapeType(),
    multiple=True,
    help="Sizes to run with where the model leaves them open, e.g. x:1,3,224,224.",
)
@click.option(
    "--truth-budget",
    type=click.FloatRange(min=0),
    default=VerifyOptions.truth_budget,
    show_default=True,
    help="Seconds for a float64 run of ORIGINAL, the reference for both models; 0 leaves it out.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Threads of one operator (intra-op) while timing.",
)
@click.option(
    "--streams",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Count the runs per second of N sessions of each model at once, too; takes half of "
    "--time-budget. 1 leaves it out.",
)
@click.option(
    "--time-budget",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds for timing.",
)
@click.option("--no-timing", is_flag=True, help="Compare without timing.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="JSON report of an earlier run: judge the speed-up against that one.",
)
@click.option(
    "--fail-under",
    type=float,
    metavar="X",
    help="Exit 1 if the speed-up (time of ORIGINAL / time of REWRITTEN) is below X by more than "
    "noise: 2 %, or twice the A/A control. Exit 4 if its interval stays too wide to tell. 1.0 "
    "fails a slower model. With --baseline, of the speed-up / that of the baseline.",
)
@click.option(
    "--freeze-weights",
    is_flag=True,
    help="Accept weights of ORIGINAL that REWRITTEN no longer has as inputs; its own values count.",
)
@click.option("--exact", is_flag=True, help="Print the proof and every fold in full.")
@click.option("--shared", is_flag=True, help="Draw the latencies of both models over one axis.")
@report_arguments
def verify_command(
    original: Path,
    rewritten: Path,
    running: VerifyArguments,
    input_shapes: tuple[tuple[str, tuple[int, ...]], ...],
    truth_budget: float,
    threads: int,
    streams: int,
    time_budget: float,
    no_timing: bool,
    baseline: Path | None,
    fail_under: float | None,
    freeze_weights: bool,
    exact: bool,
    shared: bool,
    reporting: ReportArguments,
) -> None:
    """Compare two models: interface, proof, outputs, time.

    Exits 0 if REWRITTEN computes the same as ORIGINAL, 1 if anything differs or the speed is below
    --fail-under, 4 if it could not be decided.
    """
    from widthfold_onnx.pipeline import verify
    from widthfold_onnx.results import VerifyReport

    options = running.options(
        dict(input_shapes),
        thorough=True,
        truth_budget=truth_budget,
        threads=threads,
        streams=streams,
        time_budget=0.0 if no_timing else time_budget,
        baseline=baseline,
        fail_under=fail_under,
        freeze_weights=freeze_weights,
    )
    if shared and no_timing:
        raise UsageError("--shared draws the timing, which --no-timing leaves out")
    sources = [original, rewritten, *([] if baseline is None else [baseline])]
    to = reporting.destinations(VerifyReport, sources)
    if to.printed is not None and (exact or shared):
        raise UsageError(f"--exact and --shared belong to the tables, not to --format {to.printed}")
    with progress() as on_progress:
        result = verify(original, rewritten, options, on_progress=on_progress)
    from widthfold_onnx.reports.verified import show_verify

    environment = msgspec.structs.replace(result.environment, command=typed_command())
    result = msgspec.structs.replace(result, environment=environment)
    show = functools.partial(show_verify, certificates=exact, latencies=shared)
    deliver(result, to, rewritten, show)
    leave_by(result)


def leave_by(result: VerifyReport) -> None:
    """Exit as the verdict says, with its reasons; return from a pass."""
    if result.verdict == "fail":
        leave("; ".join(result.reasons), CheckFailedError.exit_code)
    if result.verdict == "unverified":
        leave("; ".join(result.reasons), UnverifiedError.exit_code)
