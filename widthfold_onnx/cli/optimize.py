"""widthfold optimize."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from widthfold_onnx.cli.common import INTERRUPTED, MODEL, Sectioned, guarded, leave, progress
from widthfold_onnx.cli.folding import fold_options
from widthfold_onnx.cli.reporting import ReportArguments, deliver, report_arguments
from widthfold_onnx.cli.running import VerifyArguments, verify_arguments
from widthfold_onnx.cli.searching import SearchArguments, search_arguments
from widthfold_onnx.errors import CheckFailedError, NothingFoldedError, UnverifiedError
from widthfold_onnx.options import FoldOptions

if TYPE_CHECKING:
    from widthfold_onnx.results import VerifyReport


@click.command("optimize", cls=Sectioned)
@guarded
@click.argument("model", type=MODEL)
@click.argument("out", type=MODEL, required=False)
@fold_options(default_factor="auto")
@search_arguments
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if anything would be changed.")
@click.option(
    "--require-fold",
    is_flag=True,
    help="Write nothing and exit 5 if nothing is folded or exchanged.",
)
@click.option("--no-verify", is_flag=True, help="Write the result unverified.")
@verify_arguments
@report_arguments
def optimize_command(
    model: Path,
    out: Path | None,
    fold: FoldOptions,
    check: bool,
    require_fold: bool,
    no_verify: bool,
    searching: SearchArguments,
    running: VerifyArguments,
    reporting: ReportArguments,
) -> None:
    """Fold layers of MODEL, verify the result, and write it to OUT.

    --factor auto measures the forms of every layer on this machine and keeps the fastest; OUT is a
    copy of MODEL unless the whole model became faster beyond noise. --factor N measures nothing:
    it folds every layer that can be folded by N.

    The table lists every Conv, ConvTranspose, MatMul and Gemm, also quantized: its fold, or the
    reason why it was left alone. Without OUT nothing is written. OUT is replaced in one step after
    all checks passed; if nothing was folded, it is a copy of MODEL.
    """
    from widthfold_onnx.pipeline import optimize
    from widthfold_onnx.results import OptimizeReport

    to = reporting.destinations(OptimizeReport, [model, *([out] if out else [])])
    options = running.options({}, thorough=False)
    with progress() as on_progress:
        result = optimize(
            model,
            None if check else out,
            fold,
            None if no_verify else options,
            searching.options(options),
            require_fold=require_fold,
            on_progress=on_progress,
        )
    from widthfold_onnx.reports.text.console import printing, say
    from widthfold_onnx.reports.text.terminal import show_optimize
    from widthfold_onnx.reports.wording import changes, kinds

    deliver(result, to, model, show_optimize)
    if result.written is None and result.verification is not None:
        _leave_unwritten(result.verification)
    if require_fold and not result.summary.changes:
        found = f"{len(result.sites)} {kinds(result.sites)} nodes"
        leave(
            f"none of {found} was folded; nothing is written",
            NothingFoldedError.exit_code,
        )
    timed = result.search is not None and result.search.whole is not None
    if result.written is not None and result.summary.changes and not timed:
        with printing():
            say(f"not timed; to see if it pays: {_timing(model, out, fold)}", command=True)
    if result.search is not None and result.search.interrupted:
        leave("interrupted; decided with what had been measured", INTERRUPTED)
    if check and result.summary.changes:
        leave(changes(result.summary), CheckFailedError.exit_code)


def _leave_unwritten(verification: VerifyReport) -> NoReturn:
    """Exit for a result that did not pass, and say why."""
    error = CheckFailedError if verification.verdict == "fail" else UnverifiedError
    why = "; ".join(verification.reasons) or "no reason given"
    proof = verification.proof
    guilty = verification.saturates_further or (proof is not None and proof.verdict == "different")
    hint = "; --skip NODE leaves a node alone" if guilty else ""
    leave(f"OUT is not written: {why}{hint}", error.exit_code)


def _timing(model: Path, out: Path | None, fold: FoldOptions) -> str:
    """Return the command that times the result at the shapes it was folded for."""
    shapes = [f"{name}:{','.join(map(str, dims))}" for name, dims in fold.input_shapes.items()]
    words = ["widthfold", "verify", str(model), str(out)]
    words += ["--freeze-weights"] if fold.freeze_weights else []
    return shlex.join([*words, *(word for shape in shapes for word in ("--input-shape", shape))])
