"""Find constants of a model that are results of another model's constants, rounded once.

A tool that merges a factor into a weight stores `w * s` as float32. The product is known exactly,
so a proof takes it in place of the stored numbers, and only asks that each of these is a float
nearest to its element. Found are sums, products and quotients of two constants, `a * b + c`,
reciprocals of whole numbers, and what a BatchNormalization becomes in a weight and in a bias. A
wrong formula does no harm: with it the models are not proved equal.
"""

from __future__ import annotations

import decimal
import hashlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice
from typing import Any

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.proof.operators.arithmetic import minus, plus, times
from widthfold_onnx.evidence.proof.operators.polynomials import division, reciprocal_root
from widthfold_onnx.evidence.proof.program import Program, constant
from widthfold_onnx.evidence.proof.values import Elements, KnownValue, Shape, Tensor
from widthfold_onnx.model.proto.walk import is_default

MAX_SOURCES = 512
"""Constants of which results are sought; those that the searched model lacks come first."""

MAX_TRIPLES = 64
"""Most operands of a result up to which all triples of them are tried as `a * b + c`."""

MAX_CANDIDATES = 64
"""Most formulas that fit one number of a constant and are tried on all of its numbers."""

MAX_DIVISOR = 1024
"""Largest whole number whose reciprocal is sought."""

MAX_DECIMALS = 1 << 16
"""Most elements that are computed with `DIGITS`: those near the middle between two floats."""

DIGITS = 200
"""Decimal digits in which an element is computed that float64 cannot decide."""

FLOAT64_ERROR = 2.0**-48
"""Error of a formula in float64, as a fraction of its value without any cancellation."""

_Formula = Callable[..., Any]
"""Computes with anything that has + - * and /."""


def _sum_of_product(a: Any, b: Any, c: Any) -> Any:
    return a * b + c


def _merged_weight(weight: Any, scale: Any, root: Any) -> Any:
    return weight * (scale * root)


def _merged_bias(bias: Any, mean: Any, scale: Any, root: Any, shift: Any) -> Any:
    return (bias - mean) * (scale * root) + shift


def _shift(mean: Any, scale: Any, root: Any, shift: Any) -> Any:
    return shift - mean * (scale * root)


@dataclass(frozen=True)
class _Magnitude:
    """A number without its sign: a bound of what a formula adds and subtracts."""

    array: Array

    def __add__(self, other: _Magnitude) -> _Magnitude:
        return _Magnitude(self.array + other.array)

    __sub__ = __add__

    def __mul__(self, other: _Magnitude) -> _Magnitude:
        return _Magnitude(self.array * other.array)

    def __truediv__(self, other: _Magnitude) -> _Magnitude:
        return _Magnitude(self.array / other.array)


@dataclass(frozen=True)
class _Symbol:
    """A tensor of field elements with the operators of a formula."""

    value: Tensor

    def __add__(self, other: _Symbol) -> _Symbol:
        return _Symbol(plus(self.value, other.value))

    def __sub__(self, other: _Symbol) -> _Symbol:
        return _Symbol(minus(self.value, other.value))

    def __mul__(self, other: _Symbol) -> _Symbol:
        return _Symbol(times(self.value, other.value))

    def __truediv__(self, other: _Symbol) -> _Symbol:
        return _Symbol(division(self.value, other.value))


@dataclass(frozen=True, eq=False)
class Operand:
    """A constant in a formula.

    Attributes:
        array: its numbers, in extents that are broadcast to those of the result.
        epsilon: not None for 1 / sqrt(array + epsilon) in place of the numbers.
    """

    array: Array
    epsilon: float | None = None

    def floats(self) -> Array:
        """Return the numbers in float64."""
        numbers = self.array.astype(np.float64)
        if self.epsilon is None:
            return numbers
        with np.errstate(invalid="ignore", divide="ignore"):  # NaN of a variance below 0
            return 1 / np.sqrt(numbers + self.epsilon)

    def at(self, index: tuple[Any, ...], shape: Shape) -> float:
        """Return the number at an index of the result, which has these extents."""
        number = np.broadcast_to(self.array, shape)[index]
        return float(replace(self, array=number).floats())

    def decimals(self, shape: Shape, mask: Array) -> list[Decimal]:
        """Return the numbers of the result that a mask selects, in `DIGITS` digits."""
        floats = np.broadcast_to(self.array, shape)[mask].astype(np.float64).tolist()
        numbers = [Decimal(number) for number in floats]
        if self.epsilon is None:
            return numbers
        return [1 / (number + Decimal(self.epsilon)).sqrt() for number in numbers]

    def symbol(self) -> _Symbol:
        """Return the numbers as field elements."""
        value = KnownValue(self.array)
        return _Symbol(value if self.epsilon is None else reciprocal_root(self.epsilon, value))


@dataclass(frozen=True, eq=False)
class Rounded:
    """A stored constant as the result of a formula on other constants.

    Attributes:
        formula: computes the exact numbers.
        operands: what it computes them from.
        stored: the numbers of the model.
    """

    formula: _Formula
    operands: Sequence[Operand]
    stored: Array

    def tensor(self) -> Elements:
        """Return the exact numbers as field elements."""
        value: Elements = self.formula(*(operand.symbol() for operand in self.operands)).value
        shape, element_type = self.stored.shape, KnownValue(self.stored).element_type
        draws = tuple(np.broadcast_to(draw, shape) for draw in value.draws)
        return replace(value, draws=draws, element_type=element_type)

    def is_nearest(self) -> bool:
        """Check that every stored number is a float nearest to its exact number."""
        shape, numbers = self.stored.shape, [operand.floats() for operand in self.operands]
        with np.errstate(all="ignore"):
            value = self.formula(*numbers)
            magnitude = self.formula(*(_Magnitude(np.abs(array)) for array in numbers)).array
            slack = FLOAT64_ERROR * magnitude
            lower, upper = _limits(self.stored)
            if not (np.isfinite(slack).all() and np.isfinite(lower + upper).all()):
                return False
            if ((value + slack < lower) | (value - slack > upper)).any():
                return False
            open_places = np.broadcast_to((value - slack < lower) | (value + slack > upper), shape)
        if np.count_nonzero(open_places) > MAX_DECIMALS:
            return False
        limits = zip(lower[open_places].tolist(), upper[open_places].tolist(), strict=True)
        pairs = zip(self._decimals(open_places), limits, strict=True)
        return all(Decimal(low) <= number <= Decimal(high) for number, (low, high) in pairs)

    def is_exact(self) -> bool:
        """Check that nothing was rounded; False where there are more than `MAX_DECIMALS`."""
        if self.stored.size > MAX_DECIMALS:
            return False
        numbers = self.stored.astype(np.float64).ravel().tolist()
        return self._decimals(np.ones(self.stored.shape, bool)) == [*map(Decimal, numbers)]

    def _decimals(self, mask: Array) -> list[Decimal]:
        """Return the exact numbers that a mask selects, in `DIGITS` digits."""
        with decimal.localcontext(decimal.Context(prec=DIGITS)):
            columns = [operand.decimals(self.stored.shape, mask) for operand in self.operands]
            return [self.formula(*row) for row in zip(*columns, strict=True)]


def _limits(stored: Array) -> tuple[Array, Array]:
    """Return the middles between floats of at most 32 bits and their neighbours, in float64."""
    middle = stored.astype(np.float64)
    ends = (np.nextafter(stored, stored.dtype.type(sign * np.inf)) for sign in (-1, 1))
    lower, upper = ((middle + end.astype(np.float64)) / 2 for end in ends)
    return lower, upper


def rounded_constants(source: Program, searched: Program) -> dict[str, list[Rounded]]:
    """Find the constants of a model that are results of another model's constants.

    Args:
        source: the model that holds the exact constants.
        searched: the model that holds rounded results of them.

    Returns:
        Formulas by the name of a constant that `source` lacks, or that is the reciprocal of a whole
        number.
    """
    sources, constants = _constants(source), _constants(searched)
    known, kept = ({*map(_content, side.values())} for side in (sources, constants))
    arrays = sorted(sources.values(), key=lambda array: _content(array) in kept)[:MAX_SOURCES]
    normalizations = _normalizations(source, sources)
    results: dict[str, list[Rounded]] = {}
    for name, array in constants.items():
        is_whole = (array % 1 == 0).all()  # such numbers are themselves
        if not is_whole and (_divisor(array) or _content(array) not in known):
            candidates = islice(_candidates(array, arrays, normalizations), MAX_CANDIDATES)
            results[name] = [item for item in candidates if item.is_nearest()]
    return {name: items for name, items in results.items() if items}


def _content(array: Array) -> bytes:
    """Digest the numbers of an array."""
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).digest()


def _constants(program: Program) -> dict[str, Array]:
    """Return what nodes of the main graph read: finite constants of floats of at most 32 bits."""
    scope = program.scope
    arrays = {
        name: program.initializer(name) for i in program.needed_nodes for name in scope.reads[i]
    }
    for node in (scope.nodes[i] for i in program.needed_nodes):
        if is_default(node, "Constant"):
            arrays[node.output[0]] = constant(node, program)
    inputs = {value.name for value in program.inputs}
    return {
        name: array
        for name, array in arrays.items()
        if name not in inputs and array is not None and array.dtype in (np.float16, np.float32)
        if array.size and np.isfinite(array).all()
    }


@dataclass(frozen=True, eq=False)
class _Normalization:
    """The constants of a BatchNormalization, each of C numbers."""

    scale: Array
    shift: Array
    mean: Array
    variance: Array
    epsilon: float

    def aligned(self, shape: Shape) -> Iterator[tuple[Operand, ...]]:
        """Yield mean, scale, root and shift along each axis of a result that has their extent."""
        columns = [_aligned(array, shape) for array in (self.mean, self.scale)]
        columns += [_aligned(self.variance, shape, self.epsilon), _aligned(self.shift, shape)]
        yield from zip(*columns, strict=True)


def _normalizations(program: Program, constants: Mapping[str, Array]) -> list[_Normalization]:
    results = []
    for node in program.scope.nodes:
        if is_default(node, "BatchNormalization") and constants.keys() >= {*node.input[1:5]}:
            scale, shift, mean, variance = (constants[name] for name in node.input[1:5])
            epsilon = program.attributes(node)["epsilon"]
            results.append(_Normalization(scale, shift, mean, variance, epsilon))
    return results


def _candidates(
    stored: Array, arrays: Sequence[Array], normalizations: Sequence[_Normalization]
) -> Iterator[Rounded]:
    """Yield formulas whose result is near the stored numbers at the largest of these."""
    index = np.unravel_index(int(np.abs(stored).argmax()), stored.shape)
    low, high = (limit[index] for limit in _limits(stored))
    if not np.isfinite(high - low):
        return
    margin = (high - low) * 2.0**-10

    def found(formula: _Formula, *operands: Sequence[Operand]) -> Iterator[Rounded]:
        """Try all combinations of operands, one of each sequence."""
        numbers = [
            np.array([operand.at(index, stored.shape) for operand in row]) for row in operands
        ]
        with np.errstate(all="ignore"):
            results = formula(*np.ix_(*numbers))
            for fitting in np.argwhere((results >= low - margin) & (results <= high + margin)):
                chosen = [row[i] for row, i in zip(operands, fitting, strict=True)]
                yield Rounded(formula, chosen, stored)

    operands = [operand for array in arrays for operand in _aligned(array, stored.shape)]
    for item in normalizations:
        for mean, scale, root, shift in item.aligned(stored.shape):
            yield from found(operator.mul, [scale], [root])
            yield from found(_shift, [mean], [scale], [root], [shift])
            yield from found(_merged_weight, operands, [scale], [root])
            yield from found(_merged_bias, operands, [mean], [scale], [root], [shift])
    one = Operand(np.array(1.0))
    if divisor := _divisor(stored):
        yield from found(operator.truediv, [one], [Operand(np.array(divisor))])
    yield from found(operator.truediv, [one], operands)
    for formula in (operator.add, operator.sub, operator.mul, operator.truediv):
        yield from found(formula, operands, operands)
    if len(operands) <= MAX_TRIPLES:
        yield from found(_sum_of_product, operands, operands, operands)


def _divisor(stored: Array) -> float:
    """Return the whole number of which a single number may be the reciprocal, else 0."""
    number = float(stored.item()) if stored.size == 1 else 0.0
    divisor = round(1 / number) if abs(number) * MAX_DIVISOR >= 1 else 0
    return float(divisor if divisor and stored == stored.dtype.type(1 / divisor) else 0)


def _aligned(array: Array, shape: Shape, epsilon: float | None = None) -> list[Operand]:
    """Return the ways to broadcast an array to extents: as it is, a number, along each axis."""
    axes = [axis for axis, extent in enumerate(shape) if extent == array.size]
    if array.size == 1:
        shapes = [(1,) * len(shape)]
    elif [n for n in array.shape if n > 1] == [n for n in shape if n > 1]:
        shapes = [shape]
    elif array.size in array.shape:
        shapes = [tuple(n if i == axis else 1 for i, n in enumerate(shape)) for axis in axes]
    else:
        shapes = []
    return [Operand(array.reshape(extents), epsilon) for extents in shapes]
