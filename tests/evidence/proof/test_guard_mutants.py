"""Folds behind guards: both branches are the original, and a fault in either one is found.

A condition on numbers is no matter of this proof, and one on extents is tried at some of them:
`OF_DATA` and `NOT_SEEN` are the faults of conditions that it does not find.
"""

from __future__ import annotations

import pytest

from tests.evidence.mutants.guards import FAULTS, GUARD, copied, right
from tests.evidence.mutants.proof import difference, proofs

KNOWN = {"both assumed": {"x": (1, 3, 6, 14)}}
"""Extents that were given when the model was folded; no others reach its folded branch."""

OF_DATA = {
    *("inverted", "swapped", "always", "bound", "infinite_bound", "signed_sum", "largest_only"),
    *("above", "turned", "one_axis", "one input is not tested", "either input is tested"),
    "one input is tested twice",
}
"""Conditions on numbers: either branch is right by algebra."""

NOT_SEEN = {
    *((base, "any_rest") for base in ("height", "batch", "both assumed", "rows")),  # smallest: 1
    *((base, "largest_extent") for base in ("height", "batch", "both assumed", "rows")),
    *((base, "smallest_rest") for base in ("height", "batch", "rows")),  # one axis is tested
    *((base, "added") for base in ("height", "rows")),  # the offset is 0
    *(("both assumed", name) for name in ("half_the_modulus", "more")),  # above any extent
}
"""Conditions on extents that are the same function where extents are open, or choose a branch that
is as right without any elements."""


def is_found(of: str, name: str) -> bool:
    mutant = copied(of)
    FAULTS[of, name](mutant)
    return bool(difference(GUARD[of], mutant, KNOWN.get(of)))


@pytest.mark.parametrize("base", GUARD)
def test_right_guards_are_equal(base: str) -> None:
    assert difference(GUARD[base], right(base), KNOWN.get(base)) == ""


@pytest.mark.parametrize("base", GUARD)
def test_faults_of(base: str) -> None:
    for of, name in FAULTS:
        if of == base:
            of_data = name in OF_DATA and base in ("chain", "several", "dequantized")
            assert is_found(of, name) != (of_data or (of, name) in NOT_SEEN), name


def test_a_branch_that_no_tried_extents_reach_is_not_provable() -> None:
    proof = proofs(GUARD["both assumed"], right("both assumed"))[-1]
    assert proof.verdict == "not provable"
    assert proof.reason == "the then_branch of y is chosen at none of the extents tried"


def test_the_sample_is_large() -> None:
    assert len(FAULTS) >= 90
