"""Defines the options that say how to fold, shared by all commands that plan a fold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click
from click.core import ParameterSource

from widthfold_onnx.cli.common import ShapeType, Word
from widthfold_onnx.options import AxisName, Companion, FoldOptions, Form, Layout, NonFinite
from widthfold_onnx.text import printable


class AxisType(click.ParamType[AxisName | int]):
    """auto, batch, height, width, depth, or an index into the Conv's input shape."""

    name = "AXIS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> AxisName | int:
        """Read digits as an index, anything else as a name."""
        if isinstance(value, AxisName | int):
            return value
        if value.isascii() and value.isdigit() and len(value) < 4:
            return int(value)
        try:
            return AxisName(value)
        except ValueError:
            names = ", ".join(AxisName)
            self.fail(f"{printable(value)!r} is none of {names}, 0, 2, 3, 4", param, ctx)


class FactorType(click.ParamType[int | None]):
    """auto, which is None, or a number."""

    name = "N|auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """Read auto as None, anything else as a whole number."""
        if value == "auto":
            return None
        try:
            return int(value)
        except ValueError:
            self.fail(f"{printable(value)!r} is neither auto nor a whole number", param, ctx)


FORM = click.option(
    "--form",
    type=Word(Form),
    default="fold",
    show_default=True,
    help="fold: as --factor says. strides: fold the strides of every layer and nothing else, "
    "without measuring: a ConvTranspose becomes a Conv and a pixel shuffle, any other Conv a pixel "
    "unshuffle and a Conv of stride 1.",
)
OPTIONS = (
    click.option(
        "--axis",
        type=AxisType(),
        default="auto",
        show_default=True,
        help="Axis to fold: auto, batch, height, width, depth, or its index.",
    ),
    click.option(
        "--layout",
        type=Word(Layout),
        default="auto",
        show_default=True,
        help="Form of the moves: nhwc suits a runtime that computes channels-last and can remove "
        "their Transposes. auto measures both; at a fixed factor it is nhwc with prefer_nhwc=1, "
        "else nchw.",
    ),
    click.option(
        "--ragged",
        is_flag=True,
        help="Fold extents that the factor does not divide, too: pad the data, cut the result.",
    ),
    click.option(
        "--mix-samples",
        is_flag=True,
        help="Allow folds whose weight joins samples of a batch: a NaN of one can reach others.",
    ),
    click.option(
        "--nonfinite",
        type=Word(NonFinite),
        default="spread",
        show_default=True,
        help="spread: Inf and NaN may reach more outputs of the same sample. refuse: no fold with "
        "structural zeros, so that Inf and NaN stay where they were.",
    ),
    click.option(
        "--guard-shapes",
        is_flag=True,
        help="Fold layers with open sizes, too: OUT tests the sizes and runs the original nodes "
        "where the fold does not fit.",
    ),
    click.option(
        "--max-channels",
        type=int,
        default=32,
        show_default=True,
        help="Leave a layer alone if its input and its output have at least this many channels in "
        "every group.",
    ),
    click.option(
        "--max-flops-growth",
        type=float,
        default=32.0,
        show_default=True,
        help="Refuse a fold that multiplies the multiply-adds of a layer by more than this.",
    ),
    click.option(
        "--max-bytes-growth",
        type=float,
        default=32.0,
        show_default=True,
        help="Refuse a fold that multiplies the bytes of input, weight and output by more than "
        "this.",
    ),
    click.option(
        "--nodes",
        multiple=True,
        metavar="GLOB",
        help="Fold only nodes whose name matches; may be given several times.",
    ),
    click.option(
        "--skip",
        multiple=True,
        metavar="GLOB",
        help="Leave alone nodes whose name matches; may be given several times.",
    ),
    click.option(
        "--input-shape",
        "input_shapes",
        type=ShapeType(),
        multiple=True,
        help="Sizes to plan with where the model leaves them open, e.g. x:1,3,224,224; the "
        "model keeps its symbols.",
    ),
)
"""Options of all commands that plan a fold, in the order of `--help`: the fields of FoldOptions."""

CHANGES = (
    click.option(
        "--companion",
        "companions",
        type=Word(Companion),
        multiple=True,
        help="Exchange ops for equal ones that run faster: prelu (PRelu), scalar (arithmetic with "
        "one number), or none. May be given several times. Default: --factor auto measures all of "
        "them; a number and --form strides exchange none.",
    ),
    click.option(
        "--freeze-weights",
        is_flag=True,
        help="Take weights out of the inputs of the model, where callers could replace them and "
        "the runtime neither packs nor fuses them.",
    ),
)
"""Options of the commands that show or write one model."""


def fold_options(
    default_factor: str | None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of a fold; the command gets one `fold` argument of type FoldOptions.

    Args:
        default_factor: with "auto", `--factor` takes auto or a number; None leaves out `--factor`
            and `CHANGES`.
    """
    auto = default_factor == "auto"
    factor = click.option(
        "--factor",
        type=FactorType(),
        metavar=FactorType.name if auto else "N",
        default=default_factor,
        show_default=True,
        help="Turn N positions of an axis into N times as many channels"
        + ("; auto: the forms that were measured to be faster." if auto else "."),
    )
    asked = () if default_factor is None else (factor, FORM, *CHANGES)
    single = ("factor", "form", "companions", "freeze_weights")
    names = [f.name for f in fields(FoldOptions) if f.name not in single or asked]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def collect(**arguments: Any) -> Any:
            chosen = {name: arguments.pop(name) for name in names}
            chosen["input_shapes"] = dict(chosen["input_shapes"])
            source = click.get_current_context().get_parameter_source("factor")
            if chosen.get("form") == Form.STRIDES and source is ParameterSource.DEFAULT:
                chosen["factor"] = None
            return command(fold=FoldOptions(**chosen), **arguments)

        for decorator in reversed((*asked, *OPTIONS)):
            collect = decorator(collect)
        return collect

    return decorate
