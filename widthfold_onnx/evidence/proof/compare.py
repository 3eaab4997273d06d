"""Proves that two models are the same function: evaluates both and compares the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Literal

import numpy as np
import onnx

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.evidence.proof.doubt import doubt_of
from widthfold_onnx.evidence.proof.evaluate import Evaluation
from widthfold_onnx.evidence.proof.field import (
    KEY_BYTES,
    PRIMES,
    blas_on_one_thread,
    drawn_anew,
    unequal,
)
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
from widthfold_onnx.evidence.proof.values import (
    Elements,
    Known,
    Opaque,
    Shape,
    UnevaluableError,
    Value,
)
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.results import Proof
from widthfold_onnx.text import printable

LEAST_BITS = 40
"""A proof may be wrong with a probability of at most 2^-LEAST_BITS."""

MOST_ROUNDS = 4
"""Most rounds of draws; if the bound is above 2^-LEAST_BITS then, nothing is proved."""


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

    The list ends with the first difference.

    Args:
        old: the original.
        new: the rewritten model.
        sizes: extents that the caller demands, one or more assignments.
        ran_at: extents at which the original ran, empty where it did not.

    Raises:
        UnverifiedError: no extents were found at which the original can be evaluated.
    """
    both = Correspondence(old, new)
    proofs: list[SizeProof] = []
    for shapes in sizes:
        proofs.append(_first(both, first_tries(old, shapes, ran_at)))
        if proofs[-1].verdict == "different":
            return proofs
    fixed = sizes[0]
    if open_dimensions(old, fixed):
        with suppress(UnverifiedError):  # the original may take one size alone
            proofs.append(_first(both, second_tries(old, fixed, proofs[0].shapes)))
    # Guards must be right at all extents, also if the caller planned with some. Another tool may
    # have stated those extents, so that the new model fails with an error at others.
    more = _reaching(both, proofs) if open_dimensions(old, {}) else ()
    for shapes in chain(tested_tries(old, new, proofs[0].shapes), more):
        if proofs[-1].verdict == "different":
            return proofs
        try:
            proof = prove(both, shapes)
        except UnverifiedError:
            continue
        is_planned = all(shapes.get(name) == tuple(fixed[name]) for name in fixed)
        counts = is_planned or (proof.is_computed and not proof.is_opaque)
        if counts and not _is_of_empty_tensors(both, proof):
            proofs.append(proof)
    if proofs[-1].verdict == "different" or not open_dimensions(old, {}):
        return proofs
    for name, branch in _unseen(both, proofs):
        reason = f"the {branch} of {printable(name)} is chosen at none of the extents tried"
        unseen = frozenset([name])
        proofs.append(SizeProof("not provable", reason, proofs[0].shapes, unseen=unseen))
    return proofs


def _is_of_empty_tensors(both: Correspondence, proof: SizeProof) -> bool:
    """Check whether models differ only because an input is empty: with every fold, guarded or not.

    Guards alone test for empty inputs: folds without a guard may fail there (docs/folds.md).
    """
    if proof.verdict != "different" or not _is_empty(proof.shapes):
        return False
    guards = frozenset(name for test in size_tests(both.new) for name in test.choosers)
    try:
        return prove(both, proof.shapes, guards).reason == proof.reason
    except UnverifiedError:  # nothing excuses the difference then
        return False


def _is_empty(shapes: Shapes) -> bool:
    """Check whether an input has no elements."""
    return not all(map(all, shapes.values()))


def _reaching(both: Correspondence, proofs: list[SizeProof]) -> Iterator[Shapes]:
    """Yield extents that may select a branch of the new model that no extents selected so far.

    An else branch that no condition selects is proved whatever the conditions are, and that proof
    is appended. Models that run only at the sizes of a guard need such a proof.
    """
    others = frozenset(name for name, branch in _unseen(both, proofs) if branch == "else_branch")
    smallest = min(proofs, key=lambda proof: elements(proof.shapes) or math.inf).shapes
    if others:
        with suppress(UnverifiedError):
            forced = prove(both, smallest, others)
            proofs += [forced] if forced.verdict == "equal" else []

    def unseen() -> set[str]:
        return {name for name, _ in _unseen(both, proofs)}

    yield from reaching(both.old, both.new, smallest, unseen)


def _unseen(both: Correspondence, proofs: Sequence[SizeProof]) -> list[Branch]:
    """Return the new branches that were computed at no extents, of Ifs that were reached."""
    new, before = both.new, both.old.branches
    computed = {branch for proof in proofs for branch in proof.branches}
    ifs = (node for node in new.scope.nodes if node.op_type == "If")
    fixed = {node.output[0] for node in ifs if node.input[0] in new.constant}
    open_ifs = {name for name, _ in computed} - fixed
    return [
        place
        for place, bodies in new.branches.items()
        if place[0] in open_ifs and place not in computed and not bodies <= before.get(place, set())
    ]


def _first(both: Correspondence, tries: Iterator[Shapes]) -> SizeProof:
    """Compare at the first extents at which the original can be evaluated."""
    failure: UnverifiedError | None = None
    for shapes in tries:
        try:
            return prove(both, shapes)
        except UnverifiedError as error:
            failure = failure or error
    raise failure or UnverifiedError("no other extents are known")


@contextmanager
def _memory_reported() -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise UnverifiedError("the proof needs more memory than there is") from error


@_memory_reported()
def prove(both: Correspondence, shapes: Shapes, forced: frozenset[str] = frozenset()) -> SizeProof:
    """Evaluate both models on the same random elements and compare the results.

    Changed nodes are evaluated behind variables first. A model may compute a kept value again, or
    give its name to another value. Such a model is evaluated whole, and its outputs are compared.

    Args:
        both: the models.
        shapes: extents of the inputs of the original.
        forced: of the new model, see `Evaluation.forced`.

    Raises:
        UnverifiedError: the original cannot be evaluated on these.
    """
    lost = sorted(shapes.keys() - {value.name for value in both.new.proto.graph.input})
    if lost:
        return SizeProof("different", f"the new model has no input {printable(lost[0])}", shapes)
    if defaults := both.changed_defaults():
        name = printable(defaults[0])
        reason = f"another value stands for {name} where a caller leaves it out"
        return SizeProof("different", reason, shapes)
    table = ShapeTable(both.old.proto, shapes)
    try:
        trial = _Trial(both, (table, ShapeTable(both.new.proto, shapes)), shapes, forced)
    except UsageError:
        reason = "the new model declares other extents of its inputs"
        return SizeProof("different", reason, shapes, is_computed=False)
    # Draws are computed side by side already; threads of BLAS on top wait for each other.
    with blas_on_one_thread():
        changed = trial.proof(both.targets, both.variables(table))
        if changed.verdict == "different":
            # The whole model may hold values that cannot be evaluated.
            with suppress(UnverifiedError, MemoryError):
                whole = trial.proof(both.new.outputs, {})
                return changed if whole.verdict == "different" else whole
        return changed


@dataclass(frozen=True)
class _Trial:
    """Two models that are compared at one set of extents.

    Attributes:
        both: the models.
        tables: extents and element types of the values of each.
        shapes: extents of the inputs.
        forced: of the new model, see `Evaluation.forced`.
    """

    both: Correspondence
    tables: tuple[ShapeTable, ShapeTable]
    shapes: Shapes
    forced: frozenset[str]

    def proof(self, targets: Sequence[str], variables: Shapes) -> SizeProof:
        """Evaluate both models up to the targets and compare these, until the bound holds.

        Rounds of draws are independent, so their bounds are multiplied.
        """
        proof = self._round(targets, variables)
        for number in range(1, MOST_ROUNDS):
            if proof.verdict != "equal" or not 0 < proof.error_bits < LEAST_BITS:
                break
            with drawn_anew(number):
                other = self._round(targets, variables)
            bits = proof.error_bits + other.error_bits
            proof = other if other.verdict != "equal" else replace(proof, error_bits=bits)
        if proof.verdict == "equal" and proof.error_bits < LEAST_BITS:
            doubt = "different models may agree in all draws with a probability of "
            return SizeProof("not provable", f"{doubt}2^{-proof.error_bits:.0f}", self.shapes)
        return proof

    def _round(self, targets: Sequence[str], variables: Shapes) -> SizeProof:
        """Compare the targets of both models once, with whatever error bound that has."""
        both, table = self.both, self.tables[0]
        proof_of = partial(SizeProof, shapes=self.shapes)
        missing = [name for name in targets if name not in both.old.names & both.new.names]
        if missing:
            return proof_of("different", f"only one model computes {printable(missing[0])}")
        agreed = both.agreed(table)
        side = partial(Evaluation, shapes=self.shapes, agreed=agreed, variables=variables)
        old = partial(side, both.old, table)
        new = partial(side, both.new, self.tables[1], forced=self.forced)
        try:
            before = old().run(targets)
        except UnevaluableError as error:
            raise UnverifiedError(f"the original cannot be evaluated: {error}") from error
        try:
            after = new().run(targets)
        except UnevaluableError as error:
            # On empty inputs an allowed failure may hide a failure behind it.
            each = _failures(new, targets) if _is_empty(self.shapes) else [str(error)]
            return proof_of("different", "; ".join(each), is_computed=False)
        doubt, is_opaque = "", False
        for name in targets:
            if before.digests[name] == after.digests[name]:
                continue
            kept_old, kept_new = (model(is_kept=True).run([name]) for model in (old, new))
            first, second = kept_old.values[name], kept_new.values[name]
            writer = both.new.scope.writer(name)
            by = f" ({describe_node(writer)})" if writer else ""
            where = f"{printable(name)}{by}: {_difference(first, second)}"
            why = doubt_of(name, kept_old, kept_new)
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


def _failures(new: Callable[[], Evaluation], targets: Sequence[str]) -> list[str]:
    """Return why targets of the new model cannot be evaluated, each by itself."""
    failures: list[str] = []
    for name in targets:
        try:
            new().run([name])
        except UnevaluableError as error:
            failures.append(str(error))
    return list(dict.fromkeys(failures))


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
