"""Proves that two models are the same function: evaluates both and compares the results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Literal

import numpy as np
import onnx
from threadpoolctl import threadpool_limits

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.evidence.proof.evaluate import Evaluation, EvaluationError
from widthfold_onnx.evidence.proof.field import KEY_BYTES, PRIMES, drawn_anew, unequal
from widthfold_onnx.evidence.proof.program import Branch, Correspondence, Program
from widthfold_onnx.evidence.proof.sizes import (
    Shapes,
    elements,
    first_tries,
    open_dimensions,
    reaching,
    second_tries,
    size_tests,
    tested_tries,
)
from widthfold_onnx.evidence.proof.undecided import undecided
from widthfold_onnx.evidence.proof.values import Elements, Known, Opaque, Shape, Value
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.results import Proof
from widthfold_onnx.text import printable

LEAST_BITS = 40
"""A proof may be wrong with a probability of at most 2^-LEAST_BITS."""

MOST_ROUNDS = 4
"""Rounds of draws; a bound that these do not bring about is not sought any further."""


@dataclass(frozen=True)
class SizeProof:
    """The result of a proof.

    Attributes:
        verdict: equal; different; or not provable: the numbers agree, but one model applies other
            operators, or has rounded their results.
        reason: the place of a difference, "" if they are equal.
        shapes: extents of the inputs.
        values: how many values that both models name were found equal.
        error_bits: the verdict `equal` is wrong with a probability of at most 2^-error_bits.
        functions: operators that were treated as unknown functions of all that they read.
        branches: branches of the new model that were computed.
        unseen: first outputs of Ifs whose choice is not decided, or whose new branch was computed
            at no extents.
        is_computed: whether the new model can be computed at these extents at all.
        is_opaque: whether nothing is decided because extents in the original do not follow from
            these: it may not run at them.
    """

    verdict: Literal["equal", "different", "not provable"]
    reason: str = ""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    values: int = 0
    error_bits: float = 0.0
    functions: frozenset[str] = frozenset()
    branches: frozenset[Branch] = frozenset()
    unseen: frozenset[str] = frozenset()
    is_computed: bool = True
    is_opaque: bool = False


VERDICTS = ("equal", "not provable", "different")


def proved(old: Program, new: Program, fixed: Sequence[Shapes], ran_at: Shapes) -> Proof:
    """Prove two models equal, or say where they differ, as a part of the report.

    Args:
        old: the original.
        new: the rewritten model.
        fixed: extents of inputs that the caller demands, one or more assignments.
        ran_at: extents at which the original ran, empty where it did not.
    """
    try:
        proofs = prove_at_sizes(old, new, fixed, ran_at)
    except UnverifiedError as error:
        return Proof(verdict="skipped", reason=str(error))
    worst = max(proofs, key=lambda proof: VERDICTS.index(proof.verdict))
    dims = (f"{printable(name)} {list(extents)}" for name, extents in worst.shapes.items())
    place = f"with {', '.join(dims)}" if worst.shapes else "without inputs"
    return Proof(
        verdict=worst.verdict,
        reason=worst.reason and f"{worst.reason}, {place}",
        values=min(proof.values for proof in proofs),
        error_bits=max(0, int(min(proof.error_bits for proof in proofs))),
        primes=list(PRIMES),
        functions=sorted({name for proof in proofs for name in proof.functions}),
        extents=[{name: list(dims) for name, dims in proof.shapes.items()} for proof in proofs],
        unseen=sorted({name for proof in proofs for name in proof.unseen}),
    )


def prove_at_sizes(
    old: Program, new: Program, sizes: Sequence[Shapes], ran_at: Shapes
) -> list[SizeProof]:
    """Compare two models at one set of extents, or at several where the original leaves some open.

    The first at which they are different is the last.

    Args:
        old: the original.
        new: the rewritten model.
        sizes: extents that the caller demands, one or more assignments.
        ran_at: extents at which the original ran, empty where it did not.

    Raises:
        UnverifiedError: no extents were found at which the original can be evaluated.
    """
    proofs: list[SizeProof] = []
    for shapes in sizes:
        proofs.append(_first(old, new, first_tries(old, shapes, ran_at)))
        if proofs[-1].verdict == "different":
            return proofs
    fixed = sizes[0]
    if proofs[-1].verdict != "different" and open_dimensions(old, fixed):
        with suppress(UnverifiedError):  # the original may take one size alone
            proofs.append(_first(old, new, second_tries(old, fixed, proofs[0].shapes)))
    # Guards must be right at all extents, also if the caller planned with some. Another tool may
    # have stated those extents, so that the new model fails with an error at others.
    more = _reaching(old, new, proofs) if open_dimensions(old, {}) else ()
    for shapes in chain(tested_tries(old, new, proofs[0].shapes), more):
        if proofs[-1].verdict == "different":
            return proofs
        with suppress(UnverifiedError):
            proof = prove(old, new, shapes)
            if _is_of_empty_tensors(old, new, proof):
                continue
            is_planned = all(shapes.get(name) == tuple(fixed[name]) for name in fixed)
            if is_planned or (proof.is_computed and not proof.is_opaque):
                proofs.append(proof)
    if proofs[-1].verdict == "different" or not open_dimensions(old, {}):
        return proofs
    return [
        *proofs,
        *(_of_unseen(*branch, proofs[0].shapes) for branch in _unseen(old, new, proofs)),
    ]


def _is_of_empty_tensors(old: Program, new: Program, proof: SizeProof) -> bool:
    """Check whether models differ as an input is empty, whatever the guards choose.

    Only guards test for that: folds that need none may fail there (docs/folds.md).
    """
    if proof.verdict != "different" or all(map(all, proof.shapes.values())):
        return False
    guards = frozenset(name for test in size_tests(new) for name in test.choosers)
    return prove(old, replace(new, forced=guards), proof.shapes).verdict == "different"


def _reaching(old: Program, new: Program, proofs: list[SizeProof]) -> Iterator[Shapes]:
    """Yield extents that may reach branches of the new model that were computed at none so far.

    An else branch that every condition passes by, as where the model runs at the sizes of a guard
    alone, is computed whatever the condition is; that proof is appended.
    """
    others = frozenset(
        name for name, branch in _unseen(old, new, proofs) if branch == "else_branch"
    )
    smallest = min(proofs, key=lambda proof: elements(proof.shapes) or math.inf).shapes
    if others:
        with suppress(UnverifiedError):
            forced = prove(old, replace(new, forced=others), smallest)
            proofs += [forced] if forced.verdict == "equal" else []
    yield from reaching(old, new, smallest, lambda: {name for name, _ in _unseen(old, new, proofs)})


def _of_unseen(name: str, branch: str, shapes: Shapes) -> SizeProof:
    """Say that a branch was computed at no extents."""
    reason = f"the {branch} of {printable(name)} is chosen at none of the extents tried"
    return SizeProof("not provable", reason, shapes, unseen=frozenset([name]))


def _unseen(old: Program, new: Program, proofs: Sequence[SizeProof]) -> list[Branch]:
    """Return the new branches that were computed at no extents, of Ifs that were reached."""
    computed = {branch for proof in proofs for branch in proof.branches}
    nodes, before = new.scope.nodes, old.branches
    fixed = {n.output[0] for n in nodes if n.op_type == "If" and n.input[0] in new.constant}
    open_ifs = {name for name, _ in computed} - fixed
    return [
        place
        for place, bodies in new.branches.items()
        if place[0] in open_ifs and place not in computed and not bodies <= before.get(place, set())
    ]


def _first(old: Program, new: Program, tries: Iterator[Shapes]) -> SizeProof:
    """Compare at the first extents at which the original can be evaluated."""
    failure: UnverifiedError | None = None
    for shapes in tries:
        try:
            return prove(old, new, shapes)
        except UnverifiedError as error:
            failure = failure or error
    raise failure or UnverifiedError("no other extents are known")


def prove(old: Program, new: Program, shapes: Shapes) -> SizeProof:
    """Evaluate both models on the same random elements and compare the results.

    Changed nodes are evaluated behind variables first. A model may compute a kept value again, or
    give its name to another value. Such a model is evaluated whole, and its outputs are compared.

    Args:
        old: the original.
        new: the rewritten model.
        shapes: extents of the inputs of the original.

    Raises:
        UnverifiedError: the original cannot be evaluated on these.
    """
    proof_of = partial(SizeProof, shapes=dict(shapes))
    lost = sorted(shapes.keys() - {value.name for value in new.proto.graph.input})
    if lost:
        return proof_of("different", f"the new model has no input {printable(lost[0])}")
    tables = [ShapeTable(old.proto, dict(shapes))]
    try:
        tables.append(ShapeTable(new.proto, dict(shapes)))
    except UsageError:
        reason = "the new model declares other extents of its inputs"
        return proof_of("different", reason, is_computed=False)
    try:
        both = Correspondence(old, new)
        if defaults := both.changed_defaults():
            name = printable(defaults[0])
            reason = f"another value stands for {name} where a caller leaves it out"
            return proof_of("different", reason)
        # Draws are computed side by side already; threads of BLAS on top wait for each other.
        with threadpool_limits(1, "blas"):
            changed = _evaluated(both, tables, shapes, both.targets, both.variables(tables[0]))
            if changed.verdict == "different":
                # The whole model may hold values that cannot be evaluated.
                with suppress(UnverifiedError, MemoryError):
                    whole = _evaluated(both, tables, shapes, new.outputs, {})
                    return changed if whole.verdict == "different" else whole
            return changed
    except MemoryError as error:
        raise UnverifiedError("the proof needs more memory than there is") from error


def _evaluated(
    both: Correspondence,
    tables: Sequence[ShapeTable],
    shapes: Shapes,
    targets: Sequence[str],
    variables: Shapes,
) -> SizeProof:
    """Evaluate both models up to the targets and compare these, in rounds until the bound holds.

    Rounds are independent, so their bounds are multiplied.
    """
    proof = _drawn_once(both, tables, shapes, targets, variables)
    for number in range(1, MOST_ROUNDS):
        if proof.verdict != "equal" or not 0 < proof.error_bits < LEAST_BITS:
            break
        with drawn_anew(number):
            other = _drawn_once(both, tables, shapes, targets, variables)
        bits = proof.error_bits + other.error_bits
        proof = other if other.verdict != "equal" else replace(proof, error_bits=bits)
    if proof.verdict == "equal" and proof.error_bits < LEAST_BITS:
        doubt = "different models may agree in all draws with a probability of "
        return SizeProof("not provable", f"{doubt}2^{-proof.error_bits:.0f}", dict(shapes))
    return proof


def _drawn_once(
    both: Correspondence,
    tables: Sequence[ShapeTable],
    shapes: Shapes,
    targets: Sequence[str],
    variables: Shapes,
) -> SizeProof:
    """Compare the targets of both models once, with whatever error bound that has."""
    proof_of = partial(SizeProof, shapes=dict(shapes))
    missing = [name for name in targets if name not in both.old.names & both.new.names]
    if missing:
        return proof_of("different", f"only one model computes {printable(missing[0])}")
    agreed = both.agreed(tables[0])
    old, new = (
        partial(Evaluation, side, table, shapes, variables=variables, agreed=agreed)
        for side, table in zip((both.old, both.new), tables, strict=True)
    )
    try:
        before = old(targets=targets)
    except EvaluationError as error:
        raise UnverifiedError(f"the original cannot be evaluated: {error}") from error
    try:
        after = new(targets=targets)
    except EvaluationError as error:
        return proof_of("different", str(error), is_computed=False)
    differing = [name for name in targets if before.digests[name] != after.digests[name]]
    doubt, is_opaque = "", False
    for name in differing:
        kept_old, kept_new = (run(targets=[name], is_kept=True) for run in (old, new))
        first, second = kept_old.values[name], kept_new.values[name]
        by = f" ({describe_node(both.new.writer(name))})" if name in both.new.scope.writers else ""
        where = f"{printable(name)}{by}: {_difference(first, second)}"
        why = undecided(name, kept_old, kept_new, {**shapes, **variables}, tables[0])
        if not why:
            return proof_of("different", where)
        doubt = doubt or f"{where}; {why}"
        is_opaque = is_opaque or isinstance(first, Opaque)
    if doubt:
        chosen = frozenset(after.undecided - before.undecided if is_opaque else ())
        return proof_of("not provable", doubt, is_opaque=is_opaque, unseen=chosen)
    return proof_of(
        "equal",
        values=len(both.shared) + len(targets),
        error_bits=_error_bits(before, after),
        functions=frozenset(before.unknown | after.unknown),
        branches=frozenset(after.branches),
    )


def _error_bits(before: Evaluation, after: Evaluation) -> float:
    """Bound how likely it is that a difference was missed, see docs/verification.md.

    Two polynomials that differ agree with a probability of at most degree / prime in each draw. A
    function of them returns the same then; so every pair of elements counts.
    """
    degree, elements = max(before.degree, after.degree), before.size + after.size
    by_chance = math.prod(degree / prime for prime in PRIMES) + 2.0 ** (-8 * KEY_BYTES)
    return -math.log2(by_chance * (1 + elements**2 / 2))


def _difference(old: Value, new: Value) -> str:
    """Say how two values differ, with the first element."""
    if not isinstance(old, Known | Elements) or not isinstance(new, Known | Elements):
        return "it is computed otherwise"
    if old.shape != new.shape:
        return f"extents {list(new.shape)} instead of {list(old.shape)}"
    wrong = unequal(old.draws, new.draws)
    places = np.argwhere(wrong)
    if not len(places):
        names = [onnx.TensorProto.DataType.Name(value.kind) for value in (new, old)]
        return f"elements of type {names[0]} instead of {names[1]}"
    return f"{len(places)} of {wrong.size} elements differ, the first at {places[0].tolist()}"
