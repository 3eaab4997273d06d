"""Evaluate operators whose results are polynomials of their inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import starmap

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.proof.field import (
    Modulus,
    key_of,
    remainder,
    widened,
)
from widthfold_onnx.evidence.proof.geometry import (
    Windows,
    conv,
    conv_transpose,
    read_transposed_windows,
    read_windows,
)
from widthfold_onnx.evidence.proof.operators.arithmetic import (
    along,
    for_each_prime,
    function_of,
    map_arrays,
    matrix_product,
    minus,
    plus,
    polynomial,
    quotient,
    times,
)
from widthfold_onnx.evidence.proof.values import (
    FLOATS,
    Call,
    Elements,
    KnownValue,
    Meaning,
    Shape,
    Tensor,
    UnevaluableError,
    Value,
    broadcast_shape,
    from_first,
    meaning_of,
)
from widthfold_onnx.model.shapes.inference import RawAttributes

_EXACT_CASTS = {(FLOATS[i], FLOATS[j]) for i, j in ((0, 2), (0, 3), (1, 2), (1, 3), (2, 3))}
"""Casts from one type of floats to another that change no number."""


MASK_OPSET = 12
"""Version of the operator set since which the mask of a Dropout is defined where nothing drops."""

MAX_NUMBER = 1024
"""Largest whole number whose reciprocal and root are known exactly."""

ReadWindows = Callable[[RawAttributes, Shape, Shape], Windows]
Compute = Callable[[Array, Array, int, Windows, Modulus], Array]


def convolution(
    call: Call,
    data: Tensor,
    weight: Tensor,
    read: ReadWindows = read_windows,
    compute: Compute = conv,
) -> Elements:
    """Convolve data [N, C, ...] with a weight [O, C / group, ...] as the attributes say.

    Args:
        call: the node.
        data: the convolved data.
        weight: the weight; of a ConvTranspose [C, O / group, ...].
        read: reads the windows from attributes and extents.
        compute: convolves modulo a prime.

    Raises:
        UnevaluableError: they do not fit.
    """
    if len(data.shape) != len(weight.shape) or len(weight.shape) < 3:
        raise UnevaluableError(f"a weight of {list(weight.shape)} for data of {list(data.shape)}")
    windows = read(call.attributes, weight.shape[2:], data.shape[2:])
    group = call.attributes.get("group", 1)
    draws = for_each_prime(lambda x, w, p: compute(x, w, group, windows, p), data, weight)
    return polynomial(draws, data, weight, product=True)


def with_bias(result: Elements, bias: Tensor | None) -> Elements:
    """Add a bias [O] to [N, O, ...].

    Raises:
        UnevaluableError: it has another number of channels.
    """
    if bias is None:
        return result
    if bias.shape != (result.shape[1],):
        raise UnevaluableError(f"a bias of {list(bias.shape)} for {result.shape[1]} channels")
    return plus(result, along(bias, 1, len(result.shape)))


def _conv(call: Call, read: ReadWindows = read_windows, compute: Compute = conv) -> list[Value]:
    result = convolution(call, call.tensor(0), call.tensor(1), read, compute)
    return [with_bias(result, call.optional(2))]


def _gemm(call: Call) -> list[Value]:
    a, b, bias = call.tensor(0), call.tensor(1), call.optional(2)
    if (len(a.shape), len(b.shape)) != (2, 2):
        raise UnevaluableError(f"Gemm of {list(a.shape)} and {list(b.shape)}")
    alpha, beta = (call.attributes.get(name, 1.0) for name in ("alpha", "beta"))
    a = map_arrays(a, np.transpose) if call.attributes.get("transA") else a
    b = map_arrays(b, np.transpose) if call.attributes.get("transB") else b
    result = matrix_product(a, b)
    if alpha != 1:
        result = times(result, KnownValue(np.array(alpha)))
    if bias is None or beta == 0:
        return [result]
    if broadcast_shape([result.shape, bias.shape]) != result.shape:
        raise UnevaluableError(f"C of {list(bias.shape)} for a result of {list(result.shape)}")
    return [plus(result, bias if beta == 1 else times(bias, KnownValue(np.array(beta))))]


def _einsum(call: Call) -> list[Value] | None:
    """Compute an Einsum of two operands; None for another one, or if a label is repeated."""
    equation = call.attribute("equation").replace(" ", "")
    if len(call.inputs) != 2 or equation.partition("->")[0].count(",") != 1:
        return None
    a, b = call.tensor(0), call.tensor(1)
    first, second, result = _labels(equation, (len(a.shape), len(b.shape)))
    common_labels = [label for label in first if label in second]
    batches = [label for label in common_labels if label in result]
    summed_labels = [label for label in common_labels if label not in result]
    rows = [label for label in first if label not in second]
    columns = [label for label in second if label not in first]
    sizes = dict(zip(first, a.shape, strict=False)) | dict(zip(second, b.shape, strict=False))
    is_plain = all(len({*term}) == len(term) for term in (first, second, result))
    fits = (len(first), len(second)) == (len(a.shape), len(b.shape))
    fits = fits and all(a.shape[first.index(n)] == b.shape[second.index(n)] for n in common_labels)
    if not is_plain or not fits or {*result} != {*batches, *rows, *columns}:
        return None

    def matrices(term: str, *groups: list[str]) -> Callable[[Array], Array]:
        order = [term.index(label) for group in groups for label in group]
        extents = [sizes[label] for label in batches]
        extents += [math.prod(sizes[label] for label in group) for group in groups[1:]]
        return lambda x: x.transpose(order).reshape(extents)

    product = matrix_product(
        map_arrays(a, matrices(first, batches, rows, summed_labels)),
        map_arrays(b, matrices(second, batches, summed_labels, columns)),
    )
    labels = [*batches, *rows, *columns]
    extents, order = [sizes[n] for n in labels], [labels.index(label) for label in result]
    return [map_arrays(product, lambda x: x.reshape(extents).transpose(order))]


def _labels(equation: str, ranks: tuple[int, int]) -> tuple[str, str, str]:
    """Return one label for each axis of both operands and of the result.

    An ellipsis becomes labels that no equation has, here written 0 and 1, aligned at their end:
    "...ik,kj" of ranks 4 and 2 has the labels "01ik", "kj" and "01ij". Where "->" is missing, ONNX
    defines the result: the ellipsis, then the labels that occur once, by alphabet.
    """
    operands, arrow, result = equation.partition("->")
    pairs = list(zip(operands.split(","), ranks, strict=True))
    hidden_count = max(rank - len(text.replace("...", "")) for text, rank in pairs)
    hidden_labels = "".join(chr(ord("\u0100") + i) for i in range(hidden_count))

    def term(text: str, rank: int) -> str:
        count = rank - len(text.replace("...", ""))
        return text.replace("...", hidden_labels[hidden_count - count :])

    first, second = starmap(term, pairs)
    if not arrow:
        labels = sorted({*first, *second} - {*hidden_labels})
        singles = "".join(label for label in labels if (first + second).count(label) == 1)
        result = ("..." if "..." in operands else "") + singles
    return first, second, result.replace("...", hidden_labels)


def _batch_normalization(call: Call) -> list[Value] | None:
    data = call.tensor(0)
    is_training = call.attributes.get("training_mode") or len(call.node.output) > 1
    # Until opset 9 "spatial" may be 0: then every position has its own numbers. [N, C] has one.
    is_by_position = call.attributes.get("spatial", 1) != 1 and len(data.shape) > 2
    if is_training or is_by_position:
        return None
    operands = (along(call.tensor(i), 1, len(data.shape)) for i in range(1, 5))
    scale, bias, mean, variance = operands
    root = reciprocal_root(call.attributes["epsilon"], variance)
    return [plus(times(minus(data, mean), times(scale, root)), bias)]


def reciprocal_root(epsilon: float, value: Tensor) -> Elements:
    """Return 1 / sqrt(value + epsilon)."""
    return _reciprocal(square_root(plus(value, KnownValue(np.array(epsilon)))))


def square_root(value: Tensor) -> Elements:
    """Return a root: of small squares exactly, of any other element as a function of it."""
    numbers = _small_numbers(value)
    roots = np.rint(np.sqrt(np.maximum(numbers, 0)))
    result = function_of(key_of("square root"), [value])
    is_zero = ~np.any([draw != 0 for draw in value.draws], axis=0)
    is_exact = is_zero | ((roots > 0) & (roots**2 == numbers))
    draws = (np.where(is_exact, draw.dtype.type(1) * roots, draw) for draw in result.draws)
    return replace(result, draws=tuple(draw.astype(np.float32) for draw in draws))


def _reciprocal(value: Tensor) -> Elements:
    """Return 1 / value: of small whole numbers exactly, of others as a function of the element."""
    numbers = _small_numbers(value)
    result = function_of(key_of("reciprocal"), [value])
    if not numbers.any():
        return result
    exact = quotient(KnownValue(np.array(1.0)), np.where(numbers, numbers, 1))
    pairs = zip(exact.draws, result.draws, strict=True)
    return replace(result, draws=tuple(np.where(numbers, *pair) for pair in pairs))


def _small_numbers(value: Tensor) -> Array:
    """Return the whole numbers up to `MAX_NUMBER` among elements, 0 for all others.

    Other elements are the same small number modulo five primes with a probability below 2^-100.
    """
    first, *others = value.draws
    is_small = np.all([np.equal(first, draw) for draw in others], axis=0)
    numbers = np.where(is_small & (np.abs(first) <= MAX_NUMBER), first, 0)
    return numbers.astype(np.int64)


def division(dividend: Tensor, divisor: Tensor) -> Elements:
    """Return a quotient of real numbers, element by element; both are broadcast."""
    return times(dividend, _reciprocal(divisor))


def _negative(value: Tensor) -> Elements:
    return polynomial(for_each_prime(lambda x, _: -x, value), value)


def _mul(call: Call) -> list[Value]:
    constants = (value for value in call.tensors if isinstance(value, KnownValue))
    product = times(call.tensor(0), call.tensor(1))
    return [replace(product, factor=next(constants, None))]


def _total(call: Call) -> list[Value]:
    """Compute Sum and Mean of any number of tensors."""
    first, *terms = call.tensors
    result = polynomial(first.draws, first)
    for value in terms:
        result = plus(result, value)
    return [quotient(result, len(call.tensors)) if call.node.op_type == "Mean" else result]


def _dropout(call: Call) -> list[Value] | None:
    """Return the input and a mask; None in training, where both are random.

    The mask is of ones since opset 12. The operator text does not say what it was before: ONNX
    Runtime returns zeros.
    """
    training, data = call.optional(2), call.tensor(0)
    is_off = training is None or (isinstance(training, KnownValue) and not training.array.any())
    if not is_off or (call.opset < 7 and not call.attributes.get("is_test")):
        return None
    if call.opset < MASK_OPSET:
        return [data, function_of(key_of("mask of Dropout"), [data])]
    return [data, KnownValue(np.ones(data.shape, bool))]


def _cast(call: Call) -> list[Value]:
    """Return the data if the cast keeps every number, else a function of it."""
    data_type, target_type = call.element_type(0), call.attributes.get("to", 0)
    if data_type and (data_type == target_type or (data_type, target_type) in _EXACT_CASTS):
        return [call.tensor(0)]
    return [function_of(call.key(), [call.tensor(0)])]


def axes_of(call: Call, rank: int) -> list[int] | None:
    """Return the axes of a reduction in order, None where they are computed from other inputs.

    Raises:
        UnevaluableError: the data has no such axis.
    """
    if call.node.op_type.startswith("Global"):
        return list(range(2, rank))
    axes = call.attributes.get("axes")
    if call.optional(1) is not None:
        operand = call.whole_numbers(1)
        if operand is None:
            return None
        axes = operand.ravel().tolist()
    if not axes:
        return [] if call.attributes.get("noop_with_empty_axes") else list(range(rank))
    return sorted({from_first(axis, rank) for axis in axes})


def reduced_extents(call: Call, shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Return the extents that a reduction leaves."""
    keeps = call.attributes.get("keepdims", 1)
    return [1 if i in axes else n for i, n in enumerate(shape) if keeps or i not in axes]


def _reduce(call: Call) -> list[Value] | None:
    """Compute sums over axes, and means of floats: a mean of integers is truncated."""
    data = call.tensor(0)
    axes, is_mean = axes_of(call, len(data.shape)), call.node.op_type != "ReduceSum"
    if axes is None or (is_mean and call.element_type(0) not in FLOATS):
        return None

    def compute(array: Array, prime: int) -> Array:
        array = widened(array)
        for axis in reversed(axes):  # 2^29 elements near 2^23 stay exact
            array = remainder(array.sum(axis), prime)
        return array.reshape(reduced_extents(call, data.shape, axes))

    count = math.prod(data.shape[axis] for axis in axes)
    result = polynomial(for_each_prime(compute, data), data)
    return [quotient(result, count) if is_mean and count else result]


def _average_pool(call: Call) -> list[Value] | None:
    data = call.tensor(0)
    windows = read_windows(call.attributes, call.attributes.get("kernel_shape", ()), data.shape[2:])
    if call.attributes.get("count_include_pad"):
        if call.attributes.get("ceil_mode"):
            return None  # whether positions behind the pads count differs between versions
        counts = np.array(math.prod(windows.kernel))
    else:
        counts = windows.sums(np.ones((1, 1, *data.shape[2:])))
    if not counts.all():
        return None
    draws = for_each_prime(lambda x, p: remainder(windows.sums(widened(x)), p), data)
    return [quotient(polynomial(draws, data), counts.astype(np.int64))]


INVERSES = frozenset({"BatchNormalization", "Cast", "Div", "Reciprocal"})
"""Operators in `POLYNOMIALS` that may apply a random function to an operand: its reciprocal, its
reciprocal root, or its value in another type."""

POLYNOMIALS: Mapping[str, Meaning] = {
    "Add": meaning_of(plus),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "Conv": _conv,
    "ConvTranspose": lambda call: _conv(call, read_transposed_windows, conv_transpose),
    "Div": meaning_of(division),
    "Dropout": _dropout,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "GlobalAveragePool": _reduce,
    "Identity": meaning_of(lambda value: value),
    "MatMul": meaning_of(matrix_product),
    "Mean": _total,
    "Mul": _mul,
    "Neg": meaning_of(_negative),
    "Reciprocal": meaning_of(_reciprocal),
    "ReduceMean": _reduce,
    "ReduceSum": _reduce,
    "Sub": meaning_of(minus),
    "Sum": _total,
}
