"""The command `widthfold optimize`: fold a model, verify the result, and write it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from widthfold_onnx.cli.common import (
    INTERRUPTED,
    MODEL,
    Sectioned,
    guarded,
    leave,
    leave_unwritten,
    status_line,
)
from widthfold_onnx.cli.options import (
    RUNNING,
    SEARCHING,
    Help,
    comparison_options,
    options_of,
    planning_options,
    report_arguments,
)
from widthfold_onnx.errors import CheckFailedError, NothingChangedError
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import (
    DeliveryOptions,
    FoldOptions,
    Provider,
    RuntimeOptions,
    SearchOptions,
)
from widthfold_onnx.progress import READING, progress
from widthfold_onnx.reports.described.layers import changes_text
from widthfold_onnx.reports.formats import Destinations
from widthfold_onnx.reports.words import kinds
from widthfold_onnx.results import OptimizeReport

PREDICTING: Help = {
    "--time-budget": "Seconds for measuring layers; timing the whole model comes on top. Default: "
    "by --effort. Ctrl-C ends measuring early, with exit code 130.",
    "--target NAME": "Device to predict times for: cpu-avx512, cpu-avx2, a100, h100, h200 or "
    "mi300x. Predictions order the measurements, or replace them (--no-measure). Default: by this "
    "machine's CPU.",
    "--no-measure": "Measure nothing: decide by the store, else fold where at least 1.25x is "
    "predicted.",
}


@click.command("optimize", cls=Sectioned)
@guarded
@click.argument("model", type=MODEL)
@click.argument("out", type=MODEL, required=False)
@planning_options(default_factor="auto")
@options_of("search_options", SearchOptions, {**RUNNING, **SEARCHING, **PREDICTING})
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if anything would be changed.")
@click.option(
    "--require-fold",
    is_flag=True,
    help="Write nothing and exit 5 if nothing is changed.",
)
@click.option("--no-verify", is_flag=True, help="Write the result unverified.")
@click.option(
    "--save-plan",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write what was done as a plan, which `widthfold apply` carries out on MODEL when it was "
    "trained again, without measuring.",
)
@comparison_options
@report_arguments
def optimize_command(
    model: Path,
    out: Path | None,
    fold_options: FoldOptions,
    check: bool,
    require_fold: bool,
    no_verify: bool,
    save_plan: Path | None,
    search_options: SearchOptions,
    comparison: Mapping[str, Any],
    destinations: Destinations,
) -> None:
    """Fold layers of MODEL, verify the result, and write it to OUT.

    --factor auto measures the forms of every layer on this machine and keeps the fastest; OUT is a
    copy of MODEL unless the whole model became faster beyond noise. --factor N measures nothing:
    it folds every layer that can be folded by N.

    The report names changes, speed, sizes, level and verdict. --details lists every Conv,
    ConvTranspose, MatMul, Gemm and Einsum, also quantized: its fold, or the reason why it was left
    alone. Without OUT nothing is written. OUT is replaced in one step after all checks passed; if
    nothing was folded, it is a copy of MODEL.
    """
    from widthfold_onnx.model.atomic import check_own_target
    from widthfold_onnx.tuning.store import default_path
    from widthfold_onnx.tuning.targets import load_target

    verify_options = search_options.to(DeliveryOptions, **comparison)
    files = [model, *([out] if out else [])]
    destinations.check(OptimizeReport, [*files, *([save_plan] if save_plan else [])])
    if search_options.target is not None:
        load_target(search_options.target)  # refuse a wrong name at a fixed factor too
    if save_plan is not None:
        check_own_target(save_plan, files, "plan")
    with status_line():
        progress(READING)
        loaded = load(model)
        from widthfold_onnx.evidence.delivery import IntoFile
        from widthfold_onnx.pipeline import optimize

        search_options = replace(search_options, store=search_options.store or default_path())
        target = None
        if out is not None and not check:
            checks = None if no_verify else verify_options
            target = IntoFile(loaded, out, checks, search_options.files)
        result = optimize(loaded, fold_options, search_options, target, require_fold=require_fold)
    report = result.report
    destinations.deliver(report, model)
    _require_success(report, needs_fold=require_fold)
    if save_plan is not None and not check:
        result.plan.save(save_plan)
    _advise_timing(report, model, out, fold_options, search_options)
    _conclude(report, check=check)


def _require_success(result: OptimizeReport, *, needs_fold: bool) -> None:
    """Exit if the new model did not pass its checks, or if `--require-fold` found no change."""
    if result.written is None and result.verification is not None:
        leave_unwritten(result, "--skip NODE leaves a layer alone")
    if needs_fold and not result.summary.is_changing:
        count = f"{len(result.sites)} {kinds(result.sites)} nodes"
        raise NothingChangedError(f"none of {count} was folded; nothing is written")


def _conclude(result: OptimizeReport, *, check: bool) -> None:
    """Exit with a code other than 0 after an interrupt, or if `--check` found work to do."""
    if result.search is not None and result.search.interrupted:
        leave("interrupted; decided with what had been measured", INTERRUPTED)
    if check and result.summary.is_changing:
        leave(changes_text(result.summary), CheckFailedError.exit_code)


def _advise_timing(
    result: OptimizeReport,
    model: Path,
    out: Path | None,
    fold_options: FoldOptions,
    runtime_options: RuntimeOptions,
) -> None:
    """Print the command that times a changed model, if the search did not time it."""
    from widthfold_onnx.reports.console import printing, say

    is_timed = result.search is not None and result.search.whole is not None
    if out is None or result.written is None or not result.summary.is_changing or is_timed:
        return
    command = _timing(model, out, fold_options, runtime_options)
    with printing():
        say(f"not timed; to see if it pays: {command}", command=True)


def _timing(model: Path, out: Path, fold_options: FoldOptions, options: RuntimeOptions) -> str:
    """Return the command that times the result, with the provider and inputs of this command."""
    words = ["widthfold", "verify", model.as_posix(), out.as_posix()]
    words += ["--freeze-weights"] if fold_options.freeze_weights else []
    words += ["--provider", options.provider] if options.provider is not Provider.AUTO else []
    words += ["--threads", str(options.threads)] if options.threads > 1 else []
    for option, entries in (
        ("--provider-option", options.provider_options),
        ("--session-option", options.session_options),
    ):
        for name, value in entries.items():
            words += [option, f"{name}={value}"]
    for name, elements in options.values.items():
        words += ["--value", f"{name}={','.join(f'{element:.17g}' for element in elements)}"]
    for path in options.inputs:
        words += ["--inputs", Path(path).as_posix()]
    for shapes in fold_options.input_shapes:
        for name, dims in shapes.items():
            words += ["--input-shape", f"{name}:{','.join(map(str, dims))}"]
    return shlex.join(words)
