"""Add, multiply and move tensors of elements, and keep count of degrees and constants.

Pad has a definition of its own. onnx's reference implementation runs Reshape, Slice and other moves
on the elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.proof.field import (
    Draws,
    dot,
    function,
    inverse,
    primes,
    remainder,
    threads,
    widened,
)
from widthfold_onnx.evidence.proof.geometry import padded
from widthfold_onnx.evidence.proof.values import (
    Call,
    Elements,
    KnownValue,
    Tensor,
    UnevaluableError,
    Value,
    broadcast_shape,
    from_first,
)
from widthfold_onnx.model.proto.constant_folding import run_reference

_MIN_THREAD_ELEMENTS = 1 << 14
"""Elements below which starting a thread takes longer than computing."""


def for_each_prime(compute: Callable[..., Array], *operands: Tensor) -> Draws:
    """Call `compute` with the stored arrays and the prime, for every prime."""

    def computed(prime: int, arrays: Sequence[Array]) -> Array:
        return compute(*arrays, prime).astype(np.float32, copy=False)

    draw_sets = [*zip(*(value.draws for value in operands), strict=True)]
    pool = threads()
    if pool is None or max(math.prod(v.shape) for v in operands) < _MIN_THREAD_ELEMENTS:
        return tuple(map(computed, primes(), draw_sets))
    return tuple(pool.map(computed, primes(), draw_sets))


def polynomial(draws: Draws, *operands: Tensor, product: bool = False) -> Elements:
    """Return elements that are sums of others, or sums of products of them."""
    combine = sum if product else max
    return Elements(
        draws,
        degree=combine(value.degree for value in operands),
        constants=combine(value.constants for value in operands),
    )


def function_of(key: int, operands: Sequence[Tensor], *, draws: Draws | None = None) -> Elements:
    """Return a random function of operands.

    Args:
        key: names the function.
        operands: the operands; they are broadcast.
        draws: the results of the function, if they were computed already.
    """
    if draws is None:
        shape = broadcast_shape([value.shape for value in operands])
        draws = function(key, [value.draws for value in operands], shape)
    return Elements(draws, constants=max((value.constants for value in operands), default=0))


def _of_pairs(compute: Callable[..., Array], first: Tensor, second: Tensor) -> Draws:
    broadcast_shape([first.shape, second.shape])
    return for_each_prime(lambda a, b, p: remainder(compute(a, b), p), first, second)


def plus(first: Tensor, second: Tensor) -> Elements:
    """Add two tensors, which are broadcast. Sums of two elements need no more than float32."""
    return polynomial(_of_pairs(np.add, first, second), first, second)


def minus(first: Tensor, second: Tensor) -> Elements:
    """Subtract two tensors, which are broadcast."""
    return polynomial(_of_pairs(np.subtract, first, second), first, second)


def times(first: Tensor, second: Tensor) -> Elements:
    """Multiply two tensors element by element; they are broadcast."""
    draws = _of_pairs(lambda a, b: widened(a) * widened(b), first, second)
    return polynomial(draws, first, second, product=True)


def quotient(value: Tensor, count: Array | int) -> Elements:
    """Divide a tensor by whole numbers, such as a sum by its count for a mean."""
    counts = np.asarray(count)

    def compute(array: Array, prime: int) -> Array:
        table = {int(n): inverse(int(n), prime) for n in np.unique(counts)}
        factors = np.vectorize(table.__getitem__, otypes=[np.float64])(counts)
        return remainder(widened(array) * remainder(factors, prime), prime)

    return polynomial(for_each_prime(compute, value), value)


def map_arrays(value: Tensor, move: Callable[[Array], Array]) -> Tensor:
    """Move the elements of a tensor."""
    if isinstance(value, KnownValue):
        return replace(value, array=move(value.array))
    return replace(value, draws=tuple(map(move, value.draws)))


def reshaped(value: Tensor, shape: Sequence[int]) -> Tensor:
    """Give a tensor other extents."""
    return map_arrays(value, lambda array: array.reshape(shape))


def scalar(value: Tensor) -> Tensor:
    """Return a tensor of one element as a scalar.

    Raises:
        UnevaluableError: it has several, or none.
    """
    if math.prod(value.shape) != 1:
        raise UnevaluableError(f"one number is needed, not {list(value.shape)}")
    return reshaped(value, ())


def along(value: Tensor, axis: int, rank: int) -> Tensor:
    """Reshape a vector, so that it is broadcast along one axis of a tensor; a scalar stays one.

    Raises:
        UnevaluableError: the value is neither, or the tensor has no such axis.
    """
    if np.prod(value.shape) == 1:
        return reshaped(value, ())
    if len(value.shape) != 1:
        raise UnevaluableError(f"{list(value.shape)} along one axis")
    index = from_first(axis, rank)
    return reshaped(value, [-1 if i == index else 1 for i in range(rank)])


def matrix_product(a: Tensor, b: Tensor) -> Elements:
    """Multiply as numpy does: a vector is a row or a column, other axes are broadcast.

    Raises:
        UnevaluableError: the extents do not fit.
    """
    ranks = len(a.shape), len(b.shape)
    if not all(ranks):
        raise UnevaluableError("a factor is a scalar")
    rows = reshaped(a, (1, *a.shape)) if ranks[0] == 1 else a
    columns = reshaped(b, (*b.shape, 1)) if ranks[1] == 1 else b
    if rows.shape[-1] != columns.shape[-2]:
        raise UnevaluableError(f"matrices of {list(a.shape)} and {list(b.shape)} do not fit")
    broadcast_shape([rows.shape[:-2], columns.shape[:-2]])
    draws = for_each_prime(dot, rows, columns)
    shape = draws[0].shape
    shape = shape[:-2] + shape[-1:] if ranks[0] == 1 else shape
    shape = shape[:-1] if ranks[1] == 1 else shape
    flat = tuple(draw.reshape(shape) for draw in draws)
    return polynomial(flat, a, b, product=True)


MOVING = frozenset(
    {
        *("Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements"),
        *("GatherND", "Reshape", "ReverseSequence", "Slice", "SpaceToDepth", "Split", "Squeeze"),
        *("Tile", "Transpose", "Trilu", "Unsqueeze"),
    }
)
"""Operators that move the elements of their first input to positions that the other inputs give.
Concat moves all inputs."""

PAD_INPUTS_OPSET = 11
"""Version of the operator set since which Pad has inputs in place of attributes."""


def run(call: Call, operands: Sequence[Array | None]) -> list[Array] | None:
    """Run a node on arrays; None where the reference implementation does not know the operator.

    Raises:
        UnevaluableError: it fails on them.
    """
    try:
        return run_reference(call.node, operands, call.opset)
    except ValueError as error:
        raise UnevaluableError(f"it {error}") from error


def move(call: Call) -> list[Value] | None:
    """Move elements; None if their new positions depend on the inputs of the model."""
    count = len(call.inputs) if call.node.op_type == "Concat" else 1
    data = [call.tensor(i) for i in range(count)]
    if any(isinstance(value, Elements) for value in call.inputs[count:]):
        return None
    positions = [call.numbers(i) for i in range(count, len(call.inputs))]
    results = []
    for draws in zip(*(value.draws for value in data), strict=True):
        result = run(call, [*draws, *positions])
        if result is None:
            return None
        results.append(result)
    grid = _grid(data)
    return [replace(polynomial(parts, *data), grid=grid) for parts in zip(*results, strict=True)]


_PAD_MODES = ("constant", "edge", "reflect", "wrap")


def pad(call: Call) -> list[Value] | None:
    """Pad, or cut where a number is negative; None where the result is not defined, or not known.

    ONNX defines the order of padding and cutting only for the mode "constant".

    Raises:
        UnevaluableError: mode, axes, pads or fill do not fit the data.
    """
    data, attributes = call.tensor(0), call.attributes
    rank, mode = len(data.shape), attributes.get("mode", "constant")
    pads, fill, axes = call.whole_numbers(1), call.optional(2), call.whole_numbers(3)
    if call.opset < PAD_INPUTS_OPSET:
        pads = np.array(call.attribute("pads" if "pads" in attributes else "paddings"))
        fill = KnownValue(np.array(attributes.get("value", 0.0)))
    if pads is None or (axes is None and call.optional(3) is not None):
        return None
    if mode not in _PAD_MODES:
        raise UnevaluableError(f"its mode {mode!r} is none of {', '.join(_PAD_MODES)}")
    fill = KnownValue(np.array(0.0)) if fill is None or mode != "constant" else scalar(fill)
    numbers = range(rank) if axes is None else axes.ravel().tolist()
    axes_padded = [from_first(number, rank) for number in numbers]
    if pads.size != 2 * len(axes_padded):
        raise UnevaluableError(f"{pads.size} pads for {len(axes_padded)} axes")
    sides = np.zeros((2, rank), np.int64)
    sides[:, axes_padded] = pads.reshape(2, -1)
    if mode != "constant" and (sides < 0).any():
        return None
    if mode != "constant" and 0 in data.shape:
        raise UnevaluableError("nothing can be repeated of empty data")

    begins, ends = sides.tolist()

    def compute(array: Array, number: Array, _: int) -> Array:
        options = {"constant_values": number} if mode == "constant" else {}
        return padded(array, begins, ends, mode, **options)

    draws = for_each_prime(compute, data, fill)
    is_zero = not fill.draws[0].any()
    return [replace(polynomial(draws, data, fill), grid=_grid([data]) if is_zero else b"")]


def _grid(operands: list[Tensor]) -> bytes:
    """Return the grid of all operands; empty if they have none, or different ones."""
    grids = {value.grid if isinstance(value, Elements) else b"" for value in operands}
    return grids.pop() if len(grids) == 1 else b""
