"""May a guard stand around a fold: has the operator set its tests, and does the runtime load it?"""

from __future__ import annotations

from widthfold_onnx.model.graph import Value
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rewrite.record import ORIGIN_KEY
from widthfold_onnx.rules.base import LinearSite, Reformulation
from widthfold_onnx.rules.dequantized import is_dequantized_anew
from widthfold_onnx.rules.guarding import guard_of, needed_extents, needs_finite
from widthfold_onnx.rules.parameter import dequantizer

FINITE_OPSET, EXTENT_OPSET = 7, 10
"""Less and And broadcast from 7 on; there is no Mod below 10 (ONNX changelog)."""


def guard_problem(
    site: LinearSite, plan: Reformulation, options: FoldOptions, opset: int
) -> Refusal | None:
    """A refusal where the operator set cannot say what is tested, or no If can read the data."""
    if not guard_of(site, plan, options):
        return None
    least = max(
        FINITE_OPSET if needs_finite(site, plan, options) else 0,
        EXTENT_OPSET if needed_extents(site, plan, options) else 0,
    )
    if opset < least:
        return Refusal("opset-too-old", f"opset {opset} is below {least}, which the guard needs")
    if is_dequantized_anew(site.data) or _was_requantized(site.data):
        return Refusal(
            "guard-not-loadable",
            "it needs a guard, and its data comes from a DequantizeLinear through moves: "
            "ONNX Runtime dies while it loads an If that reads that",
        )
    return None


def _was_requantized(value: Value) -> bool:
    """Whether an earlier run quantized a value again behind its moves: it was refused then."""
    maker = dequantizer(value)
    return maker is not None and ORIGIN_KEY in maker.metadata_props
