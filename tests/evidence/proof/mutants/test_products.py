"""No wrong fold of products passes, of one or of a region: what changes the function is found.

What counts as changed is decided by onnx's reference implementation (`mutants.judge`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from types import ModuleType

import pytest

from tests.evidence.mutants.judge import Judgement
from tests.evidence.mutants.mutant import Mutant, RightFold, check, check_right
from tests.evidence.mutants.products import products, rows

STRICT = {
    "*-node.other_operator": "ONNX has no Gemm of rank 3, but the judge computes it",
    "double-*_ulp_up": "the judge computes in float64 itself",
}
"""Mutants that compute the same for the judge and are rejected all the same, and why."""

FAMILIES = {"one": products, "region": rows}
CASES = [(name, base) for name, family in FAMILIES.items() for base in family.BASES]
SAMPLE = 4
"""One in so many faults is planted in one base, others in the next."""


def mutants(family: ModuleType, base: str, step: int = 1) -> Iterator[Mutant]:
    right = RightFold(
        base=base,
        original=family.original(base),
        options=family.options(base),
        model=family.right_fold(base),
    )
    first = list(family.BASES).index(base) % step
    for faults, plant in ((family.IN_MODEL, right.in_model), (family.IN_CODE, right.in_code)):
        yield from plant(dict(islice(faults.items(), first, None, step)))


@pytest.mark.parametrize(("family", "base"), CASES)
def test_right_folds_are_equal(family: str, base: str) -> None:
    of = FAMILIES[family]
    check_right(of.original(base), of.right_fold(base))


@pytest.mark.parametrize(("family", "base"), CASES)
def test_faults_are_found(family: str, base: str) -> None:
    verdicts = [check(mutant, STRICT) for mutant in mutants(FAMILIES[family], base, SAMPLE)]
    assert len(verdicts) - verdicts.count(Judgement.SAME) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(("family", "base"), CASES)
def test_every_fault_is_found(family: str, base: str) -> None:
    verdicts = [check(mutant, STRICT) for mutant in mutants(FAMILIES[family], base)]
    assert len(verdicts) - verdicts.count(Judgement.SAME) >= 20
