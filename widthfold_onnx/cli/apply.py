"""The command `widthfold apply`: apply a saved plan to a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from widthfold_onnx.cli.common import (
    MODEL,
    Sectioned,
    guarded,
    leave,
    leave_unwritten,
    status_line,
)
from widthfold_onnx.cli.options import (
    RUNNING,
    comparison_options,
    options_of,
    report_arguments,
)
from widthfold_onnx.errors import CheckFailedError
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import DeliveryOptions, RuntimeOptions
from widthfold_onnx.progress import READING, progress
from widthfold_onnx.refusal import Code
from widthfold_onnx.reports.formats import Destinations
from widthfold_onnx.results import OptimizeReport


@click.command("apply", cls=Sectioned)
@guarded
@click.argument("model", type=MODEL)
@click.argument("plan", type=MODEL)
@click.argument("out", type=MODEL, required=False)
@click.option(
    "--partial",
    is_flag=True,
    help="Leave out the parts of PLAN that do not fit MODEL. Default: write nothing and exit 1.",
)
@click.option("--no-verify", is_flag=True, help="Write the result unverified.")
@options_of("runtime_options", RuntimeOptions, RUNNING)
@comparison_options
@report_arguments
def apply_command(
    model: Path,
    plan: Path,
    out: Path | None,
    partial: bool,
    no_verify: bool,
    runtime_options: RuntimeOptions,
    comparison: Mapping[str, Any],
    destinations: Destinations,
) -> None:
    """Carry out PLAN on MODEL, verify the result, and write it to OUT.

    PLAN is a file that `widthfold optimize --save-plan` wrote. Nothing is measured. MODEL may have
    been trained again: its layers need the same names and the same structure, their weights may
    differ. Without OUT nothing is written.
    """
    verify_options = runtime_options.to(DeliveryOptions, **comparison)
    destinations.check(OptimizeReport, [model, plan, *([out] if out else [])])
    with status_line():
        progress(READING)
        loaded = load(model)
        from widthfold_onnx.evidence.delivery import IntoFile
        from widthfold_onnx.pipeline import apply
        from widthfold_onnx.rewrite.plan import read_plan

        read = read_plan(plan)
        checks = None if no_verify else verify_options
        inputs = [plan, *runtime_options.files]
        target = None if out is None else IntoFile(loaded, out, checks, inputs)
        result = apply(loaded, read, target, allow_misfits=partial).report
    destinations.deliver(result, model)
    if result.written is None and result.verification is not None:
        leave_unwritten(result, "a plan without a layer leaves it alone")
    misfits = [site for site in result.sites if site.code == Code.MISFIT]
    if misfits and not partial:
        names = ", ".join(site.node for site in misfits)
        leave(
            f"OUT is not written: the plan does not fit {names}, see the table; --partial applies "
            "the rest",
            CheckFailedError.exit_code,
        )
