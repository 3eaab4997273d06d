"""Read quantized nodes: find their integers, zero points and scales, as ONNX Runtime finds them.

    QLinearConv, ConvInteger, ...   multiply integers, and take zero points and scales as inputs
    DequantizeLinear - Conv, ...    states the same for two tensors of integers (QDQ): if a
                                    QuantizeLinear follows, a runtime computes it as a QLinearConv

An integer q stands for (q - zero point) * scale. So the structural zeros of a folded weight are the
zero point of the weight, and data is extended by the zero point of the data. Numbers per output
channel are repeated for every tile; all other scales and zero points stay. The weight is folded
as stored integers, and dequantized behind the fold. Numbers per position (operator texts,
MatMulInteger-10 and QLinearMatMul-21) cannot be folded, as one folded position is several.

A runtime recognizes moves of integers as DequantizeLinear - moves - QuantizeLinear. So the rewrite
puts a QuantizeLinear and a DequantizeLinear with the same scale and zero point behind moves of
dequantized data. The pair is an identity on dequantized numbers: `dequantizer_problem` tries all.
Without them ONNX Runtime puts such a pair behind every move itself, and fails at int8 from opset 21
on: it sets the type as an attribute, and does not update that when it makes the bytes unsigned
(1.31.1, qdq_propagation.cc and qdq_s8_to_u8.cc: "output_dtype INT8 does not match y_zero_point type
UINT8").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.model.constants import Constant, computed_from
from widthfold_onnx.model.document import (
    Document,
    Node,
    Value,
    constant_of,
    graph_of,
    input_of,
)
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.operators.base import Operator
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.text import printable

BITS_8_AND_16 = ("INT8", "UINT8", "INT16", "UINT16")
SELECTING = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Ops whose results are elements of the data. ONNX Runtime moves a DequantizeLinear behind them
(qdq_propagation.cc), and so computes the next op in integers."""
REMOVED = ("Dropout", "Identity")
"""Ops that ONNX Runtime removes before it moves a DequantizeLinear."""


def dequantizer(value: Value | None) -> Node | None:
    """Return the DequantizeLinear that makes a value, if one does."""
    node = None if value is None else value.producer()
    return node if node is not None and is_default(node, "DequantizeLinear") else None


def dequantizer_before_moves(value: Value | None) -> Node | None:
    """Return the DequantizeLinear of a value, with only moves and selections in between.

    None behind a Dropout, which may drop elements where it trains. None behind a MaxPool with
    ceil_mode: a window may lie in its padding, and hold no element of the data.
    """
    start, nodes = before_moves(value)
    drops = any(is_default(n, "Dropout") or n.attributes.get_int("ceil_mode", 0) for n in nodes)
    return None if drops else dequantizer(start)


def before_moves(value: Value | None) -> tuple[Value | None, Sequence[Node]]:
    """Follow a value back through moves and selections: return the value before, and the nodes.

    The last node comes first.
    """
    nodes: list[Node] = []
    while value is not None and (node := value.producer()) is not None:
        if value is not node.outputs[0] or not is_default(node, *SELECTING, *REMOVED):
            break
        nodes.append(node)
        value = node.inputs[0]
    return value, nodes


def runtime_moves_dequantizer(value: Value | None) -> bool:
    """Check whether ONNX Runtime moves a DequantizeLinear to just before the readers of a value.

    ONNX Runtime aborts if an If, Loop or Scan captures such a value: it looks for the value among
    the explicit inputs of the node (1.31.1, qdq_propagation.cc, from the basic level on).
    """
    start, nodes = before_moves(value)
    has_moves = any(is_default(node, *SELECTING) for node in nodes)
    return has_moves and dequantizer(start) is not None


def is_finite(document: Document, node: Node, value: Value | None) -> bool:
    """Check whether a value that a node reads is dequantized, and never Inf or NaN.

    That is so if its scale is constant, and scale * 2**bits is finite: no integer is farther than
    2**bits from its zero point.
    """
    maker = dequantizer_before_moves(value)
    if maker is None:
        return False
    scale = constant_of(document, maker.inputs[1])
    kind = element_type(document, node, input_of(maker, 2), maker.inputs[0])
    if scale is None or isinstance(kind, Refusal):
        return False
    if not kind.startswith(("INT", "UINT")):
        return False  # 8-bit floats include NaN
    numbers = document.read(scale)
    with np.errstate(over="ignore", invalid="ignore"):
        widest = numbers * numbers.dtype.type(2.0 ** int(kind.lstrip("UINT")))
    return bool(np.isfinite(widest).all())


def exact_dequantizer(document: Document, value: Value | None) -> Node | None:
    """Return the DequantizeLinear of a moved value, if quantizing again gives back every number."""
    return None if dequantizer_problem(document, value) else dequantizer_before_moves(value)


def dequantizer_problem(document: Document, value: Value | None) -> Refusal | None:
    """Refuse a dequantized value that changes if it is quantized again; None for other values.

    Its scale and zero point must be single constants that give back every integer.
    """
    maker = dequantizer_before_moves(value)
    if maker is None:
        return None
    parameters = [constant_of(document, value) for value in maker.inputs[1:]]
    constants = [c for c in parameters if c is not None and is_single(c.shape)]
    if len(constants) != 2:  # scale and zero point
        return quantized_refusal(
            "the data is dequantized with other than one constant scale and zero point"
        )
    extra_attributes = sorted(maker.attributes.keys() - {"axis"})
    if extra_attributes:
        return quantized_refusal(f"the data is dequantized with {', '.join(extra_attributes)}")
    types = [constant.dtype for constant in constants]
    if types[0] != "FLOAT" or types[1] not in BITS_8_AND_16:
        return quantized_refusal(f"the data is dequantized from {types[1]} to {types[0]}")
    if not _gives_back(*map(document.read, constants)):
        return quantized_refusal("the scale of the data does not give back every number")
    return None


def quantized_refusal(reason: str) -> Refusal:
    """Return the refusal of a node whose data is dequantized."""
    return Refusal(Code.QUANTIZED, f"a runtime computes it in integers, and {reason}")


def element_type(document: Document, node: Node, *values: Value | None) -> str | Refusal:
    """Return the first known element type of values that a node reads.

    The values are data and zero point, which have the same type; only one may be known.
    """
    for value in values:
        kind = 0 if value is None else document.element_type(graph_of(node), value.name or "")
        if kind:
            return str(onnx.TensorProto.DataType.Name(kind))
    return Refusal(Code.UNKNOWN_TYPE, "the element type of the data is not known")


def is_single(shape: Dims) -> bool:
    """Check whether these are extents of a single number: [] or [1].

    [1, 1] counts as one number per channel.
    """
    return shape in ((), (1,))


def _gives_back(scale: Array, zero: Array) -> bool:
    """Check whether quantizing every dequantized number gives it back (operator texts)."""
    limits = np.iinfo(zero.dtype)
    scale = scale.reshape(())
    integers = np.arange(limits.min, limits.max + 1)
    offset = int(zero.reshape(()))
    with np.errstate(all="ignore"):
        results = np.rint((integers - offset).astype(np.float32) * scale / scale) + offset
    # With a subnormal scale a kernel may flush numbers to 0, or multiply by a reciprocal of Inf.
    return bool(scale >= np.finfo(np.float32).tiny and np.array_equal(results, integers))


@dataclass(frozen=True, eq=False)
class Parameter:
    """A constant of a node, and the scale and zero point that dequantize it.

    Attributes:
        constant: the numbers, moved as the node reads them.
        maker: the DequantizeLinear that makes them floats, if integers are folded.
        scale: scale of the numbers, by `maker` or another input of the node; None where there is
            none or it is computed.
        zero: likewise the zero point.
        axis: the axis of `constant` along which scale and zero point of `maker` differ.
    """

    constant: Constant
    maker: Node | None = None
    scale: Constant | None = None
    zero: Constant | None = None
    axis: int = 0

    @property
    def vectors(self) -> Iterator[Constant]:
        """Scale and zero point of `maker`, if they hold one number per output channel."""
        if self.maker is not None:
            yield from (c for c in (self.scale, self.zero) if c and not is_single(c.shape))


def read_parameter(
    document: Document, node: Node, index: int | None, *, dequantized: bool
) -> Parameter | Refusal | None:
    """Read a constant input of a node; None where it is left out.

    Args:
        document: the model.
        node: the node.
        index: index of the input.
        dequantized: read the integers before a DequantizeLinear, if there is one.

    DequantizeLinear and moves commute: moves behind it are applied to the integers before it.
    """
    value = input_of(node, index)
    if value is None:
        return None
    # What the node reads is computed as well: it is refused if it cannot be computed.
    constant = document.constant(value)
    maker = dequantizer_before_moves(value) if dequantized else None
    if isinstance(constant, Refusal) or maker is None:
        return constant if isinstance(constant, Refusal) else Parameter(constant)
    numbers, scale, zero = (constant_of(document, input_of(maker, i)) for i in range(3))
    assert numbers is not None  # else what the node reads would be no constant
    moves = before_moves(value)[1][::-1]
    axis = maker.attributes.get_int("axis", 1) % max(len(numbers.shape), 1)
    vector = next((c for c in (scale, zero) if c is not None and not is_single(c.shape)), None)
    moved_axis = axis if vector is None else _moved_axis(document, numbers.shape, axis, moves)
    if moved_axis is None:
        return Refusal(
            Code.QUANTIZED,
            f"{printable(value.name or '')} has scales or zero points that differ along none of "
            "its axes alone",
        )
    return Parameter(document.moved(numbers, moves), maker, scale, zero, moved_axis)


def _moved_axis(
    document: Document, shape: tuple[int, ...], axis: int, moves: Sequence[Node]
) -> int | None:
    """Return what an axis has become after moves; None if no axis has the same positions."""
    indices = np.arange(shape[axis], dtype=np.int32)
    before = np.broadcast_to(_along(indices, axis, len(shape)), shape)
    after = document.moved_array(before, moves)
    for moved_axis, extent in enumerate(after.shape):
        if extent == shape[axis] and np.array_equal(
            after, np.broadcast_to(_along(indices, moved_axis, after.ndim), after.shape)
        ):
            return moved_axis
    return None


def _along(vector: Array, axis: int, rank: int) -> Array:
    """Return a vector as an array of a rank, along one of its axes."""
    return vector.reshape([-1 if i == axis else 1 for i in range(rank)])


ExtentsOf = Callable[[Value], Dims | None]
"""Extents of a value; None where not even the rank is known."""

BYTE_TYPES = ("INT8", "UINT8")
"""Element types that operators of integers multiply (operator texts)."""
INTEGER_PAD_OPSET = 11
"""First operator set whose Pad takes integers (operator text)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Quantization:
    """The quantization of the data of a node.

    Attributes:
        dequantized: data and weight are dequantized (`dequantizer_before_moves`); else the operator
            itself takes integers.
        dtype: ONNX name of the element type of the integers that the data is.
        zero: zero point of the data; None where it is left out, which means 0.
        extends: whether the operator set has a Pad for the data, which may be integers.
        cuts: whether the runtime still computes in integers if a Slice cuts the result. If the
            data is dequantized, a QuantizeLinear must follow directly: even a Relu between them
            keeps the node in floats.
    """

    dequantized: bool
    dtype: str
    zero: Value | None
    extends: bool
    cuts: bool


def read_quantization(
    document: Document, node: Node, operator: Operator
) -> Quantization | Refusal | None:
    """Return the quantization of a node's data.

    None unless the operator takes integers, or data and weight are dequantized.
    """
    inputs = operator.inputs
    data, zero = node.inputs[inputs.data], input_of(node, inputs.data_zero)
    weight, maker = node.inputs[inputs.weight], dequantizer_before_moves(data)
    if maker is not None and dequantizer_before_moves(weight) is None:
        if _was_dequantized(weight):
            return Refusal(
                Code.QUANTIZED,
                "the weight is dequantized and then changed: folded, a runtime would round it to "
                "8 bits again",
            )
        maker = None
    if maker is None and not operator.takes_integers:
        return None
    if maker is not None:
        data, zero = maker.inputs[0], input_of(maker, 2)
    dtype = element_type(document, node, zero, data)
    if isinstance(dtype, Refusal):
        return dtype
    if maker is None:
        extends = document.opset >= INTEGER_PAD_OPSET
        return Quantization(dequantized=False, dtype=dtype, zero=zero, extends=extends, cuts=True)
    result = node.outputs[0]
    is_quantized = all(is_default(user, "QuantizeLinear") for user, _ in result.uses())
    cuts = is_quantized and not result.is_graph_output()
    return Quantization(dequantized=True, dtype=dtype, zero=zero, extends=True, cuts=cuts)


def _was_dequantized(value: Value | None) -> bool:
    """Check whether a DequantizeLinear is among the ops that compute a constant."""
    while value is not None and (sources := computed_from(value)):
        if dequantizer(value) is not None:
            return True
        value = sources[0]
    return False


def read_scales(
    document: Document,
    node: Node,
    operator: Operator,
    extents: ExtentsOf,
    weight: tuple[int, ...],
) -> dict[int, Parameter] | Refusal:
    """Read the scales and zero points that an operator of integers takes as inputs.

    Args:
        document: the model.
        node: the node.
        operator: its description.
        extents: extents of computed inputs.
        weight: extents of the stored weight.

    Returns:
        The inputs with one number per output channel, and the weight's zero point, by index. A
        refusal if that zero point is computed, as structural zeros have no value then; also if an
        input differs between positions, or is computed and per channel.
    """
    inputs = operator.inputs
    axis = operator.out_axis(node, len(weight))
    parameters: dict[int, Parameter] = {}
    for owner, indices, per_channel in operator.scales:
        for role, index in zip(("scale", "zero point"), indices, strict=True):
            value = input_of(node, index)
            if value is None or index is None:
                continue
            name = f"the {role} of the {owner}"
            constant = document.constant(value)
            if isinstance(constant, Refusal) and index == inputs.weight_zero:
                return Refusal(
                    Code.WEIGHT_ZERO_POINT_COMPUTED,
                    f"{name} {constant.reason}: what fills the gaps of the weight is not known",
                )
            shape = constant.shape if isinstance(constant, Constant) else extents(value)
            if shape is None or None in shape:
                return Refusal(Code.UNKNOWN_SHAPE, f"how many numbers {name} has is not known")
            if not is_single(shape):
                has = f"{name} has the extents {list(shape)}"
                if not per_channel:
                    reason = f"{has}, so it differs between positions that become one"
                    return Refusal(Code.QUANTIZED_PER_POSITION, reason)
                if isinstance(constant, Refusal):
                    return Refusal(Code.QUANTIZED_NOT_CONSTANT, f"{name} {constant.reason}")
                if axis is None or not _is_of_channels(shape, weight, axis):
                    reason = f"{has}, not one number for each output channel"
                    return Refusal(Code.INCONSISTENT_SHAPES, reason)
            if isinstance(constant, Constant) and (
                index == inputs.weight_zero or not is_single(shape)
            ):
                parameters[index] = Parameter(constant)
    return parameters


def _is_of_channels(shape: Dims, weight: tuple[int, ...], axis: int) -> bool:
    """Check whether numbers are one per output channel of the weight, or of each of its matrices.

    They are a vector, or have the last axes of the weight; input channels share one number.
    """
    extents = [e if i == axis or i < len(weight) - 2 else 1 for i, e in enumerate(weight)]
    return list(shape) in ([weight[axis]], extents[-len(shape) :])


def quantization_problem(
    document: Document,
    node: Node,
    quantization: Quantization,
    parameters: Mapping[int, Parameter],
    operator: Operator,
) -> Refusal | None:
    """Refuse a quantized node whose parameters, by index of the input, do not fold."""
    inputs = operator.inputs
    weight = parameters[inputs.weight]
    if not quantization.dequantized and weight.constant.dtype not in BYTE_TYPES:
        return Refusal(
            Code.DTYPE_UNSUPPORTED, f"ONNX has no {node.op_type} of {weight.constant.dtype}"
        )
    bias = None if inputs.bias is None else parameters.get(inputs.bias)
    rank = len(weight.constant.shape)
    if any(weight.vectors) and weight.axis != operator.out_axis(node, rank):
        return Refusal(
            Code.QUANTIZED,
            f"scale or zero point of the weight differ along axis {weight.axis}, which counts no "
            "output channels",
        )
    scales = [p.scale for p in (weight, bias) if p is not None and p.scale is not None]
    weight_scale = constant_of(document, input_of(node, inputs.weight_scale))
    for scale in scales if weight_scale is None else (*scales, weight_scale):
        numbers = document.read(scale).astype(np.float64)
        if not (np.isfinite(numbers).all() and (numbers > 0).all()):
            return Refusal(Code.QUANTIZED, "a scale is not a positive number")
    if operator.moves_integers or not quantization.dequantized:
        return None
    # The data is quantized again behind its moves.
    problem = dequantizer_problem(document, node.inputs[inputs.data])
    if problem is not None:
        return problem
    shape = () if bias is None else bias.constant.shape
    has_bias_vector = not is_single(shape) and bias is not None and bias.maker is not None
    # On the left a C per channel has two axes, which integer kernels do not take.
    if has_bias_vector and (operator.weight_on_left or len(shape) > 1):
        return quantized_refusal(f"C of extents {list(shape)} is dequantized")
    return None
