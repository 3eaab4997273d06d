"""Define options that commands share: how to fold, how models run, where a result goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from widthfold_onnx.cli.derivation import Command, Help, options_of
from widthfold_onnx.options import FoldOptions, FormName, Provider, Tolerance, VerifyOptions
from widthfold_onnx.reports.formats import Destinations
from widthfold_onnx.text import printable


def factor_or_auto(text: str) -> int | None:
    """Read auto as None, anything else as a whole number."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        message = f"{printable(text)!r} is neither auto nor a whole number"
        raise click.BadParameter(message) from None


FORM: Help = {
    "--form": "fold: as --factor says. strides: fold the strides of every layer and nothing else, "
    "without measuring: a ConvTranspose becomes a Conv and a pixel shuffle, any other Conv a pixel "
    "unshuffle and a Conv of stride 1.",
    "--companion": "Exchange ops for equal ones that run faster: prelu (PRelu), scalar (arithmetic "
    "with one number), split (a Conv whose channels are split), crop (a Slice or Pad beside a "
    "Conv), or none. May be given several times. Default: --factor auto measures all of them; a "
    "number and --form strides exchange none.",
    "--pad-channels N": "Pad the channels of whole chains of layers with zeros to multiples of "
    "N; 0: of none. Default: --factor auto measures 4, 8 and 16; a number and --form strides pad "
    "none.",
    "--freeze-weights": "Take weights out of the inputs of the model, where callers could replace "
    "them and the runtime neither packs nor fuses them.",
}
"""Options of the commands that show or write one model."""

LIMITS: Help = {
    "--axis AXIS": "Axis to fold: auto, batch, height, width, depth, or its index.",
    "--layout": "Form of the moves: nhwc suits a runtime that computes channels-last and can "
    "remove their Transposes. auto measures both; at a fixed factor it is nhwc with prefer_nhwc=1, "
    "else nchw.",
    "--ragged": "Fold extents that the factor does not divide, too: pad the data, cut the result.",
    "--mix-samples": "Allow folds whose weight joins samples of a batch: a NaN of one can reach "
    "others.",
    "--nonfinite": "spread: Inf and NaN may reach more outputs of the same sample. refuse: no fold "
    "with structural zeros, so that Inf and NaN stay where they were.",
    "--fixed-shapes": "OUT runs at the sizes of --input-shape only, and declares them in its "
    "inputs. Without this it runs at every size, and open sizes are tested where a fold needs it.",
    "--max-channels": "Leave a layer alone if its input and its output have at least this many "
    "channels in every group.",
    "--max-flops-growth": "Refuse a fold that multiplies the multiply-adds of a layer by more than "
    "this.",
    "--max-bytes-growth": "Refuse a fold that multiplies the bytes of input, weight and output by "
    "more than this.",
    "--nodes GLOB": "Fold only nodes whose name matches; may be given several times.",
    "--skip GLOB": "Leave alone nodes whose name matches; may be given several times.",
    "--input-shape NAME:DIMS": "Sizes where the model leaves them open, e.g. x:1,3,224,224; the "
    "model keeps its symbols. May be given several times, also for one input, or as a range "
    "x:1,3,320..640,320..640: a changed model gains at one of these sizes and loses at none.",
}
"""Options of all commands that plan a fold."""


def fold_options(default_factor: str | None) -> Callable[[Command], Command]:
    """Add the options of a fold; the command gets one `fold` argument of type FoldOptions.

    Args:
        default_factor: with "auto", `--factor` takes auto or a number; None leaves out `--factor`
            and `FORM`.
    """
    if default_factor is None:
        return options_of("fold", FoldOptions, LIMITS)
    auto = default_factor == "auto"
    factor = {
        "type": factor_or_auto,
        "default": default_factor,
        "show_default": True,
        "help": "Turn N positions of an axis into N times as many channels"
        + ("; auto: the forms that were measured to be faster." if auto else "."),
    }
    helps: Help = {f"--factor {'N|auto' if auto else 'N'}": factor, **FORM, **LIMITS}
    return options_of("fold", FoldOptions, helps, _make_fold_options)


def _make_fold_options(**values: Any) -> FoldOptions:
    """Return the options; a factor by default is none where only strides are folded."""
    source = click.get_current_context().get_parameter_source("factor")
    if values["form"] == FormName.STRIDES and source is ParameterSource.DEFAULT:
        values["factor"] = None
    return FoldOptions(**values)


def tolerance(text: str) -> tuple[str, float]:
    """Read out:1e-4 as ("out", 1e-4), and 1e-4, a tolerance of all outputs, as ("", 1e-4)."""
    name, _, digits = text.rpartition(":")
    try:
        bound = float(digits)
    except ValueError:
        bound = -1.0
    if not (bound >= 0 and math.isfinite(bound)):
        raise click.BadParameter(f"{printable(text)!r} is not a tolerance like 1e-4 or OUTPUT:1e-4")
    return name, bound


VALUE: Help = {
    "--value NAME=VALUE": "Value of an input that is no signal, such as a rate, e.g. sr=16000, or "
    "limits=0.1,0.9. Default for small inputs: what the model compares them with, else random.",
}
PROVIDER: Help = {
    "--provider NAME": f"Execution provider: {', '.join(Provider)}, or any other one as the "
    "runtime names it, ...ExecutionProvider; exit 4 if it cannot be used. auto: CUDA where that "
    "works, else the CPU. Single nodes that run on another provider are named.",
    "--provider-option NAME=VALUE": "Option of the execution provider, as ONNX Runtime names it, "
    "e.g. prefer_nhwc=1.",
    **VALUE,
    "--session-option NAME=VALUE": "Session config entry that you deploy with, as ONNX Runtime "
    "names it, e.g. session.x64quantprecision=1.",
}
VERIFYING: Help = {
    **PROVIDER,
    "--seeds": "Number of random input sets to compare.",
    "--inputs PATH": "Stored inputs to use as well: a test_data_set_* folder, .npz or .npy.",
    "--rtol [OUT:]TOL": {
        "multiple": True,
        "type": tolerance,
        "help": "Tolerance relative to the largest magnitude of an output, for all outputs or for "
        "OUT. Default: by dtype.",
    },
    "--atol": {
        "type": click.FLOAT,
        "default": Tolerance.atol,
        "show_default": True,
        "help": "Absolute tolerance.",
    },
}
"""Options of `VerifyOptions` for both commands that verify."""

SEARCHING: Help = {
    "--threads": "Threads of one operator (intra-op) while measuring; the fastest forms depend on "
    "it.",
    "--effort": "quick: time the forms that are predicted to be fastest, once, in about 20 s. "
    "default: time more of them, in under a minute. thorough: time every form of every layer, for "
    "minutes.",
    "--store": "File that keeps measurements. Default: $WIDTHFOLD_STORE, else a file in the user's "
    "cache.",
}
"""Options of `SearchOptions` for both commands that measure layers."""


def make_verify_options(
    *, rtol: tuple[tuple[str, float], ...], atol: float, **fields: Any
) -> VerifyOptions:
    """Return the options of the verifier, given the others by field.

    Raises:
        UsageError: a value that the options refuse.
    """
    bounds = dict(rtol)
    default_rtol = bounds.pop("", None)
    tolerances = Tolerance(rtol=default_rtol, atol=atol, per_output=bounds)
    return VerifyOptions(tolerance=tolerances, **fields)


FILES: Help = {
    "--report FILE": {
        "type": click.Path(path_type=Path, dir_okay=False),
        "help": "Write a report, too; the suffix chooses its format: .json, .md, .html, or "
        "of verify .xml.",
    },
    "--format": "Print this format instead of tables.",
}
DETAILS: Help = {
    "--details": "Print everything: all layers and forms, regions, times of nodes, the proof. "
    "Reports hold it anyway.",
}

file_arguments = options_of("destinations", Destinations, FILES)
report_arguments = options_of("destinations", Destinations, {**DETAILS, **FILES})
"""Adds the shared options, also `--details` for a result that has a brief description.

The command gets one `destinations` argument of type Destinations.
"""
