"""Whole models compared in this process, as `verify` does around the proof, and small ones."""

from __future__ import annotations

from pathlib import Path

from onnx import parser

from widthfold_onnx.evidence.parity.models import ModelParity, judged
from widthfold_onnx.evidence.run import run_original
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.options.progress import Progress, silent

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
OPTIONS = VerifyOptions(provider=Provider.CPU, seeds=3, truth_budget=0)
LINE = "g (float[N, 4] x) => (float[N, 4] y)"
SCALED = LINE + " <float w = {%s}> { y = Mul(x, w) }"


def compare_models(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    *,
    is_proved: bool = False,
    send: Progress = silent,
) -> ModelParity:
    reference, parity = run_original(original, rewritten, options, on_progress=send)
    return parity if reference is None else judged(reference, rewritten, is_proved=is_proved)


def stored(folder, name, text):
    path = folder / name
    path.write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    return path


def compared(folder, original, rewritten, options=OPTIONS, **arguments):
    paths = stored(folder, "a.onnx", original), stored(folder, "b.onnx", rewritten)
    return compare_models(*paths, options, **arguments)
