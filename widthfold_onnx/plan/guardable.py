"""Check whether a guard can stand around a fold: the operator set and the runtime must allow it."""

from __future__ import annotations

from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.dequantized import is_dequantized_anew
from widthfold_onnx.rules.form import Reformulation
from widthfold_onnx.rules.guarding import needed_extents
from widthfold_onnx.rules.site import LinearSite

LEAST_OPSET = 10
"""First operator set with a Mod (ONNX changelog)."""


def guard_problem(
    site: LinearSite, plan: Reformulation, options: FoldOptions, opset: int
) -> Refusal | None:
    """Refuse a guard whose test the operator set lacks, or whose data no If can read."""
    if not needed_extents(site, plan, options):
        return None
    if opset < LEAST_OPSET:
        return Refusal(
            "opset-too-old", f"opset {opset} is below {LEAST_OPSET}, which the guard needs"
        )
    if is_dequantized_anew(site.data):
        return Refusal(
            "guard-not-loadable",
            "it needs a guard, and its data comes from a DequantizeLinear through moves: "
            "ONNX Runtime dies while it loads an If that reads that",
        )
    return None
