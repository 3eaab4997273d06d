"""widthfold mlir."""

from __future__ import annotations

from pathlib import Path

import click

from widthfold_onnx.cli.common import MODEL, Sectioned, guarded
from widthfold_onnx.cli.folding import AxisType
from widthfold_onnx.options import AxisName, FoldOptions


@click.command("mlir", cls=Sectioned)
@guarded
@click.argument("source", type=MODEL)
@click.argument("out", type=MODEL)
@click.option(
    "--factor",
    type=int,
    default=8,
    show_default=True,
    help="Turn N positions of an axis into N times as many channels.",
)
@click.option("--nodes", multiple=True, metavar="GLOB", help="Fold only FUNCTION/%NAME.")
@click.option("--skip", multiple=True, metavar="GLOB", help="Leave FUNCTION/%NAME alone.")
@click.option(
    "--axis",
    type=AxisType(),
    default="auto",
    show_default=True,
    help="Axis to fold, as ONNX has it.",
)
@click.option(
    "--mix-samples",
    is_flag=True,
    help="Allow folds of a product's rows, which may be samples: a NaN of one can reach others.",
)
@click.option(
    "--groups",
    is_flag=True,
    help="Make groups of a folded weight that is block-diagonal: there are no more multiply-adds "
    "than before, but no matrices to multiply either.",
)
def mlir_command(
    source: Path,
    out: Path,
    factor: int,
    nodes: tuple[str, ...],
    skip: tuple[str, ...],
    axis: AxisName | int,
    mix_samples: bool,
    groups: bool,
) -> None:
    """Fold the linalg layers of SOURCE, MLIR or an ONNX model, and write MLIR to OUT.

    SOURCE is MLIR if its name ends in .mlir or .mlirbc; an ONNX model is imported by IREE. Every
    layer that can be folded is folded, in the form that is cheapest on paper. OUT was checked by
    MLIR's verifier, but nothing was run: compare it with SOURCE before it is deployed.
    """
    from widthfold_onnx.mlir.files import fold_file
    from widthfold_onnx.reports.text.terminal import show_sites

    options = FoldOptions(factor=factor, nodes=nodes, skip=skip, axis=axis, mix_samples=mix_samples)
    show_sites(fold_file(source, out, options, groups=groups), f"wrote {out.name}")
