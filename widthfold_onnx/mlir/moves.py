"""Emit moves, constants and tensors of an MLIR module at the current insertion point.

A Reshape is a tensor.expand_shape to extents that both sides can be merged from, and then a
tensor.collapse_shape. Transposes that meet are one, and none if they cancel: the moves of the NHWC
form begin and end as ONNX has it, so of a channels-last layer only its views are left.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from widthfold_onnx.algebra.packing import Reshape, Step, Transpose, after
from widthfold_onnx.arrays import Array
from widthfold_onnx.mlir import library as mlir
from widthfold_onnx.model.proto.dims import Dims

OPEN = 2**61 - 1
"""Stands for the one open extent, the number of samples: a prime merges with nothing by chance."""


def shape_of(value: Any) -> Dims:
    """Return the extents of a tensor; None where open."""
    kind = value.type
    return tuple(None if kind.is_dynamic_dim(i) else e for i, e in enumerate(kind.shape))


def inverted(shape: Dims, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the moves that undo some moves of a tensor of these extents."""
    back: list[Step] = []
    for step in steps:
        there = after(shape, [step])
        if isinstance(step, Reshape):
            back.append(Reshape(len(there), shape, (False,) * len(shape)))
        else:
            order = tuple(step.order.index(i) for i in range(len(shape)))
            back.append(Transpose(order, there))
        shape = there
    return tuple(reversed(back))


def moved(value: Any, steps: Sequence[Step]) -> Any:
    """Emit moves; of Transposes, and of Reshapes, that meet only one is left."""
    order, shape = tuple(range(value.type.rank)), shape_of(value)
    for step in steps:
        if isinstance(step, Transpose) and not _is_view(shape, step.order):
            if shape != tuple(shape_of(value)[i] for i in order):
                value = _reshaped(_transposed(value, order), shape)
                order = tuple(range(len(shape)))
            order = tuple(order[i] for i in step.order)
        shape = after(shape, [step])
    return _reshaped(_transposed(value, order), shape)


def _is_view(shape: Dims, order: Sequence[int]) -> bool:
    """Check whether a Transpose moves axes of extent 1 only, so that a Reshape does the same."""
    moving = [i for i in order if shape[i] != 1]
    return moving == sorted(moving)


def _transposed(value: Any, order: Sequence[int]) -> Any:
    shape = shape_of(value)
    there = tuple(shape[i] for i in order)
    if _is_view(shape, order):
        return _reshaped(value, there)
    result = empty(there, value.type.element_type, value)
    return mlir.linalg.transpose(value, outs=[result], permutation=list(order)).results[0]


def _reshaped(value: Any, shape: Dims) -> Any:
    """Regroup the axes of a tensor."""
    old, new = (_ends(extents) for extents in (shape_of(value), shape))
    fine = sorted((Counter(old) | Counter(new)).elements())
    pairs = zip([1, *fine], fine, strict=False)
    between = tuple(None if b // a == OPEN else b // a for a, b in pairs)
    element = value.type.element_type
    if len(fine) > len(old):
        kind, sizes = _type(between, element), [_samples(value)] if None in between else []
        groups = _groups(old, fine)
        value = mlir.tensor.expand_shape(kind, value, groups, sizes, kind.shape)
    if len(fine) > len(new):
        value = mlir.tensor.collapse_shape(_type(shape, element), value, _groups(new, fine))
    return value


def _ends(shape: Dims) -> list[int]:
    """Return the number of elements up to the end of each axis."""
    return list(accumulate((OPEN if e is None else e for e in shape), operator.mul))


def _groups(ends: list[int], fine: list[int]) -> list[list[int]]:
    """Return the fine axes of each axis; axes of extent 1 behind an axis belong to it."""
    first = [0, *(fine.index(end) + ends[:i].count(end) + 1 for i, end in enumerate(ends))]
    first[-1] = len(fine)
    return [list(range(a, b)) for a, b in pairwise(first)]


def padded(value: Any, pads: Mapping[int, tuple[int, int]]) -> Any:
    """Surround a tensor by zeros, as many as are given by axis."""
    shape, element = shape_of(value), value.type.element_type
    low, high = ([pads.get(i, (0, 0))[end] for i in range(len(shape))] for end in (0, 1))
    if not any(low + high):
        return value
    zero = mlir.arith.constant(element, mlir.ir.FloatAttr.get(element, 0.0))
    there = tuple(e and e + a + b for e, a, b in zip(shape, low, high, strict=True))
    op = mlir.tensor.PadOp(_type(there, element), value, [], [], low, high)
    block = op.regions[0].blocks.append(*[mlir.ir.IndexType.get()] * len(shape))
    with mlir.ir.InsertionPoint(block):
        mlir.tensor.yield_(zero)
    return op.result


def dense(numbers: Array) -> Any:
    """Make a constant tensor."""
    native = numbers.dtype.newbyteorder("=")  # the bindings refuse a dtype that names its order
    held = mlir.ir.DenseElementsAttr.get(numbers.astype(native, order="C"))
    return mlir.arith.constant(held.type, held)


def empty(shape: Dims, element: Any, like: Any) -> Any:
    """Make a tensor for results, with as many samples as another where their number is open."""
    return mlir.tensor.empty([_samples(like) if e is None else e for e in shape], element)


def _samples(value: Any) -> Any:
    """Return the open extent of a tensor."""
    index = mlir.ir.IndexType.get()
    axis = mlir.ir.IntegerAttr.get(index, shape_of(value).index(None))
    return mlir.tensor.dim(value, mlir.arith.constant(index, axis))


def _type(shape: Dims, element: Any) -> Any:
    dynamic = mlir.ir.ShapedType.get_dynamic_size()
    return mlir.ir.RankedTensorType.get([dynamic if e is None else e for e in shape], element)
