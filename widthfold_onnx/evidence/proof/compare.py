"""Are two models the same function? Both are evaluated, and what they return is compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.proof.correspondence import Correspondence
from widthfold_onnx.evidence.proof.evaluate import Evaluation, EvaluationError
from widthfold_onnx.evidence.proof.field import PRIMES, canonical
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.rounding import rounded
from widthfold_onnx.evidence.proof.sizes import (
    Shapes,
    first_tries,
    guarded_tries,
    open_dimensions,
    second_tries,
)
from widthfold_onnx.evidence.proof.values import Elements, Known, Opaque, Shape, Value
from widthfold_onnx.model.scope import describe_node
from widthfold_onnx.model.shapes import ShapeTable
from widthfold_onnx.text import printable


@dataclass(frozen=True)
class Proof:
    """What was found.

    Attributes:
        verdict: equal; different; or not provable, where one model rounds what the other does not
            compute.
        reason: where they differ, "" where they are equal.
        shapes: extents of the inputs.
        values: how many values that both models name were found equal.
        error_bits: the verdict `equal` is wrong with a probability of at most 2^-error_bits.
        functions: operators that were taken for unknown functions of all that they read.
        skipped: branches of the new model that are not meant for these extents.
    """

    verdict: Literal["equal", "different", "not provable"]
    reason: str = ""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    values: int = 0
    error_bits: float = math.inf
    functions: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()


def prove_at_sizes(old: Program, new: Program, fixed: Shapes, known: Shapes) -> list[Proof]:
    """Compare two models at one set of extents, or at several where the original leaves some open.

    Args:
        old: the original.
        new: the rewritten model.
        fixed: extents that the caller demands.
        known: extents at which the original ran, empty where it did not.

    Raises:
        UnverifiedError: no extents were found at which the original can be evaluated.
    """
    proofs = [_first(old, new, first_tries(old, fixed, known))]
    if open_dimensions(old, fixed):
        with suppress(UnverifiedError):  # the original may take one size alone
            proofs.append(_first(old, new, second_tries(old, fixed, proofs[0].shapes)))
            # A branch that these skip was evaluated once at most: a literal extent would not show.
            for shapes in guarded_tries(old, fixed, proofs[0].shapes) if proofs[1].skipped else ():
                with suppress(UnverifiedError):
                    proofs.append(prove(old, new, shapes))
                    if not proofs[-1].skipped:
                        break
    return proofs


def _first(old: Program, new: Program, tries: Iterator[Shapes]) -> Proof:
    """Compare at the first extents at which the original can be evaluated."""
    failure: UnverifiedError | None = None
    for shapes in tries:
        try:
            return prove(old, new, shapes)
        except UnverifiedError as error:
            failure = failure or error
    raise failure or UnverifiedError("no other extents are known")


def prove(old: Program, new: Program, shapes: Shapes) -> Proof:
    """Evaluate both models on the same random elements and compare what they return.

    What changed is evaluated behind variables first. A model that computes again what it also keeps
    is right, but only seen to be with less or nothing taken for a variable.

    Args:
        old: the original.
        new: the rewritten model.
        shapes: extents of the inputs of the original.

    Raises:
        UnverifiedError: the original cannot be evaluated on these.
    """
    tables = [ShapeTable(program.proto, dict(shapes)) for program in (old, new)]
    both = Correspondence(old, new)
    for names, said in (
        (both.missing(), "only one model has the value"),
        (both.changed_defaults(), "not the same value is taken where a caller leaves out"),
    ):
        if names:
            return Proof("different", f"{said} {printable(names[0])}", dict(shapes))
    for variables in (both.variables(tables[0]), {}):
        found = _evaluated(both, tables, shapes, variables)
        if found.verdict != "different":
            break
    return found


def _evaluated(
    both: Correspondence,
    tables: Sequence[ShapeTable],
    shapes: Shapes,
    variables: Shapes,
) -> Proof:
    """Evaluate both models up to the targets and compare these."""
    run = partial(
        Evaluation, shapes=shapes, variables=variables, is_open=_is_open(both.old.program)
    )
    try:
        before = run(both.old.program, tables[:1], targets=both.targets)
    except EvaluationError as error:
        raise UnverifiedError(f"the original cannot be evaluated: {error}") from error
    try:
        after = run(both.new.program, tables, targets=both.targets)
    except EvaluationError as error:
        return Proof("different", str(error), dict(shapes))
    differing = [name for name in both.targets if before.digests[name] != after.digests[name]]
    if not differing:
        return Proof(
            "equal",
            shapes=dict(shapes),
            values=len(both.shared) + len(both.targets),
            error_bits=_error_bits(before, after),
            functions=frozenset(before.functions) | frozenset(after.functions),
            skipped=frozenset(after.skipped),
        )
    rounds = ""
    for name in differing:
        one, other = (
            run(side.program, tables[: number + 1], targets=[name], is_kept=True).values[name]
            for number, side in enumerate((both.old, both.new))
        )
        node = both.new.writers.get(name)
        where = "a constant" if node is None else describe_node(both.new.program.scope.nodes[node])
        where = f"{printable(name)} ({where}): {_difference(one, other)}"
        merged = ""
        if _constants(one) > _constants(other):
            merged = rounded(both.old, both.new, name, {**shapes, **variables}, tables[0])
        if not merged:
            return Proof("different", where, dict(shapes))
        rounds = rounds or f"{where}; the new model has rounded what {merged} make of constants"
    return Proof("not provable", rounds, dict(shapes))


def _error_bits(before: Evaluation, after: Evaluation) -> float:
    """Bound how likely it is that a difference was missed, see docs/verification.md.

    Two polynomials that differ agree with a probability of at most degree / prime in each draw. A
    function of them returns the same then; so every pair of operands of functions counts, and one
    comparison more.
    """
    degree = max(before.degree, after.degree)
    reach = min(before.reach, before.size) + min(after.reach, after.size)
    return len(PRIMES) * math.log2(min(PRIMES) / degree) - math.log2(1 + reach**2 / 2)


def _constants(value: Value) -> int:
    return 0 if isinstance(value, Opaque) else value.constants


def _is_open(program: Program) -> bool:
    dims = [d for v in program.inputs for d in v.type.tensor_type.shape.dim]
    ranked = all(v.type.tensor_type.HasField("shape") for v in program.inputs)
    return not ranked or not all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims)


def _difference(one: Value, other: Value) -> str:
    """Say how two values differ, with the first element."""
    if not isinstance(one, Known | Elements) or not isinstance(other, Known | Elements):
        return "it is computed otherwise"
    if one.shape != other.shape:
        return f"extents {list(other.shape)} instead of {list(one.shape)}"
    wrong = np.zeros(one.shape, bool)
    for a, b, prime in zip(one.draws, other.draws, PRIMES, strict=True):
        wrong |= canonical(a, prime) != canonical(b, prime)
    places = np.argwhere(wrong)
    return f"{len(places)} of {wrong.size} elements differ, the first at {places[0].tolist()}"
