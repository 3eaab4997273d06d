"""The command `widthfold verify`: prove, compare and time two models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec

from widthfold_onnx.cli.common import (
    MODEL,
    Sectioned,
    guarded,
    leave,
    status_line,
    typed_command,
)
from widthfold_onnx.cli.options import (
    RUNNING,
    Help,
    comparison_options,
    options_of,
    report_arguments,
)
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.progress import READING, progress
from widthfold_onnx.reports.formats import Destinations
from widthfold_onnx.results import VerifyReport

TIMING: Help = {
    "--input-shape NAME:DIMS": "Sizes to run with where the model leaves them open, e.g. "
    "x:1,3,224,224.",
    "--truth-work MILLIONS": "Most work for the truth, runs of ORIGINAL in float64, in millions of "
    "elements that its nodes compute; 0 leaves it out.",
    "--threads": "Threads of one operator (intra-op) while timing.",
    "--time-budget": "Seconds for timing.",
    "--no-timing": "Compare without timing.",
    "--baseline FILE": {
        "type": click.Path(path_type=Path, exists=True, dir_okay=False),
        "help": "JSON report of an earlier run: judge the speed-up against that one.",
    },
    "--fail-under X": "Exit 1 if the speed-up (time of ORIGINAL / time of REWRITTEN) is below X by "
    "more than noise: 2 %, or twice the A/A control. Exit 4 if its interval stays too wide to "
    "tell. 1.0 fails a slower model. With --baseline, X bounds speed-up / saved speed-up.",
    "--freeze-weights": "Accept weights of ORIGINAL that REWRITTEN no longer has as inputs; its "
    "own values count.",
}


@click.command("verify", cls=Sectioned)
@guarded
@click.argument("original", type=MODEL)
@click.argument("rewritten", type=MODEL)
@options_of("options", VerifyOptions, {**RUNNING, **TIMING})
@comparison_options
@report_arguments
def verify_command(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    comparison: Mapping[str, Any],
    destinations: Destinations,
) -> None:
    """Compare two models: interface, proof, outputs, time.

    Exits 0 if REWRITTEN computes the same as ORIGINAL, 1 if anything differs or the speed is below
    --fail-under, 4 if it could not be decided.
    """
    options = replace(options, **comparison)
    sources = [original, rewritten, *([] if options.baseline is None else [options.baseline])]
    destinations.check(VerifyReport, sources)
    with status_line():
        progress(READING)
        old, new = load(original), load(rewritten)
        from widthfold_onnx.evidence import verify
        from widthfold_onnx.runtime.inputs.stored import with_stored_sizes

        result = verify(old, new, with_stored_sizes(options, options.inputs, old.proto))

    environment = msgspec.structs.replace(result.environment, command=typed_command())
    result = msgspec.structs.replace(result, environment=environment)
    destinations.deliver(result, rewritten)
    if result.error is not None:
        leave(str(result.error), result.error.exit_code)
