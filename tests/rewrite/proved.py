"""Proofs that two models in memory are the same function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import SizeProof, prove_at_sizes
from widthfold_onnx.model.document import Document
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import sizes_of
from widthfold_onnx.rewrite.record import recorded_folds

Shapes = Mapping[str, Sequence[int]]


def proof(
    old: onnx.ModelProto,
    new: onnx.ModelProto,
    shapes: Shapes | None = None,
    ran_at: Shapes | None = None,
) -> SizeProof:
    """The proof at the first extents at which the models differ, at any if they are equal.

    Args:
        old: the original.
        new: the rewritten model.
        shapes: extents of inputs, where the open extents of the original are not to vary.
        ran_at: extents at which the original runs, where not all do.
    """
    ran = {name: tuple(extents) for name, extents in (ran_at or {}).items()}
    size_proofs = prove_at_sizes(
        Program.of(old, None), Program.of(new, None), sizes_of(shapes or {}), ran
    )
    return next((item for item in size_proofs if item.verdict != "equal"), size_proofs[0])


def assert_proved(
    old: onnx.ModelProto,
    new: onnx.ModelProto,
    count: int,
    shapes: Shapes | None = None,
    ran_at: Shapes | None = None,
) -> None:
    """Assert that both are the same function, and `count` nodes of `new` record their folds."""
    size_proof = proof(old, new, shapes, ran_at)
    assert size_proof.verdict == "equal", size_proof
    folds = recorded_folds(Document(new, None, OPERATORS))
    assert len(folds) == count
    assert all(fold.channels for fold in folds), folds
