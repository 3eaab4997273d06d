"""Evaluate the operators of ONNX, as far as a proof needs to know them.

`polynomials` has the linear operators, `arithmetic` sums and products of elements and moves,
`functions` random functions of elements, windows and lines, `quantization` integers on a grid.
Every other operator is a random function of all that it reads: equal operands give equal values.
Different operands give different ones, except with a probability that `proving` bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx

from widthfold_onnx.evidence.proof.field import key_of, variables
from widthfold_onnx.evidence.proof.operators.arithmetic import MOVING, function_of, move, pad, run
from widthfold_onnx.evidence.proof.operators.functions import (
    COMMUTATIVE,
    ELEMENT_FUNCTIONS,
    FUNCTIONS,
    function_of_elements,
)
from widthfold_onnx.evidence.proof.operators.polynomials import INVERSES, POLYNOMIALS
from widthfold_onnx.evidence.proof.operators.quantization import QUANTIZATION
from widthfold_onnx.evidence.proof.values import (
    FLOATS,
    ROUNDED,
    Call,
    Elements,
    KnownValue,
    Meaning,
    OpaqueValue,
    Value,
)
from widthfold_onnx.model.proto.walk import FLAGS, is_default
from widthfold_onnx.model.shapes.inference import RawAttributes

MEANINGS: Mapping[str, Meaning] = {
    **FUNCTIONS,
    **dict.fromkeys(MOVING, move),
    "Pad": pad,
    **POLYNOMIALS,
    **QUANTIZATION,
}
"""By name of an operator (`operator`): a function that computes the results of a node, or returns
None if it does not describe the node."""

RANDOM = frozenset(
    {
        *("Bernoulli", "BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "Dropout"),
        *("Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    }
)
"""Operators whose nodes are sources of random numbers, each named by its outputs."""

WRAPPING = POLYNOMIALS.keys() - {"Cast", "Dropout", "Identity"}
"""Operators whose results wrap around on whole numbers, where the type ends."""

BROADCAST_OPERATORS = (
    ELEMENT_FUNCTIONS
    | COMMUTATIVE
    | {*("Add", "Div", "Less", "Mean", "Mul", "PRelu", "Sub", "Sum", "Where")}
)
"""Operators whose operands are broadcast as in numpy; before opset 7 they may be otherwise."""

OF_FLOATS = frozenset({"Div", "Less", "PRelu"})
"""Operators with another meaning on whole numbers: a quotient is truncated, a product wraps."""

COMPUTED = frozenset(
    {
        *("Add", "And", "Cast", "Ceil", "Cos", "CumSum", "Div", "Equal", "Erf", "Exp", "Floor"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Log", "MatMul", "Mean", "Mod"),
        *("Mul", "NonZero", "Not", "Or", "Pow", "QuantizeLinear", "Range", "Reciprocal"),
        *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Round", "Sigmoid"),
        *("Sin", "Sqrt", "Sub", "Sum", "Tanh", "Xor"),
    }
)
"""Operators that are computed on constants, beside `EXACT`: onnx's reference implementation (1.23)
knows all their versions."""

EXACT = frozenset(
    {
        *MOVING,
        *("Abs", "Clip", "ConstantOfShape", "DequantizeLinear", "EyeLike", "Identity", "Max"),
        *("Min", "Neg", "OneHot", "Pad", "Relu", "ScatterElements", "ScatterND", "Sign", "Where"),
    }
)
"""Operators that are computed on constants, and round nothing, or once in every runtime alike."""


_ZERO_IF_LEFT_OUT = {"GRU": (3, 5), "LSTM": (3, 5, 6, 7), "RNN": (3, 5)}
"""Inputs that are zero where they are left out, as the operator text says."""

_ACTIVATIONS = {"GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"], "RNN": ["Tanh"]}
"""Activations of one direction where they are left out, as the operator text says."""


_LENGTHS = 4
"""Input of an RNN that holds the length of each sequence; all have the full one without it."""


def operator(node: onnx.NodeProto) -> str:
    """Name the operator of a node, with its domain where that is not the default one."""
    return node.op_type if is_default(node, node.op_type) else f"{node.domain}.{node.op_type}"


def is_function(node: onnx.NodeProto) -> bool:
    """Check whether an operator is a random function of its inputs, not sums and products only."""
    name = operator(node)
    return name in INVERSES or name not in {*MOVING, *POLYNOMIALS, "DequantizeLinear", "Pad"}


def evaluate(call: Call, *, is_exact: bool = False) -> tuple[list[Value], bool]:
    """Compute the outputs of a node.

    Args:
        call: the node.
        is_exact: compute constants of floats as elements, so that they are not rounded.

    Returns:
        The outputs, and whether they are random functions of all that the node reads.

    Raises:
        UnevaluableError: no runtime could compute it on these inputs.
    """
    node = call.node
    source = node.output if node.op_type in RANDOM else ()
    has_odd_flag = any(call.attributes.get(name) not in (None, 0, 1) for name in FLAGS)
    if has_odd_flag or any(isinstance(value, OpaqueValue) for value in call.inputs):
        return unknown_function(call, *source), True
    if is_default(node, "Shape", "Size"):
        return [_extents(call)], False
    is_constant = not source and all(isinstance(value, KnownValue) for value in call.tensors)
    constants = _of_constants(call) if is_constant else None
    if constants is not None and not (is_exact and any(value.rounded for value in constants)):
        return list(constants), False
    result = _of_elements(call)
    results = unknown_function(call, *source) if result is None else result
    # Their computation rounds these constants.
    return [
        replace(value, constants=ROUNDED) if is_constant and isinstance(value, Elements) else value
        for value in results
    ], result is None


def _of_elements(call: Call) -> list[Value] | None:
    """Compute a node on elements; None where no entry of `MEANINGS` describes it.

    Raises:
        UnevaluableError: no runtime could compute it. A meaning checks its operands and attributes
            itself; what else it raises is a fault of ours.
    """
    name = operator(call.node)
    meaning = MEANINGS.get(name)
    if name in OF_FLOATS and call.element_type(0) not in FLOATS:
        meaning = function_of_elements
    are_numbers = all(v.is_numeric for v in call.tensors if isinstance(v, KnownValue))
    if (
        meaning is None
        or not are_numbers
        or (name in BROADCAST_OPERATORS and not call.broadcasts())
    ):
        return None
    result = meaning(call)
    if result is not None and name in WRAPPING and call.element_type(0) not in (*FLOATS, 0):
        key = key_of("whole numbers", call.element_type(0))
        return [function_of(key, [value]) for value in result if isinstance(value, Elements)]
    return result


def unknown_function(call: Call, *sources: str) -> list[Value]:
    """Return the outputs of a node as random functions of all that it reads.

    Args:
        call: the node.
        sources: more on which the outputs depend: digests of the graphs in the node, for instance.
    """
    name = operator(call.node)
    zero = {i for i in _ZERO_IF_LEFT_OUT.get(name, ()) if i < len(call.inputs)}
    inputs = [
        None if i in zero and _is_zero(value) else value for i, value in enumerate(call.inputs)
    ]
    if _has_full_lengths(call):
        inputs[_LENGTHS] = None
    call = replace(call, inputs=inputs)
    if name in _ACTIVATIONS:
        call = replace(call, attributes=_with_activations(call))
    digests = [b"" if value is None else value.digest() for value in inputs]
    while digests and not digests[-1]:
        digests.pop()
    results: list[Value] = []
    for i, shape in enumerate(call.shapes):
        key = call.key(i, digests, *sources, version=call.version)
        # Empty tensors are equal whatever computed them, so a wrong rank would not be seen.
        value = (
            OpaqueValue(key)
            if shape is None or 0 in shape
            else Elements(variables(key_of(key), shape))
        )
        results.append(value)
    return results


def _with_activations(call: Call) -> RawAttributes:
    """Return the attributes of an RNN with its activations, one list for each direction.

    The schema of RNN has two defaults, also where there is one direction.
    """
    defaults = _ACTIVATIONS[call.node.op_type]
    directions = 2 if call.attributes.get("direction") == "bidirectional" else 1
    names = call.attributes.get("activations") or defaults * directions
    return {**call.attributes, "activations": names[: len(defaults) * directions]}


def _is_zero(value: Value | None) -> bool:
    return isinstance(value, KnownValue | Elements) and not any(draw.any() for draw in value.draws)


def _has_full_lengths(call: Call) -> bool:
    """Check whether an RNN has the lengths of sequences that stand for those left out."""
    value, data = (call.inputs[i] if i < len(call.inputs) else None for i in (_LENGTHS, 0))
    if (
        operator(call.node) not in _ACTIVATIONS
        or not isinstance(value, KnownValue)
        or not isinstance(data, KnownValue | Elements)
        or len(data.shape) != 3
    ):
        return False
    length, batch, _ = data.shape
    if call.attributes.get("layout"):
        length, batch = batch, length
    return value.shape == (batch,) and bool((value.array == length).all())


def _extents(call: Call) -> KnownValue:
    shape = call.tensor(0).shape
    if call.node.op_type == "Size":
        return KnownValue(np.array(np.prod(shape, dtype=np.int64)))
    start, end = call.attributes.get("start", 0), call.attributes.get("end", len(shape))
    return KnownValue(np.array(shape[start:end], np.int64))


def _of_constants(call: Call) -> list[KnownValue] | None:
    """Compute a node on numbers; None where the reference implementation may not know it."""
    name = operator(call.node)
    if name not in COMPUTED | EXACT or (name in COMPUTED and not call.is_modern()):
        return None
    operands = [value.array if isinstance(value, KnownValue) else None for value in call.inputs]
    arrays = run(call, operands)
    if arrays is None:
        return None
    constants = [value for value in call.inputs if isinstance(value, KnownValue)]
    rounds = call.node.op_type not in EXACT
    return [
        KnownValue(
            array,
            rounded=any(v.rounded for v in constants) or (rounds and array.dtype.kind == "f"),
        )
        for array in arrays
    ]
