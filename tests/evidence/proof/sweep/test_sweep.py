"""Models that differ in one attribute or number, and on the runtime, are never called equal."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.evidence.proof.sweep.pairs import Case, Tally, frozen, node_cases, own_cases


def swept(cases: Iterable[Case]) -> Tally:
    tally = Tally()
    for case in cases:
        for variant in filter(None, (case, frozen(case))):
            tally.add(variant)
    return tally


def test_operators_of_the_runtime() -> None:
    tally = swept(own_cases())
    assert (tally.wrong, tally.errors) == ([], [])
    assert len(tally.operators) > 20
    assert tally.unequal > 100


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_node_cases_of_onnx(part: int) -> None:
    tally = swept(list(node_cases())[part::16])
    assert (tally.wrong, tally.errors) == ([], [])
    assert tally.unequal > 300
