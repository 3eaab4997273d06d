"""Whole models compared in this process, as `verify` does around the proof."""

from __future__ import annotations

from pathlib import Path

from widthfold_onnx.evidence.parity.models import ModelParity, judged
from widthfold_onnx.evidence.run import prepared
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.options.progress import Say, quiet


def compare_models(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    *,
    is_proved: bool = False,
    report: Say = quiet,
) -> ModelParity:
    reference, parity = prepared(original, rewritten, options, report=report)
    return parity if reference is None else judged(reference, rewritten, is_proved=is_proved)
