"""Evaluate operators that are random functions of single elements, of windows or of lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.proof.field import PRIME_COUNT, Draws, fingerprints, function, key_of
from widthfold_onnx.evidence.proof.geometry import read_windows
from widthfold_onnx.evidence.proof.operators.arithmetic import (
    function_of,
    minus,
    plus,
    quotient,
    reshaped,
    scalar,
    times,
)
from widthfold_onnx.evidence.proof.operators.polynomials import (
    axes_of,
    convolution,
    reduced_extents,
    square_root,
    with_bias,
)
from widthfold_onnx.evidence.proof.values import (
    FLOATS,
    Call,
    Elements,
    KnownValue,
    Meaning,
    Tensor,
    UnevaluableError,
    Value,
    broadcast_shape,
    check_size,
    from_first,
    meaning_of,
)
from widthfold_onnx.model.shapes.inference import RawAttributes

ELEMENT_FUNCTIONS = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseNot"),
        *("Ceil", "Celu", "Clip", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "Greater"),
        *("GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN"),
        *("LessOrEqual", "Log", "Mish", "Mod", "Not", "Pow", "Relu"),
        *("Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign"),
        *("Swish", "Tan", "Tanh", "ThresholdedRelu"),
    }
)
COMMUTATIVE = frozenset(
    {"And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Max", "Min", "Or", "Xor"}
)
"""Elementwise operators of which the order of operands does not matter."""

KEEPING_ZERO = frozenset(
    {
        *("Abs", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Elu", "Erf", "Floor", "Gelu"),
        *("HardSwish", "Mish", "Relu", "Round", "Selu", "Sign", "Sin", "Sinh", "Softsign"),
        *("Swish", "Tan", "Tanh"),
    }
)
"""Operators that return 0 for 0, whatever their attributes are. An element counts as 0 if it is 0
in all draws; that any other element is so is no likelier than that unequal polynomials agree."""

REDUCTIONS = frozenset(
    {
        *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMin"),
        *("ReduceProd", "ReduceSumSquare"),
    }
)

COERCED = frozenset({"Hardmax", "LogSoftmax", "Softmax"})
"""Operators for which, before opset 13, all axes from `axis` on are one line."""

LINES = COERCED | {"ArgMax", "ArgMin", "CumSum", "LpNormalization", "TopK"}
"""Operators whose results depend on a line along an axis and on the position in it."""

_ZERO, _ONE = KnownValue(np.array(0.0)), KnownValue(np.array(1.0))

_EXTREMA = {
    **dict.fromkeys(("Max", "MaxPool", "GlobalMaxPool", "ReduceMax"), "max"),
    **dict.fromkeys(("Min", "ReduceMin"), "min"),
}


def function_of_elements(call: Call) -> list[Value]:
    """Return a random function of the elements of all operands, which are broadcast."""
    positions = [i for i, value in enumerate(call.inputs) if value is not None]
    result = function_of(call.key(positions), call.tensors)
    if call.node.op_type in KEEPING_ZERO:
        return [_zero_where(_is_nonzero(call.tensor(0)) == 0, result)]
    return [result]


def _power(call: Call) -> list[Value]:
    """Return Pow: a product where the exponent is 2 or 3, a root where it is 0.5."""
    exponent = call.numbers(1)
    if exponent is None or exponent.size != 1 or call.element_type(0) not in FLOATS:
        return function_of_elements(call)
    data, number = call.tensor(0), exponent.item()
    if exponent.ndim > len(data.shape):
        return function_of_elements(call)
    if number in (2, 3):
        return [reduce(times, [data] * int(number))]
    if number == 0.5:
        return [square_root(data)]
    return function_of_elements(call)


def _clip(call: Call) -> list[Value]:
    """Return Clip: the Min of an upper bound and of the Max of a lower one (ONNX operator text)."""
    result = call.tensor(0)
    for i, (name, op_type) in enumerate((("min", "Max"), ("max", "Min")), start=1):
        bound = call.optional(i)
        if bound is None and name in call.attributes:
            bound = KnownValue(np.array(call.attributes[name], np.float32))
        if bound is None or (isinstance(bound, KnownValue) and _is_no_bound(call, name, bound)):
            continue
        node = helper.make_node(op_type, ["x", "bound"], ["y"])
        operands = [result, scalar(bound)]
        (value,) = _extremum(replace(call, node=node, attributes={}, inputs=operands))
        assert isinstance(value, KnownValue | Elements)
        result = value
    return [result]


def _hard_swish(call: Call) -> list[Value]:
    """Return HardSwish: x * max(0, min(1, x / 6 + 1 / 2)), which is x * Clip(x + 3, 0, 6) / 6."""
    data = call.tensor(0)
    shifted = replace(plus(data, KnownValue(np.array(3.0))), element_type=call.element_type(0))
    bounds = [KnownValue(np.array(bound)) for bound in (0.0, 6.0)]
    node = helper.make_node("Clip", ["x", "min", "max"], ["y"])
    (clipped,) = _clip(replace(call, node=node, attributes={}, inputs=[shifted, *bounds]))
    assert isinstance(clipped, Elements)
    result = quotient(times(data, clipped), 6)
    return [replace(result, constants=data.constants)]  # 3 and 6 are not constants of the model


def _is_no_bound(call: Call, name: str, bound: KnownValue) -> bool:
    """Check whether every finite number lies within a bound (Clip-6 has such defaults)."""
    is_double = call.element_type(0) == onnx.TensorProto.DOUBLE
    limit = np.finfo(np.float64 if is_double else np.float32).max
    if bound.array.dtype.kind != "f":
        return False
    return bool(((-bound.array if name == "min" else bound.array) >= limit).all())


def _bounded(call: Call, data: Tensor, bound: KnownValue) -> Elements:
    """Return Max or Min of data and known numbers; a Max with 0 is Relu."""
    op_type = call.node.op_type
    result = function_of(key_of("bound", op_type), [data, bound])
    keeps = bound.array <= 0 if op_type == "Max" else bound.array >= 0
    result = _zero_where((_is_nonzero(data) == 0) & keeps, result)
    is_relu = (bound.array == 0) & (op_type == "Max")
    if not is_relu.any():
        return result
    node = helper.make_node("Relu", ["x"], ["y"])
    (relu,) = function_of_elements(replace(call, node=node, attributes={}, inputs=[data]))
    assert isinstance(relu, Elements)
    pairs = zip(relu.draws, result.draws, strict=True)
    return replace(result, draws=tuple(np.where(is_relu, a, b) for a, b in pairs))


def _is_nonzero(value: Tensor) -> Array:
    """Return 1 where any draw of an element is not 0, else 0."""
    nonzero: Array = np.any([draw != 0 for draw in value.draws], axis=0).astype(np.float64)
    return nonzero


def _zero_where(zero: Array, result: Elements) -> Elements:
    draws = (np.where(zero, draw.dtype.type(0), draw) for draw in result.draws)
    return replace(result, draws=tuple(draws))


def _commutative(call: Call) -> list[Value]:
    shape = broadcast_shape([value.shape for value in call.tensors])
    for value in call.tensors:
        if isinstance(value, KnownValue) and _decides(call.node.op_type, value.array):
            array = np.full(shape, call.node.op_type == "Or")
            return [KnownValue(array)]
    total = sum(fingerprints(0, [value.draws], shape) for value in call.tensors)
    return [_of_multiset(call, np.asarray(total), call.tensors)]


def _less(first: Tensor, second: Tensor) -> Elements:
    return function_of(key_of("less"), [first, second])


def _selection(condition: Tensor, first: Tensor, second: Tensor) -> Elements:
    """Return Where as second + f(condition) * (first - second): a factor may move into both.

    That is wrong for NaN and Inf: Where(c, x, 0) hides such an x, Where(c, 1, 0) * x does not. So f
    is another function where an element may be hidden (`_may_hide`).
    """
    chosen = condition
    if not isinstance(condition, KnownValue):
        chosen = function_of(key_of("where"), [condition, _may_hide(first, second)])
    return plus(second, times(chosen, minus(first, second)))


def _may_hide(first: Tensor, second: Tensor) -> KnownValue:
    """Return where a constant is NaN or Inf, or one operand is 0 and the other no constant."""
    operands = first, second
    known = [value.array for value in operands if isinstance(value, KnownValue)]
    masks = [~np.isfinite(array) for array in known]
    if len(known) < len(operands):
        masks += [_is_nonzero(value) == 0 for value in operands]
    return KnownValue(reduce(np.logical_or, masks))


def _leaky_relu(call: Call) -> list[Value]:
    return [_leaky_product(call.tensor(0), KnownValue(np.array(call.attribute("alpha"))))]


def _leaky_product(data: Tensor, slope: Tensor) -> Elements:
    """Multiply negative elements by a slope, and all others by 1."""
    return times(data, _selection(_less(data, _ZERO), slope, _ONE))


def _extremum(call: Call) -> list[Value]:
    """Return Max or Min; of x and slope * x it is `_leaky_product` for certain slopes.

    If slope <= 1, slope * x <= x for positive x, and slope * x >= x for negative x; if slope >= 1,
    the other way round. A slope of 0 does not count, as it makes NaN of Inf.
    """
    if len(call.tensors) == 2 and call.element_type(0) in FLOATS:
        for data, scaled in (call.tensors, reversed(call.tensors)):
            slope = scaled.factor if isinstance(scaled, Elements) else None
            if slope is not None and _is_between(call.node.op_type, slope.array):
                with suppress(UnevaluableError):  # the product was moved, and fits no longer
                    if times(data, slope).digest() == scaled.digest():
                        return [_leaky_product(data, slope)]
    if len(call.tensors) == 2:
        for data, bound in (call.tensors, reversed(call.tensors)):
            if isinstance(bound, KnownValue) and isinstance(data, Elements):
                return [_bounded(call, data, bound)]
    return _commutative(call)


def _is_between(op_type: str, slope: Array) -> bool:
    mask = (slope != 0) & (slope <= 1) if op_type == "Max" else slope >= 1
    return bool((mask & np.isfinite(slope)).all())


def _decides(op_type: str, array: Array) -> bool:
    """Check whether one operand alone determines the result of And or Or."""
    if op_type == "And":
        return not array.any()
    return op_type == "Or" and bool(array.all())


def _of_multiset(call: Call, total: Array, operands: Sequence[Tensor]) -> Elements:
    """Return a random function of sums of fingerprints: of the elements, in any order."""
    name = _EXTREMA.get(call.node.op_type, call.node.op_type)
    draws = function(key_of("multiset", name), _words(total), total.shape[1:])
    return function_of(0, operands, draws=draws)


def _words(state: Array) -> list[Draws]:
    """Return fingerprints as operands of a function: each half of 64 bits in words of 16."""
    mask = np.uint64(0xFFFF)
    parts = [((state >> np.uint64(16 * i)) & mask).astype(np.float64) for i in range(4)]
    return [tuple(parts[i % len(parts)][half] for i in range(PRIME_COUNT)) for half in (0, 1)]


def _max_pool(call: Call) -> list[Value] | None:
    if any(call.node.output[1:]):
        return None
    data = call.tensor(0)
    windows = read_windows(call.attributes, call.attributes.get("kernel_shape", ()), data.shape[2:])
    total = windows.sums(fingerprints(0, [data.draws], data.shape))
    result = _of_multiset(call, total, [data])
    counts = windows.sums(np.ones((1, 1, *data.shape[2:])))
    # A window that holds only pads gives the lowest number of the type.
    result = _zero_where((windows.sums(_is_nonzero(data)) == 0) & (counts > 0), result)
    if counts.all():
        return [replace(result, grid=data.grid) if isinstance(data, Elements) else result]
    lowest = function_of(key_of("lowest", call.element_type(0)), [_ZERO])
    parts = zip(lowest.draws, result.draws, strict=True)
    return [replace(result, draws=tuple(np.where(counts, draw, low) for low, draw in parts))]


def _reduction(call: Call) -> list[Value] | None:
    data = call.tensor(0)
    axes = axes_of(call, len(data.shape))
    if axes is None:
        return None
    state = fingerprints(0, [data.draws], data.shape)
    total = state.sum(tuple(axis + 1 for axis in axes), dtype=np.uint64)
    return [_of_multiset(call, total.reshape(2, *reduced_extents(call, data.shape, axes)), [data])]


def _fused_conv(call: Call) -> list[Value]:
    """Apply the activation to a Conv and its addend (ONNX Runtime, contrib_defs.cc).

    Raises:
        UnevaluableError: an attribute has another type than that of a Conv: no checker looks at it.
    """
    types = {name: item.type for name, item in defs.get_schema("Conv").attributes.items()}
    if any(item.type != types.get(item.name, item.type) for item in call.node.attribute):
        raise UnevaluableError("an attribute has another type than that of a Conv")
    result = with_bias(convolution(call, call.tensor(0), call.tensor(1)), call.optional(2))
    addend = call.optional(3)
    total = result if addend is None else plus(result, addend)
    activation = [call.attributes.get(name) for name in ("activation", "activation_params")]
    # The operator has no schema, and onnx infers no type for a Conv with negative pads.
    result = function_of(key_of("activation", activation), [total])
    return [replace(result, element_type=call.element_type(0))]


def _resize(call: Call) -> list[Value] | None:
    """Return a function of the whole lines through a position, along the axes that change."""
    data, attributes = call.tensor(0), call.attributes
    scales, sizes = call.numbers(2 if call.opset >= 11 else 1), call.whole_numbers(3)
    rank = len(data.shape)
    is_plain = (
        attributes.get("coordinate_transformation_mode") != "tf_crop_and_resize"
        and attributes.get("keep_aspect_ratio_policy", "stretch") == "stretch"
        and not attributes.get("axes")
    )
    if is_plain and sizes is not None and sizes.shape == (rank,):
        extents, factors = [int(n) for n in sizes], [0.0] * rank
        axes = [i for i in range(rank) if extents[i] != data.shape[i]]
    elif is_plain and scales is not None and scales.shape == (rank,):
        factors = [float(scale) for scale in scales]
        if not all(0 < factor < math.inf for factor in factors):
            raise UnevaluableError(f"its scales are {factors}")
        ends = zip(data.shape, scales, strict=True)
        extents = [int(np.floor(np.float32(extent) * scale)) for extent, scale in ends]
        axes = [i for i in range(rank) if factors[i] != 1]
    else:
        return None
    lengths = [(data.shape[i], extents[i]) for i in axes]
    ratios = [(*pair, factors[i]) for i, pair in zip(axes, lengths, strict=True)]
    named_call = replace(call, attributes=_coordinates(call, lengths, [factors[i] for i in axes]))
    return [_along_lines(named_call, data, axes, [extents[i] for i in axes], ratios)]


def _coordinates(
    call: Call, lengths: Sequence[tuple[int, int]], factors: Sequence[float]
) -> RawAttributes:
    """Return the attributes of a Resize, with one name for modes that read the same positions.

    pytorch_half_pixel differs from half_pixel only where a new line has one position.
    """
    attributes = dict(call.attributes)
    mode = attributes.get("coordinate_transformation_mode")
    if mode == "pytorch_half_pixel" and all(new > 1 for _, new in lengths):
        mode = attributes["coordinate_transformation_mode"] = "half_pixel"
    rounding = attributes.get("nearest_mode")
    pairs = zip(lengths, factors, strict=True)
    is_floor = all(
        old and _is_floor(mode, rounding, factor or new / old) for (old, new), factor in pairs
    )
    if attributes.get("mode") == "nearest" and is_floor:
        attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return attributes


def _is_floor(mode: object, rounding: object, scale: float) -> bool:
    """Check whether the position that is nearest to a new position i is i // scale.

    By a whole scale (i + 1/2) / scale - 1/2 is never halfway between two positions. By 1.5 it is
    (4i - 1) / 6; rounded, with halves down, that is 2i // 3. So i / 2 is i // 2.
    """
    is_down = rounding == "round_prefer_floor"
    if mode == "asymmetric":
        return is_down and scale in (1, 2)
    is_rounded = is_down or rounding == "round_prefer_ceil"
    is_whole = scale % 1 == 0
    return mode == "half_pixel" and ((is_rounded and is_whole) or (is_down and scale == 1.5))


def _of_lines(call: Call) -> list[Value] | None:
    """Return random functions of the lines along an axis, whatever the number of the axis."""
    data, attributes = call.tensor(0), dict(call.attributes)
    rank, name, operand = len(data.shape), call.node.op_type, call.whole_numbers(1)
    axis, count, keepdims = (attributes.pop(key, None) for key in ("axis", "k", "keepdims"))
    if len(call.tensors) > 1:  # where the line runs, or how much of it is kept
        axis, count = (operand, count) if name == "CumSum" else (axis, operand)
    if axis is None or (name == "TopK" and count is None):
        return None
    start = from_first(_integer(axis), rank)
    stop = rank if name in COERCED and call.opset < 13 else start + 1
    axes = list(range(start, stop))
    extents = [data.shape[i] for i in axes]
    if name in ("ArgMax", "ArgMin"):
        extents = [1]
    elif count is not None:
        extents = [_integer(count)]
    line_call = replace(call, attributes=attributes, inputs=[data])
    results: list[Tensor] = [
        _along_lines(line_call, data, axes, extents, (i, count is not None and extents))
        for i in range(len(call.node.output))
    ]
    if keepdims == 0:
        results = [reshaped(result, reduced_extents(call, data.shape, axes)) for result in results]
    return list(results)


def _integer(number: Any) -> int:
    """Read an attribute or a tensor of one element: the runtime takes an axis of shape [1], too."""
    value = scalar(KnownValue(np.asarray(number)))
    assert isinstance(value, KnownValue)
    return int(value.array)


def _along_lines(
    call: Call, data: Tensor, axes: Sequence[int], extents: Sequence[int], description: object
) -> Elements:
    """Return a function of the lines of the data along some axes, and of the position on new lines.

    Args:
        call: the node.
        data: the data.
        axes: the axes of the lines.
        extents: extents of the result along these axes.
        description: names the function, beside the operator and its attributes.

    Raises:
        UnevaluableError: an extent is negative, or the result is too large.
    """
    if min(extents, default=0) < 0:
        raise UnevaluableError(f"its result would have {list(extents)} positions")
    other_axes = [i for i in range(len(data.shape)) if i not in axes]
    check_size([*(data.shape[i] for i in other_axes), *extents])
    lengths = [n if i in axes else 1 for i, n in enumerate(data.shape)]
    positions = np.arange(math.prod(lengths), dtype=np.float64).reshape(lengths)
    state = fingerprints(0, [data.draws, (positions,) * PRIME_COUNT], data.shape)
    total = state.sum(tuple(i + 1 for i in axes), dtype=np.uint64)
    result_positions = np.arange(math.prod(extents), dtype=np.float64).reshape(tuple(extents))
    states = total.reshape(*total.shape, *[1] * len(axes))
    shape = (*total.shape[1:], *extents)
    draws = function(
        call.key(description), [*_words(states), (result_positions,) * PRIME_COUNT], shape
    )
    order = np.argsort([*other_axes, *axes])
    return function_of(0, [data], draws=tuple(draw.transpose(*order) for draw in draws))


FUNCTIONS: Mapping[str, Meaning] = {
    **dict.fromkeys(sorted(ELEMENT_FUNCTIONS), function_of_elements),
    **dict.fromkeys(sorted(COMMUTATIVE), _commutative),
    **dict.fromkeys(sorted(LINES), _of_lines),
    **dict.fromkeys(sorted(REDUCTIONS), _reduction),
    "Clip": _clip,
    "com.microsoft.FusedConv": _fused_conv,
    "GlobalMaxPool": _reduction,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky_relu,
    "Less": meaning_of(_less),
    "Max": _extremum,
    "MaxPool": _max_pool,
    "Min": _extremum,
    "Pow": _power,
    "PRelu": meaning_of(_leaky_product),
    "Resize": _resize,
    "Sqrt": meaning_of(square_root),
    "Where": meaning_of(_selection),
}
