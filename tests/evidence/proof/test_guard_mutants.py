"""Folds behind guards: both branches are the original, and a fault in either one is found.

That a condition is strict enough is no matter of this proof: `CONDITIONS` says which faults of a
condition no tried extents show.
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

TOO_STRICT_OR_NOT_SEEN = {
    *("half_the_modulus", "more", "offset", "axis", "smallest_rest", "largest_extent", "any_rest"),
    *("other_test", "added", "divided"),
}
"""Conditions on extents that choose right at all that are tried, for some originals."""


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
        if of == base and name not in TOO_STRICT_OR_NOT_SEEN:
            unseen = name in OF_DATA and base in ("chain", "several", "dequantized")
            assert is_found(of, name) != unseen, name


@pytest.mark.parametrize("name", sorted(TOO_STRICT_OR_NOT_SEEN))
def test_a_wrong_condition_may_choose_right_at_all_tried_extents(name: str) -> None:
    """What is not found here is what a check of conditions is for."""
    found = [is_found(of, fault) for of, fault in FAULTS if fault == name]
    assert len(found) == 4
    assert not all(found)


def test_a_branch_that_no_tried_extents_reach_is_not_provable() -> None:
    proof = proofs(GUARD["both assumed"], right("both assumed"))[-1]
    assert proof.verdict == "not provable"
    assert proof.reason == "y: at no extents that were tried, then_branch can be evaluated"


def test_the_sample_is_large() -> None:
    assert len(FAULTS) >= 90
