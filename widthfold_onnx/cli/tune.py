"""The command `widthfold tune`: measure the layers of many models ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from widthfold_onnx.cli.common import INTERRUPTED, MODEL, Sectioned, guarded, leave, status_line
from widthfold_onnx.cli.options import (
    PROVIDER,
    SEARCHING,
    Help,
    file_arguments,
    options_of,
    planning_options,
)
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import FoldOptions, SearchOptions
from widthfold_onnx.reports.formats import Destinations
from widthfold_onnx.results import TuneReport

BUDGET: Help = {
    "--time-budget": "Seconds for measuring, for all models together. Default: by --effort, for "
    "each.",
}


@click.command("tune", cls=Sectioned)
@guarded
@click.argument("models", type=MODEL, nargs=-1, required=True)
@planning_options(default_factor=None)
@options_of("options", SearchOptions, {**PROVIDER, **SEARCHING, **BUDGET})
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Processes that measure at the same time on this machine, at most cores / threads. More "
    "are faster but less exact: they disturb each other.",
)
@click.option(
    "--dask",
    metavar="ADDRESS",
    help="Measure on the workers of a Dask cluster; ADDRESS of its scheduler, e.g. "
    "tcp://127.0.0.1:8786.",
)
@file_arguments
def tune_command(
    models: tuple[Path, ...],
    fold_options: FoldOptions,
    options: SearchOptions,
    jobs: int,
    dask: str | None,
    destinations: Destinations,
) -> None:
    """Measure the layers of all MODELS ahead of `optimize`.

    A layer that several models share is measured once; a layer that the store knows is not
    measured again. Ctrl-C ends measuring and keeps the measurements. If a model cannot be read, the
    table names it, and the other models are tuned. The exit code is the code of the first error.
    """
    if len(models) == 1:  # a single model that cannot be read is an error, not a row of a table
        load(models[0])
    from widthfold_onnx.reports.described.tuning import NOT_KEPT
    from widthfold_onnx.tuning.store import default_path
    from widthfold_onnx.tuning.tune import tune

    destinations.check(TuneReport, models)
    options = replace(options, store=options.store or default_path())
    with status_line():
        result = tune(models, fold_options, options, jobs=jobs, dask=dask)
    destinations.deliver(result, models[0])
    if result.interrupted:
        fate = NOT_KEPT if result.store_read_only else "kept"
        leave(f"interrupted; the measurements are {fate}", INTERRUPTED)
    broken = [model for model in result.models if model.code]
    if broken:
        first = f"{len(broken)} of {len(models)} models could not be read; {broken[0].reason}"
        leave(first, broken[0].code)
