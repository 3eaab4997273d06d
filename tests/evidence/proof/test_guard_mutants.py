"""Folds behind guards: both branches are the original, and a fault in either one is found.

The condition is tried at some extents: `NOT_SEEN` are the faults of conditions that are not found.
"""

from __future__ import annotations

import pytest

from tests.evidence.mutants.guards import ALONE, BASES, FAULTS, GUARD, copied, right
from tests.evidence.mutants.proof import difference, proofs

KNOWN = {base: options.input_shapes[0] for base, (_, options, _) in BASES.items()}
"""Extents that were given when the model was folded: in "both assumed" no others reach its folded
branch."""

EXACT = ("assumed", "both assumed", "chain")
"""Where one extent only fits."""

NOT_SEEN = {
    *((base, "any_rest") for base in ALONE),  # the smallest extent is 1
    *((base, "largest_extent") for base in ("chain", *ALONE)),
    *((base, "smallest_rest") for base in ("chain", *ALONE) if base != "both assumed"),  # of one
    *((base, "added") for base in ("height", "rows")),  # the offset is 0
    *((base, name) for base in EXACT for name in ("half_the_modulus", "more")),  # above any extent
}
"""Conditions on extents that are the same function where extents are open, or choose a branch that
is as right without any elements."""


def is_found(of: str, name: str) -> bool:
    mutant = copied(of)
    FAULTS[of, name](mutant)
    return bool(difference(GUARD[of], mutant, KNOWN[of]))


@pytest.mark.parametrize("base", GUARD)
def test_right_guards_are_equal(base: str) -> None:
    assert difference(GUARD[base], right(base), KNOWN[base]) == ""


@pytest.mark.parametrize("base", GUARD)
def test_faults_of(base: str) -> None:
    for of, name in FAULTS:
        if of == base:
            assert is_found(of, name) != ((of, name) in NOT_SEEN), name


def test_a_branch_that_no_tried_extents_reach_is_not_provable() -> None:
    proof = proofs(GUARD["both assumed"], right("both assumed"))[-1]
    assert proof.verdict == "not provable"
    assert proof.reason == "the then_branch of y is chosen at none of the extents tried"


def test_the_sample_is_large() -> None:
    assert len(FAULTS) >= 140
