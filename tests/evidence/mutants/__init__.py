"""Folded models with a fault each.

A planter changes a folded model (`IN_MODELS`), folds another model instead of the original
(`geometry`), or breaks the folding code (`algebra`). What a planter has no place for is no mutant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import islice

import onnx

from tests.evidence.mutants import algebra
from tests.evidence.mutants.algebra import Planted
from tests.evidence.mutants.base import folded, original
from tests.evidence.mutants.bases import CONVS
from tests.evidence.mutants.convs import (
    attributes,
    borders,
    geometry,
    moves,
    structure,
    twins,
    weights,
)
from tests.evidence.mutants.convs.geometry import Change
from tests.evidence.mutants.convs.transposed import TRANSPOSED
from tests.evidence.mutants.folded import Fault, Folded
from tests.evidence.mutants.mutant import Mutant, content

BASES = CONVS | TRANSPOSED

IN_MODELS = (weights, attributes, moves, borders, structure, twins)


Planter = Callable[[str, str], Mutant | None]
"""(name of the fault, name of the base) -> the mutant, None where there is no place for it."""


def in_model(plant: Fault, fault: str, base: str) -> Mutant | None:
    planted = Folded(right_fold(base))
    return Mutant(base, fault, original(BASES[base]), planted.model) if plant(planted) else None


def of_another(change: Change, fault: str, base: str) -> Mutant | None:
    other = original(BASES[base])
    model = fold_if_possible(base, other) if change(other) else None
    return None if model is None else Mutant(base, fault, original(BASES[base]), model)


def in_code(planted: Planted, fault: str, base: str) -> Mutant | None:
    with planted():
        model = fold_if_possible(base, original(BASES[base]))
    return None if model is None else Mutant(base, fault, original(BASES[base]), model)


PLANTERS: dict[str, Planter] = {
    **{
        name: partial(in_model, fault)
        for family in IN_MODELS
        for name, fault in family.FAULTS.items()
    },
    **{name: partial(of_another, change) for name, change in geometry.CHANGES.items()},
    **{name: partial(in_code, planted) for name, planted in algebra.FAULTS.items()},
}


def mutants(fault: str, names: Sequence[str], count: int | None = None) -> Iterator[Mutant]:
    """Mutants of a fault; with a limit, other faults come in other bases first."""
    turn = list(PLANTERS).index(fault) % len(names)
    planted = (PLANTERS[fault](fault, base) for base in (*names[turn:], *names[:turn]))
    changed = (m for m in planted if m and content(m.model) != content(right_fold(m.base)))
    return islice(changed, count)


@cache
def right_fold(base: str) -> onnx.ModelProto:
    return folded(BASES[base])


def fold_if_possible(base: str, model: onnx.ModelProto) -> onnx.ModelProto | None:
    """None where the rules refuse the changed Conv, or broken code does not get that far."""
    try:
        return folded(BASES[base], model)
    except (AssertionError, ValueError, IndexError):
        return None
