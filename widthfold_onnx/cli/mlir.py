"""The command `widthfold mlir`: fold the layers of an MLIR module."""

from __future__ import annotations

from pathlib import Path

import click

from widthfold_onnx.cli.common import MODEL, Sectioned, guarded
from widthfold_onnx.cli.options import Help, options_of
from widthfold_onnx.options import DEFAULT_FACTOR, FoldOptions

FOLD: Help = {
    "--factor": {
        "default": DEFAULT_FACTOR,
        "show_default": True,
        "help": "Turn N positions of an axis into N times as many channels.",
    },
    "--nodes GLOB": "Fold only FUNCTION/%NAME.",
    "--skip GLOB": "Leave FUNCTION/%NAME alone.",
    "--axis AXIS": "Axis to fold, as ONNX has it.",
    "--mix-samples": "Allow folds of a product's rows, which may be samples: a NaN of one can "
    "reach others.",
}


@click.command("mlir", cls=Sectioned)
@guarded
@click.argument("source", type=MODEL)
@click.argument("out", type=MODEL)
@options_of("fold_options", FoldOptions, FOLD)
@click.option(
    "--groups",
    is_flag=True,
    help="Make groups of a folded weight that is block-diagonal: there are no more multiply-adds "
    "than before, but no matrices to multiply either.",
)
def mlir_command(source: Path, out: Path, fold_options: FoldOptions, groups: bool) -> None:
    """Fold the layers of SOURCE, MLIR or ONNX, and write MLIR to OUT.

    SOURCE is MLIR if its name ends in .mlir or .mlirbc; an ONNX model is imported by IREE. Every
    linalg layer that can be folded is folded, in the form that is cheapest on paper. OUT was
    checked by MLIR's verifier, but nothing was run: compare it with SOURCE before it is deployed.
    """
    from widthfold_onnx.mlir.files import fold_file
    from widthfold_onnx.reports.console import show
    from widthfold_onnx.reports.described.layers import SITES
    from widthfold_onnx.reports.description import Description, Line, tabulated
    from widthfold_onnx.reports.words import kinds

    sites = fold_file(source, out, fold_options, groups=groups)
    count = sum(site.status == "folded" for site in sites)
    head = f"{count} of {len(sites)} {kinds(sites)} layers folded; wrote {out.name}"
    show(Description(Line("", head), tables=tabulated("layers", SITES, sites)))
