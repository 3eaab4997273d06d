"""Replace an operation by the folded one between its moves.

A Reshape becomes a tensor.expand_shape to axes so fine that those of both sides are products of
them, and then a tensor.collapse_shape. Neighbouring Transposes are merged, or cancel: forms of the
layout NHWC begin and end with Transposes from and to ONNX's order, which cancel those of a
channels-last operation, so that only Reshapes remain.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np

from widthfold_onnx import mlir
from widthfold_onnx.algebra.axis import UNIT, FoldedAxis
from widthfold_onnx.algebra.channels import Grouping, Regrouping, most_groups, regroup_weight
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.algebra.packing import Move, Reshape, Transpose, shape_after
from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.mlir.operations import (
    CONVOLUTIONS,
    LINALG_MATMUL,
    ORDER,
    LinalgOp,
    numbers_of,
    result_axes,
    shape_of,
    to_canonical,
)
from widthfold_onnx.rewrite.folded_node import folded_vector, folded_weight
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer

PURE = ("arith.constant", "tensor.empty", "tensor.pad", "linalg.broadcast", "linalg.fill")
"""Operations that are removed if nothing reads their results any more."""


@dataclass(frozen=True, eq=False)
class FoldedOperation:
    """The operation that takes the place of another.

    Attributes:
        kind: its name in `CONVOLUTIONS`, or `LINALG_MATMUL`.
        axes: letters of data and result; "" for a product.
        data: extents of its data, before padding.
        weight: its weight.
        result: extents of its result.
        channels: axis of the result -> extent, of the axes that make up the output channels.
        lifted: number of spatial axes of extent 1 that were added in front: grouped convolutions of
            linalg have two spatial axes.
        window: spatial axis of the data -> the folded axis of the kernel.
    """

    kind: str
    axes: tuple[str, str]
    data: Dims
    weight: Array
    result: Dims
    channels: Mapping[int, int]
    lifted: int
    window: Mapping[int, FoldedAxis]

    @property
    def attributes(self) -> dict[str, list[int]]:
        """Strides and dilations of a convolution."""
        if self.kind == LINALG_MATMUL:
            return {}
        axes = self.window.values()
        return {"strides": [a.stride for a in axes], "dilations": [a.dilation for a in axes]}


def replace_operation(linalg_op: LinalgOp, layer: Layer, form: Form, *, groups: bool) -> None:
    """Replace an operation by the folded one between its moves.

    Args:
        linalg_op: the operation.
        layer: the operation, read as a layer.
        form: the form to replace it by.
        groups: turn the blocks of a block-diagonal weight into groups.
    """
    op, block = linalg_op.op, linalg_op.op.block
    data_shape, result_shape = shape_of(linalg_op.data), shape_of(op.result)
    packing_moves = (*to_canonical(linalg_op.axes[0], data_shape), *form.packing_moves)
    # Forms by a factor never sum results of taps, so all of these are moves.
    form_moves = cast("tuple[Move, ...]", form.unpacking_moves)
    canonical = to_canonical(result_axes(linalg_op.axes[0]), result_shape)
    unpacking_moves = (*form_moves, *inverse_moves(result_shape, canonical))
    dims = shape_after(data_shape, packing_moves)
    operation = _folded_operation(linalg_op, layer, form.fold, dims, groups=groups)
    canonical = to_canonical(operation.axes[0], operation.data, operation.lifted)
    opening_moves = inverse_moves(operation.data, canonical)
    closing_moves = to_canonical(operation.axes[1], operation.result, operation.lifted)
    with mlir.ir.InsertionPoint(op), op.location:
        pads = {i: (axis.pad_begin, axis.pad_end) for i, axis in operation.window.items()}
        data = emit_pad(emit_moves(linalg_op.data, (*packing_moves, *opening_moves)), pads)
        weight = emit_constant(operation.weight)
        new = getattr(mlir.linalg, operation.kind)(
            *((data, weight) if linalg_op.right else (weight, data)),
            outs=[
                _init(linalg_op, layer, form.fold, operation, (*closing_moves, *unpacking_moves))
            ],
            **operation.attributes,
        )
        op.result.replace_all_uses_with(emit_moves(new, (*closing_moves, *unpacking_moves)))
    op.erase()
    for neighbour in reversed(list(block.operations)):  # readers stand behind their operands
        if neighbour.operation.name in PURE and not any(list(r.uses) for r in neighbour.results):
            neighbour.operation.erase()


def _folded_operation(
    linalg_op: LinalgOp, layer: Layer, fold: ConvFold, dims: Dims, *, groups: bool
) -> FoldedOperation:
    """Return the folded operation, for data with extents [N, C, *spatial] or those of a product."""
    weight = folded_weight(layer, layer.read_weight(), fold)
    if linalg_op.kind == LINALG_MATMUL:
        axis = 1 if linalg_op.right else 0
        result = tuple(weight.shape[i] if i == axis else e for i, e in enumerate(dims))
        channels = {axis: weight.shape[axis]}
        return FoldedOperation(LINALG_MATMUL, ("", ""), dims, weight, result, channels, 0, {})
    group, rank = fold.new_group, len(dims) - 2
    if groups:
        grouping = Grouping(weight.shape[1] * group, weight.shape[0], group)
        group = most_groups(weight, grouping)
        weight = regroup_weight(weight, Regrouping(grouping, replace(grouping, group=group)))
    outputs, inputs = weight.shape[0] // group, weight.shape[1]
    lifted_count = 2 - rank if group > 1 else 0
    is_depthwise = group > 1 and inputs == outputs == 1
    spatial = "hw"[-rank - lifted_count :]
    letters = "g" * (group > 1) + "c" * (not is_depthwise)
    data = f"n{spatial}{letters}" if linalg_op.channels_last else f"n{letters}{spatial}"
    kind, kernel_letters = next((k, w) for k, (x, w) in CONVOLUTIONS.items() if x == data)
    axes = dict(zip(spatial, (*[UNIT] * lifted_count, *fold.window), strict=True))
    counts = {"g": group, "c": inputs, "f": outputs}
    kernel = {**counts, **{x: axis.kernel for x, axis in axes.items()}}
    extents: dict[str, int | None] = {**counts, "n": dims[0]}
    extents |= dict(zip(spatial, (*[1] * lifted_count, *dims[2:]), strict=True))
    lengths = ((x, axis, extents[x]) for x, axis in axes.items())
    result_extents = extents | {
        x: None if n is None else axis.output_extent(n) for x, axis, n in lengths
    }
    in_order = [letter for letter in ORDER if letter in kernel_letters]
    weight = weight.reshape([kernel[letter] for letter in in_order])
    return FoldedOperation(
        kind=kind,
        axes=(data, result_axes(data)),
        data=tuple(extents[letter] for letter in data),
        weight=weight.transpose([in_order.index(letter) for letter in kernel_letters]),
        result=tuple(result_extents[letter] for letter in result_axes(data)),
        channels={i: counts[x] for i, x in enumerate(result_axes(data)) if x in "gf"},
        lifted=lifted_count,
        window={data.index(x): axis for x, axis in axes.items()},
    )


def _init(
    linalg_op: LinalgOp,
    layer: Layer,
    fold: ConvFold,
    operation: FoldedOperation,
    unpacking_moves: Sequence[Move],
) -> Any:
    """Emit the tensor to which the products are added (`outs` of the operation).

    A bias is folded as that of an ONNX layer, and a single number stays one. Any other tensor is
    packed by the inverse of the moves that unpack the result.
    """
    init, element = linalg_op.op.operands[2], linalg_op.op.result.type.element_type
    axes = [i for i, x in enumerate(result_axes(linalg_op.axes[0])) if x in "gf"]
    numbers = _per_channel(init, axes or list(operation.channels))
    if numbers is None:
        return emit_moves(init, inverse_moves(operation.result, unpacking_moves))
    result = emit_empty(operation.result, element, init)
    if numbers.ndim == 0:
        attribute = mlir.ir.FloatAttr.get(element, float(numbers))
        return mlir.linalg.fill(mlir.arith.constant(element, attribute), outs=[result])
    bias = folded_vector(layer, numbers.ravel(), fold).reshape(list(operation.channels.values()))
    broadcast_axes = [i for i in range(len(operation.result)) if i not in operation.channels]
    values = emit_constant(bias)
    return mlir.linalg.broadcast(values, outs=[result], dimensions=broadcast_axes).results[0]


def _per_channel(value: Any, axes: Sequence[int]) -> Array | None:
    """Return the numbers that a constant tensor repeats along all but some axes; None for others.

    If all numbers are equal, the result is a scalar.
    """
    source, numbers = value.owner, numbers_of(value)
    broadcast_axes = [i for i in range(value.type.rank) if i not in axes]
    is_copied = False
    if not isinstance(source, mlir.ir.Block):
        is_copied = source.name == "linalg.fill"
        if source.name == "linalg.broadcast":
            is_copied = list(source.attributes["dimensions"]) == broadcast_axes
    if is_copied:
        numbers = numbers_of(source.operands[0])
    if numbers is not None and len({number.tobytes() for number in numbers.flat}) == 1:
        return np.asarray(numbers.flat[0])
    return numbers if is_copied else None


OPEN = 2**61 - 1
"""Stands for the open number of samples: a prime, so that no product of other extents equals it."""


def inverse_moves(shape: Dims, moves: Sequence[Move]) -> tuple[Move, ...]:
    """Return the moves that undo the given moves of a tensor of these extents."""
    inverse: list[Move] = []
    for move in moves:
        result = shape_after(shape, [move])
        if isinstance(move, Reshape):
            inverse.append(Reshape(len(result), shape, (False,) * len(shape)))
        else:
            order = tuple(move.order.index(i) for i in range(len(shape)))
            inverse.append(Transpose(order, result))
        shape = result
    return tuple(reversed(inverse))


def emit_moves(value: Any, moves: Sequence[Move]) -> Any:
    """Emit moves; neighbouring Transposes become one, and so do neighbouring Reshapes."""
    order, shape = tuple(range(value.type.rank)), shape_of(value)
    for move in moves:
        if isinstance(move, Transpose) and not _is_view(shape, move.order):
            if shape != tuple(shape_of(value)[i] for i in order):
                value = _emit_reshape(_emit_transpose(value, order), shape)
                order = tuple(range(len(shape)))
            order = tuple(order[i] for i in move.order)
        shape = shape_after(shape, [move])
    return _emit_reshape(_emit_transpose(value, order), shape)


def _is_view(shape: Dims, order: Sequence[int]) -> bool:
    """Check whether a Transpose moves axes of extent 1 only, so that a Reshape does the same."""
    moving = [i for i in order if shape[i] != 1]
    return moving == sorted(moving)


def _emit_transpose(value: Any, order: Sequence[int]) -> Any:
    shape = shape_of(value)
    extents = tuple(shape[i] for i in order)
    if _is_view(shape, order):
        return _emit_reshape(value, extents)
    result = emit_empty(extents, value.type.element_type, value)
    return mlir.linalg.transpose(value, outs=[result], permutation=list(order)).results[0]


def _emit_reshape(value: Any, shape: Dims) -> Any:
    """Emit the Reshape of a tensor."""
    old_ends, new_ends = (_ends(extents) for extents in (shape_of(value), shape))
    fine_ends = sorted((Counter(old_ends) | Counter(new_ends)).elements())
    pairs = zip([1, *fine_ends], fine_ends, strict=False)
    extents = tuple(None if b // a == OPEN else b // a for a, b in pairs)
    element = value.type.element_type
    if len(fine_ends) > len(old_ends):
        kind, sizes = _type(extents, element), [_samples(value)] if None in extents else []
        groups = _groups(old_ends, fine_ends)
        value = mlir.tensor.expand_shape(kind, value, groups, sizes, kind.shape)
    if len(fine_ends) > len(new_ends):
        groups = _groups(new_ends, fine_ends)
        value = mlir.tensor.collapse_shape(_type(shape, element), value, groups)
    return value


def _ends(shape: Dims) -> list[int]:
    """Return the products of the extents of the first axes: 2x3x4 gives 2, 6, 24."""
    return list(accumulate((OPEN if e is None else e for e in shape), operator.mul))


def _groups(ends: list[int], fine: list[int]) -> list[list[int]]:
    """Return the fine axes that each axis consists of; those of extent 1 go to the axis before."""
    first = [0, *(fine.index(end) + ends[:i].count(end) + 1 for i, end in enumerate(ends))]
    first[-1] = len(fine)
    return [list(range(a, b)) for a, b in pairwise(first)]


def emit_pad(value: Any, pads: Mapping[int, tuple[int, int]]) -> Any:
    """Pad a tensor with zeros.

    Args:
        value: the tensor.
        pads: axis -> zeros before and behind it.
    """
    shape, element = shape_of(value), value.type.element_type
    low, high = ([pads.get(i, (0, 0))[end] for i in range(len(shape))] for end in (0, 1))
    if not any(low + high):
        return value
    zero = mlir.arith.constant(element, mlir.ir.FloatAttr.get(element, 0.0))
    extents = tuple(e and e + a + b for e, a, b in zip(shape, low, high, strict=True))
    op = mlir.tensor.PadOp(_type(extents, element), value, [], [], low, high)
    block = op.regions[0].blocks.append(*[mlir.ir.IndexType.get()] * len(shape))
    with mlir.ir.InsertionPoint(block):
        mlir.tensor.yield_(zero)
    return op.result


def emit_constant(numbers: Array) -> Any:
    """Emit a constant tensor."""
    native = numbers.dtype.newbyteorder("=")  # the bindings refuse a dtype that names its order
    attribute = mlir.ir.DenseElementsAttr.get(numbers.astype(native, order="C"))
    return mlir.arith.constant(attribute.type, attribute)


def emit_empty(shape: Dims, element: Any, template: Any) -> Any:
    """Emit a tensor for results; if its number of samples is open, it is that of the template."""
    return mlir.tensor.empty([_samples(template) if e is None else e for e in shape], element)


def _samples(value: Any) -> Any:
    """Return the open extent of a tensor."""
    index = mlir.ir.IndexType.get()
    axis = mlir.ir.IntegerAttr.get(index, shape_of(value).index(None))
    return mlir.tensor.dim(value, mlir.arith.constant(index, axis))


def _type(shape: Dims, element: Any) -> Any:
    dynamic = mlir.ir.ShapedType.get_dynamic_size()
    return mlir.ir.RankedTensorType.get([dynamic if e is None else e for e in shape], element)
