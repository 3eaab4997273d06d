"""Read a node of the Conv family: collect all that a fold needs, or why it is left alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.fold.conv_axis import ConvAxis
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.base import Extents, Site
from widthfold_onnx.rules.dequantized import data_dequantizer, exact_dequantizer, is_finite
from widthfold_onnx.rules.parameter import INPUTS, Parameter, read_parameter
from widthfold_onnx.rules.quantized import (
    Quantization,
    accumulator_overflow,
    problem_of,
    read_quantization,
)
from widthfold_onnx.rules.windowed import WindowedSite

Array = npt.NDArray[Any]

# Element types of ONNX's convolutions (operator text, Conv-22). ONNX Runtime's CPU provider has
# kernels for the first two only (measured on 1.31.1); the others are proved without a run.
ITEMSIZE = {"FLOAT": 4, "FLOAT16": 2, "DOUBLE": 8, "BFLOAT16": 2}
# First opset whose Reshape takes its shape as an input, which the emitted form needs.
MIN_OPSET = 5


@dataclass(frozen=True)
class Operator:
    """The functions that read nodes of one type as a Conv.

    Attributes:
        out_axis: the axis of the stored weight that counts output channels; only those of one
            group if groups divide another axis.
        axes: returns the geometry of every spatial axis, from the node, the extents of its input
            (None where not known) and the canonical shape of its weight.
        canonical: returns the stored weight, of so many groups, as [O, C/group, *kernel].
        sized: checks whether the pads of an axis depend on the extent of the input.
    """

    out_axis: int
    axes: Callable[[Node, Dims, tuple[int, ...]], tuple[ConvAxis, ...] | Refusal]
    canonical: Callable[[Array, int], Array]
    sized: Callable[[Node, ConvAxis], bool]


def read_windowed(
    document: Document, site: Site, static: Extents, planned: Extents, operator: Operator
) -> WindowedSite | Refusal:
    """Collect weight, bias, shapes and geometry of a node.

    Refuses a node that lies in a function, has an unsupported element type, a weight or bias that
    is not constant, or an input of unknown rank; also a quantized node that `rules.quantized`
    refuses, or whose sums may leave int32.
    """
    node = site.node
    problem = common_problem(document, site)
    if problem is not None:
        return problem
    found = _parameters(document, node, operator)
    if isinstance(found, Refusal):
        return found
    weight, bias, quantization = found
    stored, data = weight.constant, node.inputs[0]
    assert data is not None
    shapes = [extents(data) for extents in (static, planned)]
    group = group_of(node)
    for dims in shapes:
        problem = _shape_problem(dims, weight, bias, group, operator)
        if problem:
            return problem
    shape = _canonical_shape(stored.shape, group, operator)
    static_dims, planned_dims = ((d[0], shape[1] * group, *d[2:]) for d in shapes if d is not None)
    axes = _axes(node, planned_dims, shape, operator)
    if isinstance(axes, Refusal):
        return axes
    zero = _zero(document, weight, shape)
    if quantization is not None:
        numbers = operator.canonical(document.read(stored), group)
        added = None if bias is None else document.read(bias.constant)
        problem = accumulator_overflow(document, quantization, numbers, zero, added)
        if problem is not None:
            return problem
    integers_only = quantization is not None and not quantization.dequantized
    maker = exact_dequantizer(document, data)
    return WindowedSite(
        node=node,
        scope=site.scope,
        name=site.name,
        op=site.op,
        static=static_dims,
        planned=planned_dims,
        opset=document.opset,
        weight=stored,
        weight_shape=shape,
        zero=zero,
        is_finite=integers_only or is_finite(document, data),
        dequantizer=maker if isinstance(maker, Node) else None,
        canonical=lambda array: operator.canonical(array, group),
        stored=lambda: document.read(stored),
        parameter=weight.value,
        bias=None if bias is None else bias.constant,
        per_channel=_vectors(weight, bias),
        quantization=quantization,
        group=group,
        axes=axes,
        sized_pads=_sized_pads(node, axes, static_dims[2:], operator),
        itemsize=ITEMSIZE.get(stored.dtype, 1),
    )


def common_problem(document: Document, site: Site) -> Refusal | None:
    """Refuse a node that no rule can replace, for its place, its devices or the operator set."""
    if site.scope.proto is None:
        return Refusal(
            Code.IN_FUNCTION, f"the function cannot be inlined: {document.why_not_inlined}"
        )
    if document.opset < MIN_OPSET:
        return Refusal(Code.OPSET_TOO_OLD, f"opset {document.opset} is below {MIN_OPSET}")
    if site.node.device_configurations:
        return Refusal(Code.SHARDED, "the node is configured to run on several devices")
    return None


def _parameters(
    document: Document, node: Node, operator: Operator
) -> tuple[Parameter, Parameter | None, Quantization | None] | Refusal:
    """Return weight, bias, and the quantization of the data if there is one."""
    quantization = read_quantization(document, node)
    if isinstance(quantization, Refusal):
        return quantization
    integers = quantization is not None and quantization.dequantized
    inputs = INPUTS[node.op_type]
    weight = read_parameter(document, node, inputs.weight, dequantized=integers)
    between = data_dequantizer(node.inputs[0]) is not None
    bias = read_parameter(document, node, inputs.bias, dequantized=between)
    if isinstance(weight, Refusal):
        return Refusal(Code(f"weight-{weight.code}"), f"the weight {weight.reason}")
    if isinstance(bias, Refusal):
        return Refusal(Code(f"bias-{bias.code}"), f"the bias {bias.reason}")
    assert weight is not None
    if quantization is not None:
        problem = problem_of(document, node, quantization, weight, bias, operator.out_axis)
        if problem is not None:
            return problem
    annotated = [v for v in node.inputs[1:] if v is not None and document.is_annotated(v)]
    if annotated or document.is_annotated(weight.value):
        return Refusal(Code.WEIGHT_ANNOTATED, "a quantization annotation describes the weight")
    dtype = weight.constant.dtype
    if quantization is None and dtype not in ITEMSIZE:
        return Refusal(Code.DTYPE_UNSUPPORTED, f"ONNX has no {node.op_type} of {dtype}")
    return weight, bias, quantization


def _axes(
    node: Node, dims: Dims, weight: tuple[int, ...], operator: Operator
) -> tuple[ConvAxis, ...] | Refusal:
    axes = operator.axes(node, dims, weight)
    if isinstance(axes, Refusal):
        return axes
    lengths = [axis.out_length for axis in axes]
    if any(length is not None and length < 1 for length in lengths):
        return Refusal(Code.EMPTY_TENSOR, f"the output would have the extents {lengths}")
    return axes


def _sized_pads(
    node: Node, axes: Sequence[ConvAxis], lengths: Dims, operator: Operator
) -> frozenset[int]:
    """Return the spatial axes of open length whose pads depend on it."""
    pairs = enumerate(zip(axes, lengths, strict=True))
    return frozenset(i for i, (axis, n) in pairs if n is None and operator.sized(node, axis))


def _vectors(weight: Parameter, bias: Parameter | None) -> dict[Value, Constant]:
    """Return the constants with one number per channel, by the value that holds them."""
    if bias is None:
        return dict(weight.vectors)
    return {**weight.vectors, bias.value: bias.constant, **bias.vectors}


def _zero(document: Document, weight: Parameter, shape: tuple[int, ...]) -> Array:
    """Return the weight's zero point so that it broadcasts against `shape`; groups share theirs."""
    if weight.zero is None:
        return np.zeros((), np.int8)
    numbers = document.read(weight.zero[1])
    if numbers.size == 1:
        return numbers.reshape(())
    return np.tile(numbers, shape[0] // numbers.size).reshape(-1, *[1] * (len(shape) - 1))


def _shape_problem(
    dims: Dims | None,
    parameter: Parameter,
    bias: Parameter | None,
    group: int,
    operator: Operator,
) -> Refusal | None:
    weight = parameter.constant.shape
    if dims is None:
        return Refusal(Code.UNKNOWN_SHAPE, "the rank of the input is not known")
    if len(dims) != len(weight) or not 3 <= len(dims) <= 5:
        return Refusal(
            Code.RANK_UNSUPPORTED,
            f"input of rank {len(dims)} and weight of rank {len(weight)}: 1 to 3 spatial axes fold",
        )
    if 0 in dims or 0 in weight:
        return Refusal(Code.EMPTY_TENSOR, f"input {list(dims)} or weight {list(weight)} is empty")
    # The groups divide the first axis of the weight, both of a Conv and of a ConvTranspose.
    consistent = group >= 1 and weight[0] % group == 0
    if consistent:
        outputs, per_group = _canonical_shape(weight, group, operator)[:2]
        consistent = dims[1] in (None, per_group * group)
        consistent = consistent and (bias is None or bias.constant.shape == (outputs,))
        known = {1, outputs, weight[operator.out_axis]}
        vectors = [*parameter.vectors.values(), *(() if bias is None else bias.vectors.values())]
        consistent = consistent and all(math.prod(vector.shape) in known for vector in vectors)
    if not consistent:
        return Refusal(
            Code.INCONSISTENT_SHAPES,
            f"input {list(dims)}, weight {list(weight)} and group {group} do not fit",
        )
    return None


def _canonical_shape(stored: tuple[int, ...], group: int, operator: Operator) -> tuple[int, ...]:
    return operator.canonical(np.broadcast_to(np.int8(0), stored), group).shape


def auto_pad_of(node: Node) -> str:
    """Return the attribute `auto_pad`, "" where there is none."""
    return node.attributes["auto_pad"].as_string() if "auto_pad" in node.attributes else ""


def group_of(node: Node) -> int:
    """Return the number of groups of a node."""
    return node.attributes["group"].as_int() if "group" in node.attributes else 1


def integers(node: Node, name: str, default: list[int]) -> list[int]:
    """Return an attribute of integers."""
    return list(node.attributes[name].as_ints()) if name in node.attributes else default
