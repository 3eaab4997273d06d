"""No wrong fold of a quantized convolution passes the proof."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import onnx
import pytest

from tests.evidence.mutants.judge import Judgement
from tests.evidence.mutants.mutant import Mutant, check, check_right, content
from tests.evidence.mutants.quantized import BASES, FAULTS, IN_CODE, options, right_fold
from tests.folding import fold_model

STRICT = {
    "*-weight.first_one_more": "what saturates or rounds hides a change",
    "*.off": "what saturates or rounds hides a change",
}
"""Mutants that compute the same on the judge's data and are rejected all the same."""


def mutants(base: str, step: int = 1) -> Iterator[Mutant]:
    original, right = BASES[base][0].model(), right_fold(base)
    first = list(BASES).index(base) % step
    for name, plant in islice(FAULTS.items(), first, None, step):
        model = onnx.ModelProto()
        model.CopyFrom(right)
        if plant(model):
            yield Mutant(base, name, original, model)
    for name, context in islice(IN_CODE.items(), first, None, step):
        with context():
            model, _ = fold_model(original, options(base))
        if content(model) != content(right):
            yield Mutant(base, name, original, model)


@pytest.mark.parametrize("base", BASES)
def test_right_folds_are_equal(base: str) -> None:
    check_right(BASES[base][0].model(), right_fold(base))


@pytest.mark.parametrize("base", BASES)
def test_faults_are_found(base: str) -> None:
    verdicts = [check(mutant, STRICT) for mutant in mutants(base, 3)]
    assert len(verdicts) - verdicts.count(Judgement.SAME) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES)
def test_every_fault_is_found(base: str) -> None:
    verdicts = [check(mutant, STRICT) for mutant in mutants(base)]
    assert len(verdicts) - verdicts.count(Judgement.SAME) >= 12
