"""Extents at which models are evaluated, where the original leaves some open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx

from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.values import Shape

Shapes = Mapping[str, Shape]
Key = tuple[str, int] | str
"""An open dimension: its symbol, or the input and the axis of one without a symbol."""

LADDER = (24, 64, 16, 1, 128, 160, 224, 320, 640, 1024, 4096, 16384)
"""Extents that are tried where nothing is known of a model."""

COMMON = 48
"""A multiple of the usual factors of a fold."""

BATCH = 2
"""Extent of the first axis then."""


def open_dimensions(program: Program, fixed: Shapes) -> dict[Key, bool]:
    """Return the dimensions that a model leaves open, and whether each is the first of an input."""
    found: dict[Key, bool] = {}
    for value in program.inputs:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if value.name not in fixed and _extent(dim) is None:
                key = _key(value, axis)
                found[key] = found.get(key, True) and axis == 0
    return found


def first_tries(program: Program, fixed: Shapes, known: Shapes) -> Iterator[Shapes]:
    """Yield extents of all inputs at which the model may run.

    Args:
        program: the original.
        fixed: extents that the caller demands.
        known: extents at which it ran, if it did.
    """
    if known:
        yield {**known, **fixed}
    dims = open_dimensions(program, fixed)
    for size in LADDER if dims else (1,):
        yield _at(program, fixed, {key: BATCH if leads else size for key, leads in dims.items()})


def second_tries(program: Program, fixed: Shapes, first: Shapes) -> Iterator[Shapes]:
    """Yield other extents for the open dimensions: all of them changed, then some."""
    return _changed(program, fixed, first, 3, ((1, 1), (1, -1), (2, -1), (2, 0), (1, 0)))


def guarded_tries(program: Program, fixed: Shapes, first: Shapes) -> Iterator[Shapes]:
    """Yield other extents that the divisors of the first ones divide too, or more of them."""
    return _changed(program, fixed, first, COMMON // 2, ((1, COMMON), (2, 0), (8, 0)))


def _changed(
    program: Program, fixed: Shapes, first: Shapes, batch: int, steps: Sequence[tuple[int, int]]
) -> Iterator[Shapes]:
    """Yield extents of which the batch is another, and others are multiples and some more."""
    dims = open_dimensions(program, fixed)
    sizes = _sizes(program, first)
    batches = {key: batch + 2 * (sizes[key] == batch) for key, leads in dims.items() if leads}
    others = [key for key, leads in dims.items() if not leads]
    for factor, step in steps if others else ((1, 0),):
        changed = {key: factor * sizes[key] + step for key in others}
        if batches or (factor, step) != (1, 0):
            yield _at(program, fixed, {**sizes, **batches, **changed})


def _extent(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def _key(value: onnx.ValueInfoProto, axis: int) -> Key:
    return value.type.tensor_type.shape.dim[axis].dim_param or (value.name, axis)


def _sizes(program: Program, shapes: Shapes) -> dict[Key, int]:
    return {
        _key(value, axis): shapes[value.name][axis]
        for value in program.inputs
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if _extent(dim) is None and value.name in shapes
    }


def _at(program: Program, fixed: Shapes, sizes: Mapping[Key, int]) -> Shapes:
    """Extents of every input whose rank is known."""
    shapes: dict[str, Shape] = {}
    for value in program.inputs:
        dims = enumerate(value.type.tensor_type.shape.dim)
        if value.name in fixed:
            shapes[value.name] = tuple(fixed[value.name])
        elif value.type.tensor_type.HasField("shape"):
            extents = [
                sizes[dim.dim_param or (value.name, axis)]
                if _extent(dim) is None
                else dim.dim_value
                for axis, dim in dims
            ]
            shapes[value.name] = tuple(max(0, extent) for extent in extents)
    return shapes
