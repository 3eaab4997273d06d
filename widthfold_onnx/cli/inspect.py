"""The command `widthfold inspect`: list the layers of a model and their folds."""

from __future__ import annotations

from pathlib import Path

import click

from widthfold_onnx.cli.common import MODEL, Sectioned, guarded
from widthfold_onnx.cli.options import VALUE, options_of, planning_options, report_arguments
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import DEFAULT_FACTOR, FoldOptions, RuntimeOptions
from widthfold_onnx.reports.formats import Destinations
from widthfold_onnx.results import InspectReport


@click.command("inspect", cls=Sectioned)
@guarded
@click.argument("model", type=MODEL)
@planning_options(str(DEFAULT_FACTOR))
@options_of("runtime_options", RuntimeOptions, VALUE)
@report_arguments
def inspect_command(
    model: Path,
    fold_options: FoldOptions,
    runtime_options: RuntimeOptions,
    destinations: Destinations,
) -> None:
    """List the layers of MODEL, and what a fold would make of each.

    Shows shapes, channels and cost of every layer that could be folded, its cheapest fold, or why
    there is none; with --details the cheapest fold of each axis. Measures nothing.
    """
    destinations.check(InspectReport, [model])
    loaded = load(model)
    from widthfold_onnx.decide.inspection import inspect_model

    result = inspect_model(loaded, fold_options, runtime_options)
    destinations.deliver(result, model)
