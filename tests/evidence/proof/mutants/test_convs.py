"""No wrong fold passes: every planted fault that changes the function is found.

What counts as changed is decided by onnx's reference implementation (`mutants.judge`); every mutant
that computes the same is found to be equal.
"""

from __future__ import annotations

import pytest

from tests.evidence.mutants import (
    BASES,
    PLANTERS,
    in_model,
    mutants,
    right_fold,
)
from tests.evidence.mutants.base import original
from tests.evidence.mutants.convs import outside
from tests.evidence.mutants.judge import Judgement
from tests.evidence.mutants.mutant import check, check_right
from tests.evidence.mutants.proof import difference

HARMLESS = {
    *(f"node.Identity_before_{place}" for place in ("front", "conv", "unfold", "last_move")),
    *("weight.structural_zero_negative", "code.weight.structural_zero_negative", "pad.zero"),
}
"""Changes that are no faults: the function stays the same in every base."""


@pytest.mark.parametrize("base", BASES)
def test_right_folds_are_equal(base: str) -> None:
    check_right(original(BASES[base]), right_fold(base))


@pytest.mark.parametrize("fault", PLANTERS)
def test_a_fault_is_found(fault: str) -> None:
    assert [check(mutant, {}) for mutant in mutants(fault, list(BASES), 1)]


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTERS)
def test_a_fault_is_found_in_every_base(fault: str) -> None:
    verdicts = {check(mutant, {}) for mutant in mutants(fault, list(BASES))}
    assert (verdicts == {Judgement.SAME}) == (fault in HARMLESS)


@pytest.mark.parametrize("fault", outside.FAULTS)
def test_a_fault_around_the_folded_node_is_found(fault: str) -> None:
    mutant = in_model(outside.FAULTS[fault], fault, "line")
    assert mutant is not None
    assert difference(mutant.original, mutant.model)
