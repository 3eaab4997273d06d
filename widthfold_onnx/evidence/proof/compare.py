"""Proves that two models are the same function: evaluates both and compares the results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import onnx
from threadpoolctl import threadpool_limits

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.evidence.proof.correspondence import Correspondence, Side
from widthfold_onnx.evidence.proof.evaluate import Evaluation, EvaluationError
from widthfold_onnx.evidence.proof.field import KEY_BYTES, PRIMES, canonical
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.sizes import (
    Shapes,
    first_tries,
    open_dimensions,
    second_tries,
    tested_tries,
)
from widthfold_onnx.evidence.proof.undecided import undecided
from widthfold_onnx.evidence.proof.values import Elements, Known, Shape, Value
from widthfold_onnx.model.proto.domain import is_default
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.proto.walk import all_nodes
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.text import printable

LEAST_BITS = 40
"""A proof may be wrong with a probability of at most 2^-LEAST_BITS."""


@dataclass(frozen=True)
class SizeProof:
    """The result of a proof.

    Attributes:
        verdict: equal; different; or not provable, where one model applies other operators, or has
            rounded what they compute, and the numbers agree.
        reason: the place of a difference, "" if they are equal.
        shapes: extents of the inputs.
        values: how many values that both models name were found equal.
        error_bits: the verdict `equal` is wrong with a probability of at most 2^-error_bits.
        functions: operators that were treated as unknown functions of all that they read.
        branches: the computed branches of every If of the new model that was computed.
        is_computed: whether the new model can be computed at these extents at all.
    """

    verdict: Literal["equal", "different", "not provable"]
    reason: str = ""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    values: int = 0
    error_bits: float = 0.0
    functions: frozenset[str] = frozenset()
    branches: Mapping[str, frozenset[str]] = field(default_factory=dict)
    is_computed: bool = True


def prove_at_sizes(old: Program, new: Program, fixed: Shapes, known: Shapes) -> list[SizeProof]:
    """Compare two models at one set of extents, or at several where the original leaves some open.

    The first at which they are different is the last.

    Args:
        old: the original.
        new: the rewritten model.
        fixed: extents that the caller demands.
        known: extents at which the original ran, empty where it did not.

    Raises:
        UnverifiedError: no extents were found at which the original can be evaluated.
    """
    proofs = [_first(old, new, first_tries(old, fixed, known))]
    if proofs[-1].verdict != "different" and open_dimensions(old, fixed):
        with suppress(UnverifiedError):  # the original may take one size alone
            proofs.append(_first(old, new, second_tries(old, fixed, proofs[0].shapes)))
    # Guards must be right at all extents, also if the caller planned with some. Beside them there
    # may be folds that state those extents, and fail with an error at others.
    for shapes in tested_tries(old, new, proofs[0].shapes):
        if proofs[-1].verdict == "different":
            break
        with suppress(UnverifiedError):
            proof = prove(old, new, shapes)
            is_planned = all(shapes.get(name) == tuple(fixed[name]) for name in fixed)
            if proof.is_computed or is_planned:
                proofs.append(proof)
    if proofs[-1].verdict == "different":
        return proofs
    unseen = _unseen_branch(old, new, proofs) if open_dimensions(old, {}) else ""
    return [*proofs, SizeProof("not provable", unseen, proofs[0].shapes)] if unseen else proofs


def _unseen_branch(old: Program, new: Program, proofs: Sequence[SizeProof]) -> str:
    """Name an If of which one new branch was never computed; "" if there is none."""
    computed: dict[str, frozenset[str]] = {}
    for proof in proofs:
        for name, chosen in proof.branches.items():
            computed[name] = computed.get(name, frozenset()) | chosen
    constant = Side(new).constant
    fixed = {n.output[0] for n in new.scope.nodes if n.op_type == "If" and n.input[0] in constant}
    before, after = _branches(old), _branches(new)
    for name, chosen in computed.items():
        for branch in {"then_branch", "else_branch"} - chosen if name not in fixed else ():
            if after[name, branch] <= before.get((name, branch), set()):
                continue  # the original holds it as well
            return f"the {branch} of {printable(name)} is chosen at none of the extents tried"
    return ""


def _branches(program: Program) -> dict[tuple[str, str], set[bytes]]:
    """Return the branches of every If, by its first output and their name."""
    found: dict[tuple[str, str], set[bytes]] = {}
    for node in all_nodes(program.proto.graph.node):
        for attribute in node.attribute if is_default(node, "If") else ():
            body = bytes(attribute.g.SerializeToString(deterministic=True))
            found.setdefault((node.output[0], attribute.name), set()).add(body)
    return found


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
    """Evaluate both models on the same random elements and compare what they return.

    Changed nodes are evaluated behind variables first. A model that computes a kept value again,
    or that gives a name to another value, is proved only if the whole of it is evaluated and
    its outputs alone are compared.

    Args:
        old: the original.
        new: the rewritten model.
        shapes: extents of the inputs of the original.

    Raises:
        UnverifiedError: the original cannot be evaluated on these.
    """
    lost = sorted(shapes.keys() - {value.name for value in new.proto.graph.input})
    if lost:
        return SizeProof(
            "different", f"the new model has no input {printable(lost[0])}", dict(shapes)
        )
    tables = [ShapeTable(old.proto, dict(shapes))]
    try:
        tables.append(ShapeTable(new.proto, dict(shapes)))
    except UsageError:
        said = "the new model declares other extents of its inputs"
        return SizeProof("different", said, dict(shapes), is_computed=False)
    both = Correspondence(old, new)
    defaults = both.changed_defaults()
    if defaults:
        said = f"another value stands for {printable(defaults[0])} where a caller leaves it out"
        return SizeProof("different", said, dict(shapes))
    # Draws are computed side by side already; threads of BLAS on top of that wait for each other.
    with threadpool_limits(1, "blas"):
        found = _evaluated(both, tables, shapes, both.targets, both.variables(tables[0]))
        if found.verdict == "different":
            with suppress(UnverifiedError):  # a value not needed before cannot be evaluated
                whole = _evaluated(both, tables, shapes, both.outputs, {})
                return found if whole.verdict == "different" else whole
    return found


def _evaluated(
    both: Correspondence,
    tables: Sequence[ShapeTable],
    shapes: Shapes,
    targets: Sequence[str],
    variables: Shapes,
) -> SizeProof:
    """Evaluate both models up to the targets and compare these."""
    missing = [name for name in targets if not both.is_written(name)]
    if missing:
        return SizeProof(
            "different", f"only one model computes {printable(missing[0])}", dict(shapes)
        )
    agreed = both.agreed(tables[0])
    old, new = (
        partial(Evaluation, side.program, table, shapes, variables=variables, agreed=agreed)
        for side, table in zip((both.old, both.new), tables, strict=True)
    )
    try:
        before = old(targets=targets)
    except EvaluationError as error:
        raise UnverifiedError(f"the original cannot be evaluated: {error}") from error
    try:
        after = new(targets=targets)
    except EvaluationError as error:
        return SizeProof("different", str(error), dict(shapes), is_computed=False)
    differing = [name for name in targets if before.digests[name] != after.digests[name]]
    bits = _error_bits(before, after)
    if not differing and bits < LEAST_BITS:
        weak = f"different models may agree in all draws with a probability of 2^{-bits:.0f}"
        return SizeProof("not provable", weak, dict(shapes))
    if not differing:
        return SizeProof(
            "equal",
            shapes=dict(shapes),
            values=len(both.shared) + len(targets),
            error_bits=bits,
            functions=frozenset(before.unknown | after.unknown),
            branches={name: frozenset(chosen) for name, chosen in after.branches.items()},
        )
    doubt = ""
    for name in differing:
        one, other = (
            (side, run(targets=[name], is_kept=True))
            for side, run in ((both.old, old), (both.new, new))
        )
        by = f" ({describe_node(both.new.node(name))})" if name in both.new.writers else ""
        differs = _difference(one[1].values[name], other[1].values[name])
        where = f"{printable(name)}{by}: {differs}"
        why = undecided(name, one, other, {**shapes, **variables}, tables[0])
        if not why:
            return SizeProof("different", where, dict(shapes))
        doubt = doubt or f"{where}; {why}"
    return SizeProof("not provable", doubt, dict(shapes))


def _error_bits(before: Evaluation, after: Evaluation) -> float:
    """Bound how likely it is that a difference was missed, see docs/verification.md.

    Two polynomials that differ agree with a probability of at most degree / prime in each draw. A
    function of them returns the same then; so every pair of elements counts.
    """
    degree, elements = max(before.degree, after.degree), before.size + after.size
    by_chance = math.prod(degree / prime for prime in PRIMES) + 2.0 ** (-8 * KEY_BYTES)
    return -math.log2(by_chance * (1 + elements**2 / 2))


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
    if not len(places):
        names = [onnx.TensorProto.DataType.Name(value.kind) for value in (other, one)]
        return f"elements of type {names[0]} instead of {names[1]}"
    return f"{len(places)} of {wrong.size} elements differ, the first at {places[0].tolist()}"
