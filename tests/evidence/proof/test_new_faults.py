"""No planted fault that makes another function of a folded model is proved equal."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.evidence.proof.bases import BASES, right_fold
from tests.evidence.proof.faults import planted
from tests.evidence.proof.judge import differ
from widthfold_onnx.evidence.proof.compare import prove_at_sizes
from widthfold_onnx.evidence.proof.program import program

SAMPLE = 30
"""Faults of each base: 420 in all."""
SEED = 1
FEWEST = 5
"""Of each base, so many faults at least make another function that runs."""


def verdict(original: onnx.ModelProto, other: onnx.ModelProto) -> str:
    proofs = prove_at_sizes(program(original, None), program(other, None), {}, {})
    return next((proof.verdict for proof in proofs if proof.verdict != "equal"), "equal")


@pytest.mark.parametrize("base", BASES)
def test_right_folds_are_equal(base: str) -> None:
    original, folded = right_fold(base)
    assert differ(original, folded) is False
    assert verdict(original, folded) == "equal"


@pytest.mark.parametrize("base", BASES)
def test_faults_are_found(base: str) -> None:
    original, folded = right_fold(base)
    faults = list(planted(folded, SEED))
    chosen = np.random.default_rng(SEED).choice(len(faults), SAMPLE, replace=False)
    missed, found = [], 0
    for what, faulty in (faults[i] for i in sorted(chosen)):
        if differ(original, faulty):
            found += 1
            if verdict(original, faulty) != "different":
                missed.append(what)
    assert found >= FEWEST, f"{found} of {SAMPLE} are faults"
    assert missed == []
