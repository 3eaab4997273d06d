"""Fold models in memory and files, as tests need it: with the outcome of every layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from widthfold_onnx import pipeline
from widthfold_onnx.decide.fixed import decide_fixed
from widthfold_onnx.model.read.check import check_model
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.results import OptimizeReport, SiteReport
from widthfold_onnx.rewrite.apply import apply


def fold_model(
    proto: onnx.ModelProto, options: FoldOptions, folder: Path | None = None
) -> tuple[onnx.ModelProto, list[SiteReport]]:
    """Fold a model in memory at a fixed factor, without a proof; `proto` if nothing changes."""
    check_model(proto, folder)
    decided = decide_fixed(proto, folder, options)
    folded = apply(proto, folder, decided.plan) if decided.plan.changes else proto
    return folded, list(decided.sites)


def optimize(*arguments: Any, **options: Any) -> OptimizeReport:
    """Return the report of `pipeline.optimize`."""
    return pipeline.optimize(*arguments, **options).report
