"""What the proof says of a pair of models."""

from __future__ import annotations

import onnx

from widthfold_onnx.evidence.proof.compare import Proof, prove_at_sizes
from widthfold_onnx.evidence.proof.program import program



def proofs(before: onnx.ModelProto, after: onnx.ModelProto) -> list[Proof]:
    """Prove two models that are held in memory, at every set of extents."""
    return prove_at_sizes(program(before, None), program(after, None), {}, {})


def difference(before: onnx.ModelProto, after: onnx.ModelProto) -> str:
    """What the proof finds, "" where both models are equal."""
    return "; ".join(f"{p.verdict}: {p.reason}" for p in proofs(before, after) if p.reason)
