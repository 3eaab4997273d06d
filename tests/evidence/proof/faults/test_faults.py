"""No planted fault that makes another function of a folded model is proved equal."""

from __future__ import annotations

from itertools import islice

import numpy as np
import onnx
import pytest

from tests.evidence.proof.faults.bases import BASES, right_fold
from tests.evidence.proof.faults.faults import planted
from tests.evidence.proof.faults.judge import differ
from tests.lacking import IS_OLD
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import prove_at_sizes

FAULTS = 15
"""Of each base, drawn from all that make another function which runs: 210 in all."""
SEED = 1


def verdict(original: onnx.ModelProto, other: onnx.ModelProto) -> str:
    proofs = prove_at_sizes(Program.of(original, None), Program.of(other, None), ({},), {})
    return next((proof.verdict for proof in proofs if proof.verdict != "equal"), "equal")


@pytest.mark.parametrize("base", BASES)
def test_right_folds_are_equal(base: str) -> None:
    original, folded = right_fold(base)
    assert differ(original, folded) is False
    assert verdict(original, folded) == "equal"


@pytest.mark.timeout(1200)  # the reference Resize of onnx 1.17 takes ten seconds a run
@pytest.mark.parametrize("base", BASES)
def test_faults_are_found(base: str) -> None:
    original, folded = right_fold(base)
    faults = list(planted(folded, SEED))
    drawn = (faults[i] for i in np.random.default_rng(SEED).permutation(len(faults)))
    faulty = list(islice((fault for fault in drawn if differ(original, fault[1])), FAULTS))
    assert len(faulty) == FAULTS
    # Inference of older releases of onnx finds no extents of some faulty branches.
    verdicts = {"different", "not provable"} if IS_OLD else {"different"}
    assert [what for what, model in faulty if verdict(original, model) not in verdicts] == []
