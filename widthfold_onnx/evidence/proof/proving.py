"""Prove that two models are the same function: evaluate both and compare the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, product
from typing import Literal

import numpy as np
import onnx

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.evidence.proof.bounds import size_bounds
from widthfold_onnx.evidence.proof.doubt import doubt_of
from widthfold_onnx.evidence.proof.evaluation import Evaluation
from widthfold_onnx.evidence.proof.field import (
    KEY_BYTES,
    Draw,
    drawing,
    primes,
    side_by_side,
    unequal,
)
from widthfold_onnx.evidence.proof.operators import BROADCAST_OPERATORS
from widthfold_onnx.evidence.proof.program import Branch, Correspondence, Program
from widthfold_onnx.evidence.proof.rounding import Rounded, rounded_constants
from widthfold_onnx.evidence.proof.sizes import (
    beyond_tries,
    branch_tries,
    dimensions_of,
    distinct_tries,
    first_tries,
    input_elements,
    second_tries,
    size_tests,
    tested_tries,
)
from widthfold_onnx.evidence.proof.values import (
    Elements,
    Extents,
    KnownValue,
    OpaqueValue,
    Shape,
    Tensor,
    UnevaluableError,
    Value,
    broadcast_shape,
)
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.results import Proof, Unproved
from widthfold_onnx.text import printable

MIN_BITS = 40
"""A proof may be wrong with a probability of at most 2^-MIN_BITS."""

MAX_DRAW_ROUNDS = 4
"""Most rounds of draws; if the bound is above 2^-MIN_BITS then, nothing is proved."""


MAX_ROUNDED_TRIES = 8
"""Most choices of one formula per constant that are tried, where several fit a constant."""


@dataclass(frozen=True)
class SizeProof:
    """The result of the proof at one set of extents.

    Attributes:
        verdict: equal; different; or not provable: the numbers agree, but one model applies other
            operators, or has rounded their results.
        reason: which value differs and how, "" if none does.
        shapes: extents of the inputs.
        values: how many values that both models name were found equal.
        error_bits: the verdict `equal` is wrong with a probability of at most 2^-error_bits.
        primes: of the draws.
        functions: operators that were treated as unknown functions of all that they read.
        branches: branches of the new model that were computed.
        unseen: Ifs, by their first output, whose choice is not decided, or with a new branch that
            was computed at no extents.
        unproved: the values that are not provable.
        is_computed: True if the new model can be computed at these extents at all.
        is_opaque: True if the extents of a value of the original do not follow from those of the
            inputs, so that nothing is decided; it may not run at them.
        is_whole: True if the outputs were compared, as a value before them differs.
    """

    verdict: Literal["equal", "different", "not provable"]
    reason: str = ""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    values: int = 0
    error_bits: float = 0.0
    primes: tuple[int, ...] = ()
    functions: frozenset[str] = frozenset()
    branches: frozenset[Branch] = frozenset()
    unseen: frozenset[str] = frozenset()
    unproved: Sequence[Unproved] = ()
    is_computed: bool = True
    is_opaque: bool = False
    is_whole: bool = False


BROADCAST_OPSET = 7
"""Operator set since which operands are broadcast as in numpy."""

VERDICTS = ("equal", "not provable", "different")
"""The worst comes last."""


def proof_report(
    old: Program, new: Program, sizes: Sequence[Extents], run_shapes: Extents
) -> Proof:
    """Prove two models equal, or say where they differ, as a part of the report.

    Args:
        old: the original.
        new: the rewritten model.
        sizes: extents of inputs that the caller demands, one or more assignments.
        run_shapes: extents at which the original ran, empty where it did not.
    """
    try:
        proofs = prove_at_sizes(old, new, sizes, run_shapes)
        rounded = 0
        if not _are_equal(proofs):
            proofs = _expanded_proofs(old, new, sizes, run_shapes) or proofs
        if not _are_equal(proofs):
            proofs, rounded = _rounded_proofs(old, new, sizes, run_shapes) or (proofs, 0)
    except UnverifiedError as error:
        return Proof(verdict="skipped", reason=str(error))
    worst = max(proofs, key=lambda proof: VERDICTS.index(proof.verdict))
    dims = (f"{printable(name)} {list(extents)}" for name, extents in worst.shapes.items())
    at_extents = f"with {', '.join(dims)}" if worst.shapes else "without inputs"
    return Proof(
        verdict=worst.verdict,
        reason=worst.reason and f"{worst.reason}, {at_extents}",
        values=min(proof.values for proof in proofs),
        rounded=rounded,
        error_bits=max(0, int(min(proof.error_bits for proof in proofs))),
        primes=list(dict.fromkeys(n for proof in proofs for n in proof.primes)),
        functions=sorted({name for proof in proofs for name in proof.functions}),
        extents=[{name: list(dims) for name, dims in proof.shapes.items()} for proof in proofs],
        unseen=sorted({name for proof in proofs for name in proof.unseen}),
        unproved=list({item.values[0]: item for p in proofs for item in p.unproved}.values()),
    )


def _expanded_proofs(
    old: Program, new: Program, sizes: Sequence[Extents], run_shapes: Extents
) -> list[SizeProof]:
    """Prove two models with `Program.expanded` operators; [] unless they are equal then."""
    first, other = old.expanded(), new.expanded()
    if first is None or other is None:
        return []
    try:
        proofs = prove_at_sizes(first, other, sizes, run_shapes)
    except UnverifiedError:
        return []
    return proofs if _are_equal(proofs) else []


def _rounded_proofs(
    old: Program, new: Program, sizes: Sequence[Extents], run_shapes: Extents
) -> tuple[list[SizeProof], int] | None:
    """Prove two models with exact results in place of the constants that are their rounding.

    Returns:
        The proofs, and how many constants were rounded; None unless the models are equal then.
    """
    found = rounded_constants(old, new), rounded_constants(new, old)
    if not any(found) and not old.computes_constants and not new.computes_constants:
        return None
    for of_new, of_old in _choices(*found):
        first, other = (
            replace(side, exact={name: item.tensor for name, item in choice.items()}, is_exact=True)
            for side, choice in ((old, of_old), (new, of_new))
        )
        try:
            proofs = prove_at_sizes(first, other, sizes, run_shapes)
        except UnverifiedError:
            continue
        if _are_equal(proofs):
            choice = of_new | of_old
            return proofs, sum(not item.is_exact() for item in choice.values())
    return None


def _choices(
    of_new: Mapping[str, Sequence[Rounded]], of_old: Mapping[str, Sequence[Rounded]]
) -> Iterator[tuple[dict[str, Rounded], dict[str, Rounded]]]:
    """Yield formulas, one per constant: for no constant, for those of one model, and of both.

    One model alone counts, too: of two constants that are reciprocals of each other, only one was
    computed from the other.
    """
    nothing: dict[str, Sequence[Rounded]] = {}
    pairs = [(nothing, nothing), (of_new, of_old)]
    if of_new and of_old:
        pairs[1:1] = [(of_new, nothing), (nothing, of_old)]
    for first, other in pairs if of_new or of_old else pairs[:1]:
        count, items = len(first), (*first.values(), *other.values())
        for choice in islice(product(*items), MAX_ROUNDED_TRIES):
            yield (
                dict(zip(first, choice[:count], strict=True)),
                dict(zip(other, choice[count:], strict=True)),
            )


def _are_equal(proofs: Sequence[SizeProof]) -> bool:
    return all(proof.verdict == "equal" for proof in proofs)


def prove_at_sizes(
    old: Program, new: Program, sizes: Sequence[Extents], run_shapes: Extents
) -> list[SizeProof]:
    """Compare two models at one set of extents, or at several where the original leaves some open.

    The list ends with the first difference.

    Args:
        old: the original.
        new: the rewritten model.
        sizes: extents that the caller demands, one or more assignments.
        run_shapes: extents at which the original ran, empty where it did not.

    Raises:
        UnverifiedError: no extents were found at which the original can be evaluated.
    """
    proofs: list[SizeProof] = []
    for proof in _proofs(Correspondence(old, new), sizes, run_shapes, proofs):
        proofs.append(proof)
        if proof.verdict == "different":
            break
    return proofs


def _proofs(
    models: Correspondence,
    sizes: Sequence[Extents],
    run_shapes: Extents,
    proofs: Sequence[SizeProof],
) -> Iterator[SizeProof]:
    """Yield the proofs of `prove_at_sizes`; earlier proofs decide which extents follow.

    Args:
        models: the models.
        sizes: extents that the caller demands, one or more assignments.
        run_shapes: extents at which the original ran, empty where it did not.
        proofs: the proofs so far; the caller appends each one that it gets.

    Raises:
        UnverifiedError: no extents were found at which the original can be evaluated.
    """
    old, new, demanded = models.old, models.new, sizes[0]
    for shapes in sizes:
        yield _first_proof(models, first_tries(old, shapes, run_shapes))
    if dimensions_of(old, demanded).open_dims:
        with suppress(UnverifiedError):  # the original may take one size alone
            yield _first_proof(models, second_tries(old, demanded, proofs[0].shapes))
        yield from _evaluable_proofs(models, demanded, proofs)
    # Guards must hold at all extents, even if the caller demands some. Or another tool has written
    # these into the new model, which then cannot be computed at others (`_counted_proof`).
    if not dimensions_of(old, {}).open_dims:
        return
    is_possible = partial(_is_possible, models)
    for shapes in filter(is_possible, tested_tries(old, new, proofs[0].shapes)):
        yield from _counted_proof(models, shapes, demanded)
    smallest = min(proofs, key=lambda proof: input_elements(proof.shapes) or math.inf).shapes
    yield from _else_proof(models, smallest, _unseen_branches(models, proofs))

    def unseen_ifs() -> set[str]:
        return {name for name, _ in _unseen_branches(models, proofs)}

    for shapes in branch_tries(old, new, smallest, unseen_ifs, is_possible):
        yield from _counted_proof(models, shapes, demanded)
    for name, branch in _unseen_branches(models, proofs):
        reason = f"the {branch} of {printable(name)} is chosen at none of the extents tried"
        unseen = frozenset([name])
        yield SizeProof("not provable", reason, proofs[0].shapes, unseen=unseen)


def _counted_proof(models: Correspondence, shapes: Extents, demanded: Extents) -> list[SizeProof]:
    """Compare at extents where the original may not run; [] if the result shows nothing."""
    try:
        proof = prove(models, shapes)
    except UnverifiedError:
        return []
    is_planned = all(shapes.get(name) == tuple(demanded[name]) for name in demanded)
    is_counted = is_planned or (proof.is_computed and not proof.is_opaque)
    return [proof] if is_counted and not _is_excused_by_empty_input(models, proof) else []


def _is_possible(models: Correspondence, shapes: Extents) -> bool:
    """Check that operands of the original can be broadcast, without evaluating anything.

    In a model that halves its data and doubles it again they cannot at most of the extents near the
    tests of guards.
    """
    old, table = models.old, models.old.shapes_at(shapes)
    if old.opsets.get("", 1) < BROADCAST_OPSET:
        return True
    for index in old.scope.ancestors(models.targets, models.variables(table)):
        node = old.scope.nodes[index]
        operands = [table.extents("", name) for name in node.input if name]
        known_extents = [extents for extents in operands if extents is not None]
        if is_default(node, *BROADCAST_OPERATORS) and len(known_extents) == len(operands):
            try:
                broadcast_shape(known_extents)
            except UnevaluableError:
                return False
    return True


def _evaluable_proofs(
    models: Correspondence, demanded: Extents, proofs: Sequence[SizeProof]
) -> Iterator[SizeProof]:
    """Compare at extents that the original may not take: `distinct_tries` and `beyond_tries`."""
    old, tried = models.old, [proof.shapes for proof in proofs]
    targets = old.outputs if any(proof.is_whole for proof in proofs) else models.targets
    bounds = size_bounds(old, targets) | size_bounds(models.new, targets)
    tries = chain(distinct_tries(old, demanded, tried), beyond_tries(old, demanded, tried, bounds))
    for shapes in tries:
        for proof in _counted_proof(models, shapes, {}):
            if proof.verdict == "equal" or _is_evaluable(old, shapes):
                tried.append(shapes)
                yield proof


def _is_evaluable(program: Program, shapes: Extents) -> bool:
    """Check whether a whole model can be evaluated: extents may differ that must be equal."""
    evaluation = Evaluation(program, program.shapes_at(shapes), shapes, {}, {})
    try:
        with drawing(Draw.of()), side_by_side():
            evaluation.run(program.outputs)
    except UnevaluableError:
        return False
    return True


def _else_proof(
    models: Correspondence, shapes: Extents, branches: Sequence[Branch]
) -> list[SizeProof]:
    """Compare with the else branches of `branches`, whatever their conditions; [] unless equal.

    A model that runs only at sizes that pass its guards takes no else branch by itself.
    """
    ifs = frozenset(name for name, branch in branches if branch == "else_branch")
    if not ifs:
        return []
    try:
        proof = prove(models, shapes, ifs)
    except UnverifiedError:
        return []
    return [proof] if proof.verdict == "equal" else []


def _is_excused_by_empty_input(models: Correspondence, proof: SizeProof) -> bool:
    """Check whether models differ only because an input is empty.

    A fold without a guard may fail on empty inputs (docs/folds.md); one with a guard may not. So a
    difference is excused if it is the same when every guard selects the original nodes.
    """
    if proof.verdict != "different" or not _is_empty(proof.shapes):
        return False
    guards = frozenset(name for test in size_tests(models.new) for name in test.choosers)
    try:
        return prove(models, proof.shapes, guards).reason == proof.reason
    except UnverifiedError:  # nothing excuses the difference then
        return False


def _is_empty(shapes: Extents) -> bool:
    """Check whether an input has no elements."""
    return not all(map(all, shapes.values()))


def _unseen_branches(models: Correspondence, proofs: Sequence[SizeProof]) -> list[Branch]:
    """Return the branches that were computed at no extents, of Ifs that were reached.

    A branch that the original holds, too, is left out, and so is an If with a constant condition.
    """
    new, old_branches = models.new, models.old.branches
    computed_branches = {branch for proof in proofs for branch in proof.branches}
    ifs = (node for node in new.scope.nodes if node.op_type == "If")
    constant_ifs = {node.output[0] for node in ifs if node.input[0] in new.constant_values}
    open_ifs = {name for name, _ in computed_branches} - constant_ifs
    return [
        branch
        for branch, bodies in new.branches.items()
        if branch[0] in open_ifs and branch not in computed_branches
        if not bodies <= old_branches.get(branch, set())
    ]


def _first_proof(models: Correspondence, tries: Iterator[Extents]) -> SizeProof:
    """Compare at the first extents at which the original can be evaluated."""
    failure: UnverifiedError | None = None
    for shapes in tries:
        try:
            return prove(models, shapes)
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
def prove(
    models: Correspondence, shapes: Extents, forced_ifs: frozenset[str] = frozenset()
) -> SizeProof:
    """Evaluate both models on the same random elements and compare the results.

    First only the changed nodes are evaluated, on variables in place of the values that they read.
    They may differ in equal models: a model may compute a value again, or give its name to another
    value. If they differ, both models are evaluated whole, and their outputs are compared.

    Args:
        models: the models.
        shapes: extents of the inputs of the original.
        forced_ifs: of the new model, see `Evaluation.forced_ifs`.

    Raises:
        UnverifiedError: the original cannot be evaluated at these extents.
    """
    absent_inputs = sorted(shapes.keys() - {value.name for value in models.new.proto.graph.input})
    if absent_inputs:
        reason = f"the new model has no input {printable(absent_inputs[0])}"
        return SizeProof("different", reason, shapes)
    if defaults := models.changed_defaults():
        name = printable(defaults[0])
        reason = f"another value stands for {name} where a caller leaves it out"
        return SizeProof("different", reason, shapes)
    table = models.old.shapes_at(shapes)
    try:
        comparison = _Comparison(models, (table, models.new.shapes_at(shapes)), shapes, forced_ifs)
    except UsageError:
        reason = "the new model declares other extents of its inputs"
        return SizeProof("different", reason, shapes, is_computed=False)
    with side_by_side():
        node_proof = comparison.proof(
            models.targets,
            models.variables(table),
            stops={*models.shared_values, *models.targets},
        )
        if node_proof.verdict == "different":
            # The whole model may hold values that cannot be evaluated.
            with suppress(UnverifiedError, MemoryError):
                model_proof = comparison.proof(models.new.outputs, {}, stops=())
                if model_proof.verdict != "different":
                    return replace(model_proof, is_whole=True)
        return node_proof


@dataclass(frozen=True)
class _Comparison:
    """Two models that are compared at one set of extents.

    Attributes:
        models: the models.
        tables: extents and element types of the values of both.
        shapes: extents of the inputs.
        forced_ifs: of the new model, see `Evaluation.forced_ifs`.
    """

    models: Correspondence
    tables: tuple[ShapeTable, ShapeTable]
    shapes: Extents
    forced_ifs: frozenset[str]

    def proof(self, targets: Sequence[str], variables: Extents, stops: Container[str]) -> SizeProof:
        """Compare the targets in both models, in as many rounds as the bound needs.

        Rounds of draws are independent, so their bounds are multiplied.

        Args:
            targets: names of the values to compare.
            variables: values that are drawn, with their extents.
            stops: values at which `Correspondence.values_behind` an unproved target ends.
        """
        proof = self._drawn_round(0, targets, variables, stops)
        for number in range(1, MAX_DRAW_ROUNDS):
            if proof.verdict != "equal" or not 0 < proof.error_bits < MIN_BITS:
                break
            next_proof = self._drawn_round(number, targets, variables, stops)
            bits = proof.error_bits + next_proof.error_bits
            numbers = proof.primes + next_proof.primes
            proof = replace(next_proof, primes=numbers)
            proof = replace(proof, error_bits=bits) if proof.verdict == "equal" else proof
        if proof.verdict == "equal" and proof.error_bits < MIN_BITS:
            doubt = "different models may agree in all draws with a probability of "
            reason = f"{doubt}2^{-proof.error_bits:.0f}"
            return SizeProof("not provable", reason, self.shapes, primes=proof.primes)
        return proof

    def _drawn_round(
        self, number: int, targets: Sequence[str], variables: Extents, stops: Container[str]
    ) -> SizeProof:
        """Compare the targets by the random numbers of one round."""
        draw = self.models.draw(number)
        with drawing(draw):
            return replace(self._round(targets, variables, stops), primes=draw.primes)

    def _round(
        self, targets: Sequence[str], variables: Extents, stops: Container[str]
    ) -> SizeProof:
        """Compare the targets once, inside `drawing`."""
        models, table = self.models, self.tables[0]
        size_proof = partial(SizeProof, shapes=self.shapes)
        names = models.old.names & models.new.names
        if lone_names := [name for name in targets if name not in names]:
            return size_proof("different", f"only one model computes {printable(lone_names[0])}")
        evaluation = partial(
            Evaluation,
            shapes=self.shapes,
            agreed_types=models.agreed_types(table),
            variables=variables,
        )
        old = partial(evaluation, models.old, table)
        new = partial(evaluation, models.new, self.tables[1], forced_ifs=self.forced_ifs)
        try:
            old_run = old().run(targets)
        except UnevaluableError as error:
            raise UnverifiedError(f"the original cannot be evaluated: {error}") from error
        try:
            new_run = new().run(targets)
        except UnevaluableError as error:
            # On empty inputs an allowed failure of one target may hide the failure of another.
            failures = _failures(new, targets) if _is_empty(self.shapes) else [str(error)]
            return size_proof("different", "; ".join(failures), is_computed=False)
        unproved: list[Unproved] = []
        is_opaque = False
        for name in targets:
            if old_run.digests[name] == new_run.digests[name]:
                continue
            kept_old, kept_new = (model(is_kept=True).run([name]) for model in (old, new))
            old_value, new_value = kept_old.values[name], kept_new.values[name]
            writer = models.new.scope.writer(name)
            node = f" ({describe_node(writer)})" if writer else ""
            statement = f"{printable(name)}{node}: {_difference(old_value, new_value)}"
            reason = doubt_of(name, kept_old, kept_new)
            if not reason:
                return size_proof("different", statement)
            values = models.values_behind(name, stops)
            unproved.append(Unproved(reason=f"{statement}; {reason}", values=values))
            is_opaque = is_opaque or isinstance(old_value, OpaqueValue)
        if unproved:
            ifs = frozenset(new_run.undecided_ifs - old_run.undecided_ifs if is_opaque else ())
            return size_proof(
                "not provable",
                unproved[0].reason,
                is_opaque=is_opaque,
                unseen=ifs,
                unproved=unproved,
            )
        return size_proof(
            "equal",
            values=len(models.shared_values) + len(targets),
            error_bits=_error_bits(old_run, new_run),
            functions=frozenset(old_run.unknown_operators | new_run.unknown_operators),
            branches=frozenset(new_run.branches),
        )


def _failures(new: Callable[[], Evaluation], targets: Sequence[str]) -> list[str]:
    """Evaluate each target of the new model by itself, and return the reasons of the failures."""
    failures: list[str] = []
    for name in targets:
        try:
            new().run([name])
        except UnevaluableError as error:
            failures.append(str(error))
    return list(dict.fromkeys(failures))


def _error_bits(old: Evaluation, new: Evaluation) -> float:
    """Bound how likely it is that a difference was missed, see docs/verification.md.

    Two polynomials that differ agree with a probability of at most degree / prime in each draw. If
    they do, functions of them agree, too, so every pair of elements counts.
    """
    degree, count = max(old.degree, new.degree), old.size + new.size
    probability = math.prod(degree / prime for prime in primes()) + 2.0 ** (-8 * KEY_BYTES)
    return -math.log2(probability * (1 + count**2 / 2))


def _unequal_elements(old: Tensor, new: Tensor) -> Array:
    """Return where two tensors of equal extents differ; strings and complex numbers, too."""
    try:
        return unequal(old.draws, new.draws)
    except UnevaluableError:  # one of them is no numbers
        if isinstance(old, KnownValue) and isinstance(new, KnownValue):
            return np.asarray(old.array != new.array)
        return np.ones(old.shape, bool)


def _difference(old: Value, new: Value) -> str:
    """Say how two values differ, with the first element."""
    if not isinstance(old, KnownValue | Elements) or not isinstance(new, KnownValue | Elements):
        return "it is computed otherwise"
    if old.shape != new.shape:
        return f"extents {list(new.shape)} instead of {list(old.shape)}"
    mask = _unequal_elements(old, new)
    indices = np.argwhere(mask)
    if not len(indices):
        names = [onnx.TensorProto.DataType.Name(value.element_type) for value in (new, old)]
        return f"elements of type {names[0]} instead of {names[1]}"
    return f"{len(indices)} of {mask.size} elements differ, the first at {indices[0].tolist()}"
