"""The proof of a pair of models."""

from __future__ import annotations

import onnx

from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import SizeProof, prove_at_sizes
from widthfold_onnx.options import Shapes


def proofs(
    before: onnx.ModelProto, after: onnx.ModelProto, ran_at: Shapes | None = None
) -> list[SizeProof]:
    """Prove two models that are held in memory, at every set of extents."""
    return prove_at_sizes(Program.of(before, None), Program.of(after, None), ({},), ran_at or {})


def difference(
    before: onnx.ModelProto, after: onnx.ModelProto, ran_at: Shapes | None = None
) -> str:
    """The difference that the proof finds, "" for equal models."""
    size_proofs = proofs(before, after, ran_at)
    return "; ".join(f"{p.verdict}: {p.reason}" for p in size_proofs if p.verdict != "equal")
