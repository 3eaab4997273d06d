"""What the proof says of a pair of models."""

from __future__ import annotations

import onnx

from widthfold_onnx.evidence.proof.compare import SizeProof, prove_at_sizes
from widthfold_onnx.evidence.proof.program import program
from widthfold_onnx.evidence.proof.sizes import Shapes


def proofs(
    before: onnx.ModelProto, after: onnx.ModelProto, known: Shapes | None = None
) -> list[SizeProof]:
    """Prove two models that are held in memory, at every set of extents."""
    return prove_at_sizes(program(before, None), program(after, None), ({},), known or {})


def difference(before: onnx.ModelProto, after: onnx.ModelProto, known: Shapes | None = None) -> str:
    """What the proof finds, "" where both models are equal."""
    found = proofs(before, after, known)
    return "; ".join(f"{p.verdict}: {p.reason}" for p in found if p.verdict != "equal")
