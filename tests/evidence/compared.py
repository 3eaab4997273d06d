"""Whole models compared in this process, as `verify` does around the proof."""

from __future__ import annotations

from pathlib import Path

from widthfold_onnx.evidence.parity.models import ModelParity, ModelRuns, judged, run_models
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.progress import Say, quiet


def compare_models(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    *,
    is_proved: bool = False,
    report: Say = quiet,
) -> ModelParity:
    runs = run_models(original, rewritten, options, report=report)
    return judged(runs, is_proved=is_proved) if isinstance(runs, ModelRuns) else runs
