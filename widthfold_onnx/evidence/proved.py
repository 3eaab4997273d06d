"""Proves two model files equal, as a part of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.proof import compare
from widthfold_onnx.evidence.proof.field import PRIMES
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.options import Shapes
from widthfold_onnx.results import Proof
from widthfold_onnx.text import printable

VERDICTS = ("equal", "not provable", "different")


def proved(old: Program, new: Program, fixed: Shapes, known: Shapes) -> Proof:
    """Prove two models equal, or say where they differ.

    Args:
        old: the original.
        new: the rewritten model.
        fixed: extents of inputs that the caller demands.
        known: extents at which the original ran, empty where it did not.
    """
    try:
        found = compare.prove_at_sizes(old, new, fixed, known)
    except UnverifiedError as error:
        return Proof(verdict="skipped", reason=str(error))
    worst = max(found, key=lambda proof: VERDICTS.index(proof.verdict))
    return Proof(
        verdict=worst.verdict,
        reason=worst.reason and f"{worst.reason}, {_said(worst.shapes)}",
        values=min(proof.values for proof in found),
        error_bits=max(0, int(min(proof.error_bits for proof in found))),
        primes=list(PRIMES),
        functions=sorted({name for proof in found for name in proof.functions}),
        extents=[{name: list(dims) for name, dims in proof.shapes.items()} for proof in found],
    )


def _said(shapes: Mapping[str, Sequence[int]]) -> str:
    dims = (f"{printable(name)} {list(extents)}" for name, extents in shapes.items())
    return f"with {', '.join(dims)}" if shapes else "without inputs"
