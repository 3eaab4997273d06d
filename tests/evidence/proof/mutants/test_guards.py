"""Folds behind guards: both branches are the original, and a fault in either one is found.

Faults of a condition that change no result are no faults (`is_equal`).
"""

from __future__ import annotations

import pytest
from onnx import numpy_helper

from tests.evidence.mutants.guards import (
    BASES,
    EXTENT_FAULTS,
    FAULTS,
    GUARD,
    constant,
    copied,
    node_of,
    right,
)
from tests.evidence.mutants.proof import difference, proofs

KNOWN = {base: options.input_shapes[0] for base, (_, options, _) in BASES.items()}
"""Extents that were given when the model was folded."""


def is_equal(of: str, name: str) -> bool:
    """True if a fault of a condition leaves all results as they are, by algebra.

    The condition is: the largest of (extent - offset) mod modulus < sign of the smallest extent.
    """
    right_model = right(of)
    offsets, moduli = (
        numpy_helper.to_array(node_of(right_model, what).attribute[0].t)
        for what in ("guard_offsets", "guard_moduli")
    )
    dims = right_model.graph.input[0].type.tensor_type.shape.dim
    return {
        # Beside an extent of 1 the smallest one is 0 or 1, and so is its own sign.
        "any_rest": any(dim.dim_value == 1 for dim in dims),
        # The smallest of one remainder is the largest.
        "smallest_rest": moduli.size == 1,
        # e + o and e - o differ by 2 o.
        "added": not (2 * offsets % moduli).any(),
        # The signs differ at an extent of 0 alone. There a Conv over positions fails in both
        # models, and results by samples or rows have no elements, and the shape of the original.
        "largest_extent": True,
    }.get(name, False)


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
            equal = name in EXTENT_FAULTS and is_equal(of, name)
            assert is_found(of, name) != equal, name


def test_a_branch_that_no_tried_extents_reach_is_not_provable() -> None:
    mutant = copied("height")
    constant("guard_moduli", lambda a: 0 * a + (1 << 40))(mutant)
    constant("guard_offsets", lambda a: 0 * a + (1 << 30))(mutant)
    proof = proofs(GUARD["height"], mutant)[-1]
    assert proof.verdict == "not provable"
    assert proof.reason == "the then_branch of y is chosen at none of the extents tried"


def test_the_sample_is_large() -> None:
    assert len(FAULTS) >= 140
