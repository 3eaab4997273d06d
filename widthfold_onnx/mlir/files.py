"""Fold an MLIR or ONNX file into an MLIR file."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from subprocess import run

from widthfold_onnx import mlir
from widthfold_onnx.decide.outcomes import site_report
from widthfold_onnx.errors import InvalidModelError, UsageError
from widthfold_onnx.mlir.emission import replace_operation
from widthfold_onnx.mlir.operations import decide, find_operations
from widthfold_onnx.model.atomic import check_target, reading, write_file
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.results import SiteReport
from widthfold_onnx.rules.form import Form
from widthfold_onnx.text import printable

OPSET = "17"
"""Operator set to which older models are converted: IREE lacks older versions of operators."""


def fold_file(
    source: Path, out: Path, options: FoldOptions, *, groups: bool = False
) -> list[SiteReport]:
    """Fold the layers of a module, each in the legal form with the lowest estimated cost.

    Args:
        source: MLIR as text or bytecode if its name ends in .mlir or .mlirbc, else an ONNX model.
        out: file for the folded module, as text.
        options: which layers are folded, and how; a factor must be given.
        groups: turn the blocks of a block-diagonal folded weight into groups.

    Returns:
        The outcome of every layer.

    Raises:
        UsageError: IREE is not installed, or a path or option does not fit.
        InvalidModelError: the file is no module, or IREE cannot import the model.
    """
    check_target(out, [source])
    with reading(source.name):
        text = source.read_bytes() if source.suffix in (".mlir", ".mlirbc") else _imported(source)
    module, sites = fold_module(text, options, groups=groups)
    write_file(out, module.encode())
    return sites


def fold_module(
    module: bytes | str, options: FoldOptions, *, groups: bool = False
) -> tuple[str, list[SiteReport]]:
    """Fold the layers of a module; see `fold_file`.

    Returns:
        The folded module as text, and the outcome of every layer.
    """
    if options.is_measured:
        raise UsageError("a module is folded without being run: give a factor")
    with mlir.ir.Context():
        try:
            parsed = mlir.ir.Module.parse(module)
        except mlir.ir.MLIRError as error:
            raise InvalidModelError(f"no MLIR module: {printable(str(error), 500)}") from error
        linalg_ops = find_operations(parsed)
        decisions = decide(linalg_ops, options) if linalg_ops else []
        for linalg_op, decision in zip(linalg_ops, decisions, strict=True):
            if isinstance(decision.answer, Form) and decision.layer is not None:
                replace_operation(linalg_op, decision.layer, decision.answer, groups=groups)
        parsed.operation.verify()
        return str(parsed), list(map(site_report, decisions))


def _imported(model: Path) -> bytes:
    """Return an ONNX model as linalg operations, as IREE itself imports it."""
    load(model)  # raises InvalidModelError for a file that is no model
    with tempfile.TemporaryDirectory() as folder:
        torch, linalg = Path(folder, "torch.mlir"), Path(folder, "linalg.mlir")
        _run("import_onnx", str(model), "--opset-version", OPSET, "-o", str(torch))
        options = ("--iree-input-type=onnx", "--compile-to=input")
        _run("scripts.iree_compile", str(torch), *options, "-o", str(linalg))
        return linalg.read_bytes()


def _run(tool: str, *arguments: str) -> None:
    command = [sys.executable, "-m", f"{mlir.tools.__name__}.{tool}", *arguments]
    process = run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if process.returncode:
        lines = process.stderr.strip().splitlines() or ["it does not say why"]
        reason = next((line for line in lines if "error: " in line), lines[-1])
        raise InvalidModelError(f"IREE does not import it: {printable(reason, 500)}")
