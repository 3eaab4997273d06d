"""Read a linear node by the description of its operator, or say why it is left alone.

Samples of a batch must not mix, but a graph does not say which axis is its batch. `_samples_of`
takes the first axis of every required input with two or more axes for it. So the rows of a matrix
that is an input are samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from widthfold_onnx.algebra.axis import ConvAxis
from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.document import Document, Node, Value, constant_of
from widthfold_onnx.model.linking import Scope, shown_name
from widthfold_onnx.model.proto.dims import dims_of
from widthfold_onnx.model.proto.walk import operator_of, required_inputs
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.operators.base import MIN_OPSET, Operator
from widthfold_onnx.operators.matmul import Product
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.layers import (
    ITEMSIZE,
    ConvLayer,
    Layer,
    ProductLayer,
    SampleCounts,
    Site,
)
from widthfold_onnx.rules.op import can_shuffle, node_problem
from widthfold_onnx.rules.quantization import (
    BYTE_TYPES,
    ExtentsOf,
    Parameter,
    Quantization,
    dequantizer_before_moves,
    exact_dequantizer,
    is_finite,
    quantization_problem,
    read_parameter,
    read_quantization,
    read_scales,
)

ACCUMULATOR = np.iinfo(np.int32).max

WEIGHT_CODES = {
    Code.NOT_CONSTANT: Code.WEIGHT_NOT_CONSTANT,
    Code.TRAINED: Code.WEIGHT_TRAINED,
    Code.OVERRIDABLE: Code.WEIGHT_OVERRIDABLE,
    Code.TOO_LARGE: Code.WEIGHT_NOT_EVALUATED,
}
"""The code of a layer whose weight cannot be read, by the code of `Document.constant`."""

BIAS_CODES = {
    Code.NOT_CONSTANT: Code.BIAS_NOT_CONSTANT,
    Code.TRAINED: Code.BIAS_TRAINED,
    Code.OVERRIDABLE: Code.BIAS_OVERRIDABLE,
    Code.TOO_LARGE: Code.BIAS_NOT_EVALUATED,
}
"""The code of a layer whose bias cannot be read, likewise."""


def read_layer(
    document: Document, site: Site, fixed: ExtentsOf, planned: ExtentsOf
) -> Layer | Refusal:
    """Collect weight, bias, quantization, shapes and geometry of a node.

    Refuses a node that lies in a function, has an unsupported element type, no constant weight, a
    bias that is not constant, or data of unknown rank; also a quantized node that
    `rules.quantization` refuses, or whose sums may leave int32.

    Args:
        document: the model.
        site: the node.
        fixed: extents that the model itself fixes.
        planned: extents that are planned with.
    """
    node = site.node
    operator = place_problem(document, site.scope, node) or _operator(document, node)
    if isinstance(operator, Refusal):
        return operator
    constants = _parameters(document, node, operator, planned)
    if isinstance(constants, Refusal):
        return constants
    parameters, quantization = constants
    data, weight = node.inputs[operator.inputs.data], parameters[operator.inputs.weight]
    assert data is not None
    if fixed(data) is None or planned(data) is None:
        return _unknown_rank(data, fixed)
    shapes = _shapes(node, operator, weight.constant, fixed(data) or (), planned(data) or ())
    if isinstance(shapes, Refusal):
        return shapes
    fixed_dims, planned_dims, shape = shapes
    axes = _axes(node, planned_dims, fixed_dims, shape, operator)
    if isinstance(axes, Refusal):
        return axes
    is_float = quantization is None or quantization.dequantized
    family: Callable[..., Layer] = ConvLayer
    traits: dict[str, object] = {"shuffles": _shuffles(document, site)}
    if isinstance(operator, Product):
        stored = fixed(data) or ()
        order = operator.stored_order(node, len(stored))
        family = ProductLayer
        traits = {"samples": _samples_of(document, stored, order), "stored_rank": len(stored)}
    result = family(
        **vars(site),
        **traits,
        operator=operator,
        fixed_shape=fixed_dims,
        planned_shape=planned_dims,
        opset=document.opset,
        weight_shape=shape,
        group=operator.group(node),
        axes=axes,
        parameters=parameters,
        quantization=quantization,
        filler=_filler(document, weight, shape),
        is_finite=not is_float or is_finite(document, node, data),
        dequantizer=exact_dequantizer(document, data),
        read_weight=lambda: document.read(weight.constant),
    )
    return result.problem() or _overflow_problem(document, result) or result


def unknown_since(value: Value, is_known: Callable[[Value], bool]) -> str:
    """Name the operator from which on nothing is known, and say what the owner of the model can do.

    Args:
        value: the value.
        is_known: whether the extents of a value, or its rank, are known.

    Returns:
        The text; "" if the value comes from an input.
    """
    while (node := value.producer()) is not None:
        operand = next((v for v in node.inputs if v is not None and not is_known(v)), None)
        if operand is None:
            return (
                f"nothing tells the extents of what {node.op_type} {shown_name(node)} returns; if "
                "they are the same at every run, declare them in value_info"
            )
        value = operand
    return ""


def place_problem(document: Document, scope: Scope, node: Node) -> Refusal | None:
    """Refuse a node that no rule can replace: in a function, on several devices, by its flags."""
    if scope.proto is None:
        return Refusal(
            Code.IN_FUNCTION, f"the function cannot be inlined: {document.why_not_inlined}"
        )
    return node_problem(node)


def _operator(document: Document, node: Node) -> Operator | Refusal:
    """Return the description that holds for a node, for the operand that is constant."""
    descriptions, problems = [], []
    for operator in OPERATORS[operator_of(node)]:
        problem = _opset_problem(document, node, operator) or operator.problem(node)
        if problem is None:
            descriptions.append(operator)
        else:
            problems.append(problem)
    if not descriptions:
        return problems[0]
    if len(descriptions) == 1:
        return descriptions[0]
    weights = {}
    for operator in descriptions:
        value = node.inputs[operator.inputs.weight]
        assert value is not None
        weights[operator] = document.constant(value)
    readable = [operator for operator, c in weights.items() if isinstance(c, Constant)]
    if len(readable) == 1:
        return readable[0]
    if readable:
        return Refusal(
            Code.CONSTANT_PRODUCT, "both operands are constant: no data flows through it"
        )
    right_problem, left_problem = (c for c in weights.values() if isinstance(c, Refusal))
    code = right_problem.code if left_problem.code == Code.NOT_CONSTANT else left_problem.code
    reason = f"neither operand is a constant weight: {left_problem.reason}; {right_problem.reason}"
    return Refusal(WEIGHT_CODES[code], reason)


def _opset_problem(document: Document, node: Node, operator: Operator) -> Refusal | None:
    least = operator.min_opset
    if document.opset >= least:
        return None
    subject = "opset" if least == MIN_OPSET else f"{node.op_type} at opset"
    return Refusal(Code.OPSET_TOO_OLD, f"{subject} {document.opset} is below {least}")


def _parameters(
    document: Document, node: Node, operator: Operator, extents: ExtentsOf
) -> tuple[Mapping[int, Parameter], Quantization | None] | Refusal:
    """Return the constants that a fold changes, and the quantization of the data."""
    quantization = read_quantization(document, node, operator)
    if isinstance(quantization, Refusal):
        return quantization
    is_dequantized = quantization is not None and quantization.dequantized
    inputs = operator.inputs
    reads_dequantized = (
        operator.bias_per_channel and dequantizer_before_moves(node.inputs[inputs.data]) is not None
    )
    weight = read_parameter(document, node, inputs.weight, dequantized=is_dequantized)
    bias = read_parameter(
        document, node, inputs.bias, dequantized=is_dequantized or reads_dequantized
    )
    if isinstance(weight, Refusal):
        return Refusal(WEIGHT_CODES.get(weight.code, weight.code), f"the weight {weight.reason}")
    if isinstance(bias, Refusal):
        return Refusal(BIAS_CODES.get(bias.code, bias.code), f"the bias {bias.reason}")
    assert weight is not None
    operands = [v for i, v in enumerate(node.inputs) if v is not None and i != inputs.data]
    if any(map(document.is_annotated, (*operands, weight.constant.value))):
        return Refusal(Code.WEIGHT_ANNOTATED, "a quantization annotation describes the weight")
    dtype = weight.constant.dtype
    dtypes = BYTE_TYPES if operator.takes_integers else tuple(ITEMSIZE)
    if not is_dequantized and dtype not in dtypes:
        return Refusal(Code.DTYPE_UNSUPPORTED, f"elements are {dtype}; {', '.join(dtypes)} fold")
    parameters = {inputs.weight: weight}
    if bias is not None and inputs.bias is not None:
        parameters[inputs.bias] = bias
    if quantization is None:
        return parameters, None
    problem = quantization_problem(document, node, quantization, parameters, operator)
    if problem is not None:
        return problem
    scales = read_scales(document, node, operator, extents, weight.constant.shape)
    if isinstance(scales, Refusal):
        return scales
    zero = None if inputs.weight_zero is None else scales.get(inputs.weight_zero)
    if zero is not None:
        parameters[inputs.weight] = replace(weight, zero=zero.constant)
    return {**parameters, **scales}, quantization


def _unknown_rank(data: Value, fixed: ExtentsOf) -> Refusal:
    """Refuse data of unknown rank, with the operator behind which the rank is lost."""
    origin = unknown_since(data, lambda value: fixed(value) is not None)
    reasons = filter(None, ("the rank of the input is not known", origin))
    return Refusal(Code.UNKNOWN_SHAPE, "; ".join(reasons))


def _shapes(
    node: Node, operator: Operator, weight: Constant, fixed: Dims, planned: Dims
) -> tuple[Dims, Dims, tuple[int, ...]] | Refusal:
    """Return three shapes: the data's fixed and planned ones, and the weight's.

    The data is as the operator reads it, the weight is [O, C/group, *kernel].
    """
    problem = operator.data_problem(node, planned, weight.shape)
    if problem is not None:
        return problem
    if 0 in planned or 0 in weight.shape:
        return Refusal(
            Code.EMPTY_TENSOR, f"input {list(planned)} or weight {list(weight.shape)} is empty"
        )
    shape = operator.canonical_weight(np.broadcast_to(np.int8(0), weight.shape), node).shape
    channels = shape[1] * operator.group(node)
    fixed_dims, planned_dims = (
        operator.data_shape(node, dims, channels) for dims in (fixed, planned)
    )
    return fixed_dims, planned_dims, shape


def _shuffles(document: Document, site: Site) -> bool:
    """Check whether a DepthToSpace can return the result of a node."""
    name = site.node.outputs[0].name or ""
    element_type = document.shapes.element_type(site.scope.path, name)
    return can_shuffle(document.opset, element_type)


def _samples_of(document: Document, data: Dims, order: Sequence[int]) -> tuple[SampleCounts, ...]:
    """Return how many samples of a batch each axis of a product's data may count.

    Args:
        document: the model.
        data: extents of the data as it is stored; None where the model leaves them open.
        order: axis of the stored data for each axis that the product reads.
    """
    shapes = (dims_of(value) for value in required_inputs(document.proto))
    batches = {dims[0] for dims in shapes if dims is not None and len(dims) > 1}
    first, second = data[:2]
    later = frozenset({second} if first not in batches and second in batches else ())
    if len(data) > 2:
        counts = (SampleCounts() if later else SampleCounts({first}), later)
    else:
        counts = (SampleCounts({None} if first is None else batches - {None}), later)
    return tuple(counts[axis] if axis < len(counts) else SampleCounts() for axis in order)


def _overflow_problem(document: Document, layer: Layer) -> Refusal | None:
    """Refuse a weight with which a sum of 8-bit products may leave int32 for some data.

    A structural zero adds (zero - zero) * x = 0, so a folded sum equals the sum of the original,
    and overflows where that does. A kernel that sums q * p and subtracts the zero points' part
    afterwards may leave int32 on the way, at other places than the original does. The result is
    still right, because both sums are equal modulo 2**32.
    """
    quantization = layer.quantization
    if quantization is None or quantization.dtype not in BYTE_TYPES:
        return None  # no runtime sums such products in int32
    weight = layer.canonical_weight()
    if weight.dtype.itemsize > 1:
        return None
    limits = np.iinfo(quantization.dtype.lower())
    constant = constant_of(document, quantization.zero)
    low, high = limits.min, limits.max
    if constant is not None and 0 not in constant.shape:
        low, high = (int(f(document.read(constant))) for f in (np.min, np.max))
    elif quantization.zero is None:
        low = high = 0
    largest = max(limits.max - low, high - limits.min)
    magnitudes = np.abs(weight.astype(np.int64) - layer.filler.astype(np.int64))
    sums = largest * magnitudes.sum(axis=tuple(range(1, weight.ndim)))
    bias = None if layer.bias is None else document.read(layer.bias)
    if bias is not None and bias.dtype.kind in "iu":
        sums = sums + np.abs(bias.astype(np.int64))
    if sums.max(initial=0) <= ACCUMULATOR:
        return None
    return Refusal(
        Code.ACCUMULATOR_OVERFLOW,
        f"a sum may reach {int(sums.max())}, more than the {ACCUMULATOR} that int32 holds",
    )


def _axes(
    node: Node, dims: Dims, fixed: Dims, weight: tuple[int, ...], operator: Operator
) -> tuple[ConvAxis, ...] | Refusal:
    """Return the axes of positions at planned extents; an axis that is not fixed is open."""
    axes = operator.axes(node, dims, weight)
    if isinstance(axes, Refusal):
        return axes
    lengths = [axis.out_length for axis in axes]
    if any(length is not None and length < 1 for length in lengths):
        return Refusal(Code.EMPTY_TENSOR, f"the output would have the extents {lengths}")
    positions = []
    for axis, extent in zip(axes, fixed[-len(axes) :], strict=True):
        period = operator.pad_period(node, axis) if extent is None else 1
        if period is None:
            return Refusal(
                Code.UNKNOWN_EXTENT,
                "output_shape pads by the input's extent, which the model leaves open",
            )
        positions.append(replace(axis, is_open=extent is None, pad_period=period))
    return tuple(positions)


def _filler(document: Document, weight: Parameter, shape: tuple[int, ...]) -> Array:
    """Return the weight's zero point so that it broadcasts against `shape`; groups share theirs."""
    if weight.zero is None:
        return np.zeros((), np.int8)
    numbers = document.read(weight.zero)
    if numbers.size == 1:
        return numbers.reshape(())
    return np.tile(numbers.ravel(), shape[0] // numbers.size).reshape(-1, *[1] * (len(shape) - 1))
