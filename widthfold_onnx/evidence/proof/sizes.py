"""Choose extents at which models are evaluated, where the original leaves some open."""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from widthfold_onnx.evidence.proof.program import Program, constant
from widthfold_onnx.evidence.proof.values import Extents
from widthfold_onnx.model.proto.dims import DimensionKey, Dimensions, apart, declared
from widthfold_onnx.model.proto.scope import NameScope
from widthfold_onnx.model.proto.walk import body_path, is_default
from widthfold_onnx.model.shapes.table import ShapeTable

DOUBLINGS = 4
"""How often multiples of tested moduli are doubled."""

PRIME = 5
"""A prime that divides few factors of folds; the first extents that fit are multiples of it."""

MAX_TESTED = 1 << 16
"""Moduli and offsets above this are not tried."""

MAX_PROOF_ELEMENTS = 1 << 17
"""Elements of all inputs; extents near tests that need more are tried only if they are no larger
than the first ones."""

NEIGHBOURS = 9
"""How often the distance from the first extent is doubled, from 1 on."""

MAX_ALIKE = 3
"""Most extents that are tried with the same results of all tests: the original may not run at
some."""

MAX_TIMES = 32
"""Largest multiple of the first extent."""

OTHER_EXTENTS = ((1, 1), (1, -1), (2, -1), (2, 0), (1, 0))
"""Multiple of the first extent of an open dimension, and the number that is added to it."""

GUESSED_EXTENTS = (24, 64, 16, 1, 128, 160, 224, 320, 640, 1024, 4096, 16384)
"""Extents that are tried where nothing is known of a model."""

BATCH = 2
"""Extent of the first axis where the other axes have an extent of `GUESSED_EXTENTS`."""

MAX_GUESSED = 1 << 20
"""Elements of all inputs at extents that nobody named: each takes forty bytes and more."""

BEYOND = (0, 2)
"""What is added to a bound: at an extent of bound + 2 the last index exceeds the bound."""

FAR = (16, 4)
"""Multiples of a bound for the try that is far beyond; the first one that fits counts."""

MAX_GROWTH = 4
"""Extents beyond bounds are tried if all values have at most so many times the elements that they
have at the first extents, or `MAX_GUESSED` elements."""


def dimensions_of(program: Program, demanded: Extents) -> Dimensions:
    """Return the dimensions of every input whose rank is known; weights fix some."""
    declared_dims = {
        value.name: declared(value)
        for value in program.inputs
        if value.name in demanded or value.type.tensor_type.HasField("shape")
    }
    return Dimensions.of(declared_dims, demanded).fixed(program.extents_by_weights)


def first_tries(program: Program, demanded: Extents, run_shapes: Extents) -> Iterator[Extents]:
    """Yield extents of all inputs at which the model may run.

    Args:
        program: the original.
        demanded: extents that the caller demands.
        run_shapes: extents at which it ran, if it did.
    """
    dims = dimensions_of(program, demanded)
    # A run leaves out an input that has a default, and the default tells its extents.
    defaults = {tensor.name: tuple(tensor.dims) for tensor in program.proto.graph.initializer}
    by_default = {v.name: defaults[v.name] for v in program.inputs if v.name in defaults}
    extents = {**dims.extents(by_default), **dims.extents(run_shapes)}
    if run_shapes and extents.keys() >= set(dims.open_dims):
        yield {**run_shapes, **dims.shapes(extents), **by_default, **demanded}
    guesses = [dict.fromkeys(dims.open_dims, extent) for extent in GUESSED_EXTENTS]
    if dims.only_batch_dims:  # tried first, though the first axis may be no batch
        batches = dict.fromkeys(dims.only_batch_dims, BATCH)
        guesses = [*({**extents, **batches} for extents in guesses), *guesses]
    for extents in guesses if dims.open_dims else [{}]:
        shapes = dims.shapes(extents)
        if not extents or input_elements(shapes) <= MAX_GUESSED:
            yield shapes


def second_tries(program: Program, demanded: Extents, first: Extents) -> Iterator[Extents]:
    """Yield other extents of the open dimensions: another batch, and `OTHER_EXTENTS` elsewhere."""
    dims = dimensions_of(program, demanded)
    extents = dims.extents(first)
    batches = {dim: 5 if extents[dim] == 3 else 3 for dim in dims.only_batch_dims}
    positions = dims.besides(batches)
    for factor, step in OTHER_EXTENTS if positions else ((1, 0),):
        lengths = {dim: max(0, factor * extents[dim] + step) for dim in positions}
        if batches or (factor, step) != (1, 0):
            yield dims.shapes({**batches, **lengths})


def distinct_tries(
    program: Program, demanded: Extents, tried: Sequence[Extents]
) -> Iterator[Extents]:
    """Yield extents that tell open dimensions apart, and then extents of 1.

    A model that takes the height for the width is right where both are equal. First all dimensions
    differ. As the original may need some to be equal, then only one differs from the first extents.

    Args:
        program: the original.
        demanded: extents that the caller demands.
        tried: extents at which the models were compared so far; the caller appends to it.
    """
    dims = dimensions_of(program, demanded)
    first = dims.extents(tried[0])
    single = [{**first, dim: number} for dim, n in first.items() for number in (2 * n, n + 1, 1)]
    for extents in (*apart(first), *single):
        seen = [dims.extents(shapes) for shapes in tried]
        shapes = dims.shapes(extents)
        is_new = any(
            extents[one] != extents[other] and all(item[one] == item[other] for item in seen)
            for one, other in combinations(extents, 2)
        )
        if is_new and input_elements(shapes) <= max(MAX_GUESSED, input_elements(tried[0])):
            yield shapes
    positions = dims.besides(dims.only_batch_dims)
    if any(first[dim] != 1 for dim in positions):
        yield dims.shapes({**first, **dict.fromkeys(positions, 1)})


def beyond_tries(
    program: Program, demanded: Extents, tried: Sequence[Extents], bounds: Collection[int]
) -> Iterator[Extents]:
    """Yield extents that reach bounds above the first extents, and extents just beyond them.

    Example: x[:, :100] is x unless x has more than 100 positions. Extents between the same bounds
    as earlier ones are left out. One last try is far beyond: a model may halve an extent before it
    cuts it.

    Args:
        program: the original.
        demanded: extents that the caller demands.
        tried: extents at which the models were compared so far; the caller appends to it.
        bounds: the bounds (`bounds.size_bounds`).
    """
    limits = sorted({bound + step for bound in bounds for step in BEYOND})
    for limit in limits:
        yield from _tries_from(limit, limits, program, demanded, tried)
    count = len(tried)
    for limit in sorted({(bound + 1) * times for bound in bounds for times in FAR}, reverse=True):
        yield from _tries_from(limit, [limit], program, demanded, tried)
        if len(tried) > count:
            return


def _tries_from(
    limit: int,
    limits: Sequence[int],
    program: Program,
    demanded: Extents,
    tried: Sequence[Extents],
) -> Iterator[Extents]:
    """Yield extents that reach a limit, unless earlier ones lie between the same limits.

    First all positions reach it together, then one dimension alone: exactly, and if the original
    does not run there, at the next multiple of the first extent. `MAX_GROWTH` bounds the elements.

    Args:
        limit: the limit.
        limits: all of them, in order.
        program: the original.
        demanded: extents that the caller demands.
        tried: extents at which the models were compared so far; the caller appends to it.
    """
    dims = dimensions_of(program, demanded)
    first = dims.extents(tried[0])
    if limit > MAX_TESTED or limit <= min(first.values()):
        return
    groups = (dims.besides(dims.only_batch_dims), *((dim,) for dim in first))
    for group, is_exact in product(groups, (True, False)):
        above = {d: limit if is_exact else _multiple(limit, first[d]) for d in group}
        extents = first | {dim: max(n, first[dim]) for dim, n in above.items()}
        intervals = {dim: {bisect(limits, n) for n in (limit, extents[dim])} for dim in group}
        seen = [dims.extents(shapes) for shapes in tried]
        is_new = any(
            limit > first[dim] and intervals[dim].isdisjoint(bisect(limits, n[dim]) for n in seen)
            for dim in group
        )
        shapes = dims.shapes(extents)
        if is_new and input_elements(shapes) <= MAX_GUESSED:
            least = MAX_GROWTH * _all_elements(program, tried[0])
            if _all_elements(program, shapes) <= max(MAX_GUESSED, least):
                yield shapes


def _multiple(least: int, unit: int) -> int:
    """Return the first multiple of `unit` that is at least `least`."""
    return -(-least // max(unit, 1)) * max(unit, 1)


def _all_elements(program: Program, shapes: Extents) -> int:
    """Return the number of elements of the values of the main graph whose extents are known."""
    table = program.shapes_at(shapes)
    extents = (table.extents("", name) for name in program.scope.writers)
    return sum(math.prod(dims) for dims in extents if dims is not None)


@dataclass(frozen=True)
class SizeTest:
    """The residues that a guard computes: (extent - offset) mod modulus of some axes of a value.

    Attributes:
        path: of the graph that holds the guard (`walk.body_path`).
        value: a value that the graph names.
        terms: axis, offset and modulus of each.
        choosers: first outputs of the Ifs of this graph that choose by it.
    """

    path: str
    value: str
    terms: tuple[tuple[int, int, int], ...]
    choosers: frozenset[str]

    def result(self, table: ShapeTable) -> tuple[object, ...]:
        """Return for each axis whether its extent passes, and whether its quotient is odd.

        The result is empty if an extent is not known.
        """
        dims, results = table.get(self.path, self.value), list[tuple[bool, bool]]()
        for axis, offset, modulus in self.terms:
            extent = dims[axis] if dims is not None and axis < len(dims) else None
            if extent is None:
                return ()
            times, remainder = divmod(extent - offset, modulus)
            results.append((not remainder, bool(times % 2)))
        return tuple(results)


def tested_tries(old: Program, new: Program, first: Extents) -> Iterator[Extents]:
    """Yield extents near the limits of the new model's tests of extents, if it has any.

    If the condition of a guard is too weak, the folded branch is wrong at some extents, or cannot
    be computed. Tried are:

    * multiples of all moduli by `PRIME`, which seldom divides what folds need, and their doubles,
      as a model may halve an extent before it is tested;
    * the offsets of the tests;
    * extents of which one dimension passes while the others do not.

    Multiples and offsets are left out if all tests have the same results as at earlier extents, and
    so is what has more than `MAX_PROOF_ELEMENTS` elements, unless the first extents have as many.
    """
    tests = size_tests(new)
    dims = dimensions_of(old, {})
    if not tests or not dims.open_dims:
        return
    terms = [term for test in tests for term in test.terms]
    moduli = {modulus for _, _, modulus in terms if modulus < MAX_TESTED}
    offsets = sorted(
        {
            offset + distance
            for _, offset, modulus in terms
            for distance in (0, modulus)  # where a wrong modulus shows
            if offset > 0 and offset + distance < MAX_TESTED
        }
    )
    unit = math.lcm(*moduli) * PRIME
    seen_results = {_results(old, tests, first)}
    for extents, is_always in _extents_near_tests(dims, dims.extents(first), unit, offsets):
        shapes = dims.shapes(extents)
        if input_elements(shapes) <= max(MAX_PROOF_ELEMENTS, input_elements(first)):
            results = () if is_always else _results(old, tests, shapes)
            if is_always or results not in seen_results:
                seen_results.add(results)
                yield shapes


def _extents_near_tests(
    dims: Dimensions, first: Mapping[DimensionKey, int], fit: int, offsets: Sequence[int]
) -> Iterator[tuple[dict[DimensionKey, int], bool]]:
    """Yield extents for `tested_tries`, and whether to try them with any result of the tests.

    Args:
        dims: the dimensions of the original.
        first: the first extents of the open dimensions.
        fit: an extent that passes every test.
        offsets: extents near the offsets of tests.
    """
    extents = {dim: min(extent, fit) for dim, extent in first.items()}
    yield {dim: extent + 1 for dim, extent in extents.items()}, True
    unfit_extents = dict.fromkeys(extents, fit + 1)
    yield unfit_extents, True  # a remainder of 1 is below other extents
    for dim in extents:
        yield {**extents, dim: 0}, True  # a remainder of 0, but no elements
        for extent in (fit, *offsets):  # one fits, and another one is broadcast
            yield {**dict.fromkeys(extents, extent), dim: 1}, True
        if len(extents) > 1:
            yield {**unfit_extents, dim: fit}, True
    positions = dims.besides(dims.only_batch_dims)
    tries = [{**extents, **dict.fromkeys(positions, fit << power)} for power in range(DOUBLINGS)]
    tries += [{**extents, dim: offset} for dim in extents for offset in offsets]
    for item in (dict.fromkeys(extents, fit), *tries):
        yield item, False


def branch_tries(
    old: Program,
    new: Program,
    first: Extents,
    unseen_ifs: Callable[[], Collection[str]],
    is_possible: Callable[[Extents], bool],
) -> Iterator[Extents]:
    """Yield extents, small ones first, that may reach the branches not computed so far.

    Left out are extents at which the tests of these Ifs have the same results as at `MAX_ALIKE`
    earlier ones. An If without a known test may choose by anything, so all are tried for it. Groups
    of open dimensions change together (`_groups`).

    Args:
        old: the original, whose extents tell how the tests come out.
        new: the model with the Ifs.
        first: the first extents.
        unseen_ifs: returns the first outputs of the Ifs with a branch that is not computed so far.
        is_possible: returns False where the original surely does not run.
    """
    tests = {name: [t for t in size_tests(new) if name in t.choosers] for name in unseen_ifs()}
    terms = [term for group in tests.values() for test in group for term in test.terms]
    largest = min(MAX_TIMES, max((modulus for _, _, modulus in terms), default=1))
    dims = dimensions_of(old, {})
    extents, most = dims.extents(first), max(MAX_PROOF_ELEMENTS, 2 * input_elements(first))
    tries = [
        dims.shapes({**extents, **{dim: max(0, times * extents[dim] + offset) for dim in group}})
        for group in _groups(extents, dims.besides(dims.only_batch_dims))
        for times, offset in (
            *((factor, 0) for factor in range(2, largest + 1)),
            *((1, sign << power) for power in range(NEIGHBOURS) for sign in (1, -1)),
        )
    ]
    times_seen = Counter[object]()
    for shapes in sorted(filter(input_elements, tries), key=input_elements):
        ifs = unseen_ifs()
        if not ifs or input_elements(shapes) > most:
            return
        table = old.shapes_at(shapes)
        results = {
            (name, tuple(test.result(table) for test in tests[name]) or str(shapes)) for name in ifs
        }
        if min(times_seen[result] for result in results) < MAX_ALIKE and is_possible(shapes):
            times_seen.update(results)
            yield shapes


def _groups(
    extents: Mapping[DimensionKey, int], positions: tuple[DimensionKey, ...]
) -> list[tuple[DimensionKey, ...]]:
    """Return the groups of open dimensions that change together.

    A model may fix a dimension that it declares open, and two inputs may give one dimension two
    names. So a group is one dimension alone; all dimensions of equal extent; all but the first
    dimension of each input; or all dimensions.
    """
    singles = [(dim,) for dim in extents]
    equals = [tuple(dim for dim in extents if extents[dim] == n) for n in extents.values()]
    groups = (*singles, *equals, positions, tuple(extents))
    return [dims for dims in dict.fromkeys(groups) if dims]


def input_elements(shapes: Extents) -> int:
    """Return the number of elements of all inputs."""
    return sum(math.prod(shape) for shape in shapes.values())


def _results(old: Program, tests: Sequence[SizeTest], shapes: Extents) -> tuple[object, ...]:
    table = old.shapes_at(shapes)
    return tuple(test.result(table) for test in tests)


def size_tests(program: Program) -> list[SizeTest]:
    """Read the tests of extents in a model: Mod of Sub of Gather of Shape."""
    return list(_size_tests(program, program.scope, ""))


def _size_tests(program: Program, scope: NameScope, path: str) -> Iterator[SizeTest]:
    """Read the tests in a graph and in the bodies of its nodes."""
    choosers: dict[int, set[str]] = {}
    # A test reads extents alone, so the nodes before a Shape take no part in the choice.
    extents = {node.output[0] for node in scope.nodes if is_default(node, "Shape")}
    for index, bodies in scope.inner.items():
        node = scope.nodes[index]
        for place, body in bodies:
            yield from _size_tests(program, body, body_path(path, node, place))
        if is_default(node, "If"):
            for position in scope.ancestors(node.input[:1], extents):
                choosers.setdefault(position, set()).add(node.output[0])
    for position, node in enumerate(scope.nodes):
        constants, name = [], node.output[0] if node.output else ""
        for op_type in ("Mod", "Sub", "Gather"):
            writer = scope.writer(name)
            if writer is None or not is_default(writer, op_type) or len(writer.input) < 2:
                break
            source = scope.writer(writer.input[1])
            array = constant(source, program) if source else None
            if array is None or array.dtype.kind != "i":
                break
            constants.append(tuple(int(n) for n in array.ravel()))
            name = writer.input[0]
        shape = scope.writer(name)
        if len(constants) < 3 or shape is None or not is_default(shape, "Shape"):
            continue
        moduli, offsets, axes = constants
        if len(moduli) == len(offsets) == len(axes) and min(moduli) > 0 and min(axes) >= 0:
            terms = tuple(zip(axes, offsets, moduli, strict=True))
            yield SizeTest(path, shape.input[0], terms, frozenset(choosers.get(position, ())))
