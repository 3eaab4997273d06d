"""Chooses extents at which models are evaluated, where the original leaves some open."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from widthfold_onnx.evidence.proof.program import Program, constant
from widthfold_onnx.evidence.proof.values import Shape
from widthfold_onnx.model.proto.dims import symbol_of
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.model.shapes.table import ShapeTable

DOUBLINGS = 4
"""How often multiples of tested moduli are doubled."""

PRIME = 5
"""No factor of a fold has it; the smallest extents that fit are multiples by it."""

LARGEST_TESTED = 1 << 16
"""Moduli and offsets above this are not tried: a guard writes a huge one for an exact extent."""

Shapes = Mapping[str, Shape]
Key = tuple[str, int] | str
"""An open dimension: its symbol, or the input and the axis of one without a symbol."""

OTHER_SIZES = ((1, 1), (1, -1), (2, -1), (2, 0), (1, 0))
"""Other extents than the first of an open dimension, as a multiple and what is added to it."""

LADDER = (24, 64, 16, 1, 128, 160, 224, 320, 640, 1024, 4096, 16384)
"""Extents that are tried where nothing is known of a model."""

BATCH = 2
"""Extent of the first axis then."""


def open_dimensions(program: Program, fixed: Shapes) -> dict[Key, bool]:
    """Return the dimensions that a model leaves open, and whether each is the first of an input."""
    found: dict[Key, bool] = {}
    for name, axis, key in _open(program):
        if name not in fixed:
            found[key] = found.get(key, True) and axis == 0
    return found


def _open(program: Program) -> Iterator[tuple[str, int, Key]]:
    """Yield the open dimensions of all inputs: the input, the axis, and what names it."""
    for value in program.inputs:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") or dim.dim_value < 0:
                yield value.name, axis, symbol_of(dim.dim_param) or (value.name, axis)


def first_tries(program: Program, fixed: Shapes, known: Shapes) -> Iterator[Shapes]:
    """Yield extents of all inputs at which the model may run.

    Args:
        program: the original.
        fixed: extents that the caller demands.
        known: extents at which it ran, if it did.
    """
    if known:
        # A run leaves out what has a default, which tells its extents.
        defaults = {tensor.name: tuple(tensor.dims) for tensor in program.proto.graph.initializer}
        left = {v.name: defaults[v.name] for v in program.inputs if v.name in defaults}
        yield {**left, **known, **fixed}
    dims = open_dimensions(program, fixed)
    for size in LADDER if dims else (1,):
        yield _at(program, fixed, {key: BATCH if leads else size for key, leads in dims.items()})
    if any(dims.values()):  # the first axis may be no batch
        for size in LADDER:
            yield _at(program, fixed, dict.fromkeys(dims, size))


def second_tries(program: Program, fixed: Shapes, first: Shapes) -> Iterator[Shapes]:
    """Yield other extents for the open dimensions: another batch, and `OTHER_SIZES` of the rest."""
    dims = open_dimensions(program, fixed)
    sizes = _sizes(program, first)
    batches = {key: 5 if sizes[key] == 3 else 3 for key, leads in dims.items() if leads}
    others = [key for key, leads in dims.items() if not leads]
    for factor, step in OTHER_SIZES if others else ((1, 0),):
        changed = {key: factor * sizes[key] + step for key in others}
        if batches or (factor, step) != (1, 0):
            yield _at(program, fixed, {**sizes, **batches, **changed})


@dataclass(frozen=True)
class SizeTest:
    """The residues that a guard computes: (extent - offset) mod modulus of some axes of a value.

    Attributes:
        value: a value of the main graph.
        terms: axis, offset and modulus of each.
    """

    value: str
    terms: tuple[tuple[int, int, int], ...]

    def outcome(self, dims: Sequence[int | None] | None) -> tuple[object, ...]:
        """Say for each axis whether a value of these extents passes, and at an odd multiple."""
        rests = []
        for axis, offset, modulus in self.terms:
            extent = dims[axis] if dims is not None and axis < len(dims) else None
            if extent is None:
                return ()
            times, rest = divmod(extent - offset, modulus)
            rests.append((not rest, bool(times % 2)))
        return tuple(rests)


def tested_tries(old: Program, new: Program, first: Shapes) -> Iterator[Shapes]:
    """Yield extents near the limits of the new model's tests of extents, if it has any.

    Where the condition of a guard holds but is too weak, the folded branch cannot be computed or is
    wrong. That shows at multiples of the modulus by a prime, which has no divisor in common with
    what a fold needs; at the offsets themselves; and where one dimension fits while the others do
    not. Multiples are doubled too, because a model may halve an extent before it is tested. Of
    those, extents at which all tests come out as at earlier ones are left out.
    """
    tests = size_tests(new)
    dims = open_dimensions(old, {})
    if not tests or not dims:
        return
    sizes = _sizes(old, first)
    terms = [term for test in tests for term in test.terms]
    moduli = {modulus for _, _, modulus in terms if modulus < LARGEST_TESTED}
    offsets = {offset for _, offset, _ in terms if 0 < offset < LARGEST_TESTED}
    unit = math.lcm(*moduli)
    fitting = dict.fromkeys(dims, unit * PRIME)
    yield _at(old, {}, {key: n + 1 for key, n in sizes.items()})
    for key in dims:
        yield _at(old, {}, {**sizes, key: 0})  # a remainder of 0, but no elements
        for fit in (unit * PRIME, *sorted(offsets)):  # one fits, and another one is broadcast
            yield _at(old, {}, {**dict.fromkeys(dims, fit), key: 1})
        if len(dims) > 1:
            yield _at(old, {}, {**{k: n + 1 for k, n in fitting.items()}, key: fitting[key]})
    tries = [
        {key: sizes[key] if dims[key] else n << doubled for key, n in fitting.items()}
        for doubled in range(DOUBLINGS)
    ]
    tries += [{**sizes, key: offset} for key in dims for offset in sorted(offsets)]
    seen = {_outcomes(old, tests, first)}
    for item in (fitting, *tries):
        shapes = _at(old, {}, item)
        found = _outcomes(old, tests, shapes)
        if found not in seen:
            seen.add(found)
            yield shapes


def _outcomes(old: Program, tests: Sequence[SizeTest], shapes: Shapes) -> tuple[object, ...]:
    table = ShapeTable(old.proto, dict(shapes))
    return tuple(test.outcome(table.get("", test.value)) for test in tests)


def size_tests(program: Program) -> list[SizeTest]:
    """Read the tests of extents in the main graph: Mod of Sub of Gather of Shape."""
    makers = {name: node for node in program.scope.nodes for name in node.output}
    found = []
    for node in program.scope.nodes:
        names, read = [node.output[0]], []
        for op_type in ("Mod", "Sub", "Gather"):
            made = makers.get(names[-1])
            if made is None or not is_default(made, op_type) or len(made.input) < 2:
                break
            source = makers.get(made.input[1])
            array = constant(source, program) if source else None
            if array is None or array.dtype.kind != "i":
                break
            read.append(tuple(int(n) for n in array.ravel()))
            names.append(made.input[0])
        shape = makers.get(names[-1])
        if len(read) < 3 or shape is None or not is_default(shape, "Shape"):
            continue
        moduli, offsets, axes = read
        if len(moduli) == len(offsets) == len(axes) and min(moduli) > 0 and min(axes) >= 0:
            terms = tuple(zip(axes, offsets, moduli, strict=True))
            found.append(SizeTest(shape.input[0], terms))
    return found


def _sizes(program: Program, shapes: Shapes) -> dict[Key, int]:
    opened = _open(program)
    return {key: shapes[name][axis] for name, axis, key in opened if name in shapes}


def _at(program: Program, fixed: Shapes, sizes: Mapping[Key, int]) -> Shapes:
    """Return the extents of every input whose rank is known."""
    opened = {(name, axis): sizes[key] for name, axis, key in _open(program) if key in sizes}
    shapes: dict[str, Shape] = {}
    for value in program.inputs:
        if value.name in fixed:
            shapes[value.name] = tuple(fixed[value.name])
        elif value.type.tensor_type.HasField("shape"):
            dims = enumerate(value.type.tensor_type.shape.dim)
            extents = (opened.get((value.name, i), dim.dim_value) for i, dim in dims)
            shapes[value.name] = tuple(max(0, extent) for extent in extents)
    return shapes
