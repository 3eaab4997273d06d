"""Infer the types of the outputs of one node, by onnx's shape inference and functions of our own.

A node is inferred alone, so that no extent below zero reaches another node: a Slice of onnx 1.23.2
ends the process there. Inference also indexes by two attributes without a check, so a model is
refused if these have values that no runtime takes.

What a function in `SHAPE_FUNCTIONS` finds counts more than inference. Inference finds no extents of
a Reshape or an Expand if a single number of the shape is open; the function finds those that
follow. For some operators inference returns wrong extents, as measured on onnx 1.23.2 and
onnxruntime 1.31.1 (tests/model/shapes/inference/test_gaps.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import onnx
from onnx import TensorProto, helper, shape_inference  # noqa: TID251 - this module is the door

from widthfold_onnx.arrays import Dims
from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.proto.tensors import MAX_RANK
from widthfold_onnx.model.proto.walk import is_default, operator_of
from widthfold_onnx.model.shapes.fact import Fact, completed, of_type
from widthfold_onnx.text import quoted

RawAttributes = Mapping[str, Any]
"""Attributes of a node by name, as onnx returns them."""

Inputs = Sequence[Fact | None]

STANDARD_OPERATORS: Mapping[str, tuple[str, Sequence[int]]] = {
    "BiasGelu": ("Identity", (0,)),
    "DequantizeLinear": ("DequantizeLinear", (0, 1, 2)),
    "DynamicQuantizeMatMul": ("MatMul", (0, 1)),
    "FastGelu": ("Identity", (0,)),
    "FusedConv": ("Conv", (0, 1, 2)),
    "FusedGemm": ("Gemm", (0, 1, 2)),
    "FusedMatMul": ("MatMul", (0, 1)),
    "Gelu": ("Identity", (0,)),
    "Inverse": ("Identity", (0,)),
    "MatMulIntegerToFloat": ("MatMul", (0, 1)),
    "QLinearAdd": ("Add", (0, 3)),
    "QLinearAveragePool": ("AveragePool", (0,)),
    "QLinearConcat": ("Concat", range(2, 1 << 10, 3)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,)),
    "QLinearLeakyRelu": ("Identity", (0,)),
    "QLinearMul": ("Mul", (0, 3)),
    "QLinearSigmoid": ("Identity", (0,)),
    "QLinearSoftmax": ("Identity", (0,)),
    "QuantizeLinear": ("QuantizeLinear", (0, 1, 2)),
    "QuickGelu": ("Identity", (0,)),
    "SkipLayerNormalization": ("Identity", (0,)),
    "SkipSimplifiedLayerNormalization": ("Identity", (0,)),
    "Trilu": ("Identity", (0,)),
}
"""Operators of com.microsoft: the standard operator whose first output has their extents and type,
and the positions of its inputs among theirs; `_as_standard` changes some of these inputs."""

ACTIVATION = ("activation", "activation_params", "activation_alpha", "activation_beta")
"""Attributes that FusedConv and FusedGemm have, and Conv and Gemm lack."""

CACHED_INFERENCES = 1 << 14
CACHED_BYTES = 1 << 12
"""Larger nodes are not kept: they hold tables."""

MAX_READ = 1 << 8
"""Most numbers of an input that inference reads: extents, axes, pads."""

UNKNOWN = Fact()

READ_FLOATS = ("OneHot", "Range", "Resize", "Upsample")
"""Operators whose extents depend on inputs of floats."""

_TERM = rb"[A-Za-z]*(\.{3}[A-Za-z]*)?"
EQUATION = re.compile(rb"%b(,%b)*(->%b)?" % (_TERM, _TERM, _TERM))
"""The equation of an Einsum, without spaces. With some other characters inference never ends."""

Argument = tuple[int, Dims | None, bytes, bytes | None]
"""An input: its type as in `Fact`, and its numbers as they lie in memory, if they are read."""


def infer_node(
    node: onnx.NodeProto, opsets: Mapping[str, int], inputs: Sequence[Fact | None]
) -> Sequence[Fact]:
    """Infer the types of the outputs of a node without graphs.

    Args:
        node: it calls no local function.
        opsets: version of the operator set by domain.
        inputs: by position; None where one is left out.
    """
    domain, op_type = operator_of(node)
    node_attributes, output_count = [*node.attribute], len(node.output)
    if domain == "com.microsoft" and op_type in STANDARD_OPERATORS:
        inputs = _as_standard(node, inputs)
        (op_type, positions), domain, output_count = STANDARD_OPERATORS[op_type], "", 1
        inputs = [inputs[i] for i in positions if i < len(inputs)]
        node_attributes = [entry for entry in node_attributes if entry.name not in ACTIVATION]
    if not domain and _ranks_differ(op_type, inputs):
        return [Fact()] * len(node.output)
    infer = _inferred if node.ByteSize() <= CACHED_BYTES else _inferred.__wrapped__
    facts = infer(
        op_type,
        domain,
        opsets.get(domain, 1),
        tuple([entry.SerializeToString() for entry in node_attributes]),
        tuple([bool(name) for name in node.output[:output_count]]),
        tuple([None if fact is None else (*fact.type, _read(fact, op_type)) for fact in inputs]),
    )
    name = f"{domain}.{op_type}" if domain else op_type
    shape_function = SHAPE_FUNCTIONS.get(name)
    if shape_function is None or not facts or not inputs or inputs[0] is None:
        return facts
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in node_attributes}
    dims = shape_function(attributes, [*inputs, *[None] * 4])
    extents = dims and tuple(None if n is None or n < 0 else n for n in dims)
    result_type = TensorProto.FLOAT if name in FLOAT_RESULTS else inputs[0].element_type
    element_type = facts[0].element_type or result_type
    return [completed(Fact(element_type, extents), facts[0]), *facts[1:]]


def _as_standard(node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Return inputs with which the standard operator has the extents and type of a node."""
    attributes = {entry.name: entry.i for entry in node.attribute}
    if node.op_type == "FusedMatMul":
        moved = [attributes.get(f"transBatch{side}", 0) for side in "AB"]
        swapped = [attributes.get(f"trans{side}", 0) for side in "AB"]
        return [
            UNKNOWN if any(moved) else _swapped(fact) if swaps else fact
            for fact, swaps in zip(inputs, swapped, strict=False)
        ]
    if node.op_type == "MatMulIntegerToFloat" and len(inputs) > 2:
        element_type = inputs[2].element_type if inputs[2] else 0
        return [fact and Fact(element_type, fact.dims) for fact in inputs[:2]]
    return [UNKNOWN] * len(inputs) if attributes.get("channels_last") else inputs


def _swapped(fact: Fact | None) -> Fact | None:
    """Return the fact of a value with its two last axes exchanged."""
    if fact is None or fact.dims is None or len(fact.dims) < 2:
        return fact
    *leading, first, second = fact.dims
    return Fact(fact.element_type, (*leading, second, first))


def _ranks_differ(op_type: str, inputs: Sequence[Fact | None]) -> bool:
    """Check whether data and weight of a Conv differ in rank: onnx 1.17 ends the process there."""
    position = WEIGHT_POSITIONS.get(op_type, len(inputs))
    if position >= len(inputs):
        return False
    ranks = {len(f.dims) for f in (inputs[0], inputs[position]) if f and f.dims is not None}
    return len(ranks) > 1


def _read(fact: Fact, op_type: str) -> bytes | None:
    """Return the numbers that inference may read."""
    numbers = fact.numbers
    if numbers is None or not fact.is_whole or numbers.ndim > 1 or numbers.size > MAX_READ:
        return None
    return numbers.tobytes() if numbers.dtype.kind != "f" or op_type in READ_FLOATS else None


@lru_cache(CACHED_INFERENCES)
def _inferred(
    op_type: str,
    domain: str,
    version: int,
    attributes: Sequence[bytes],
    outputs: Sequence[bool],
    inputs: Sequence[Argument | None],
) -> Sequence[Fact]:
    """Infer a node that stands alone in a model."""
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION)
    model.opset_import.add(domain=domain, version=version)
    graph = model.graph
    node = graph.node.add(op_type=op_type, domain=domain)
    node.attribute.extend(onnx.AttributeProto.FromString(entry) for entry in attributes)
    node.output.extend(f"o{i}" if is_there else "" for i, is_there in enumerate(outputs))
    for i, argument in enumerate(inputs):
        name = "" if argument is None else f"i{i}"
        node.input.append(name)
        if argument is not None:
            element_type, dims, other_type, numbers = argument
            if numbers is None:
                graph.input.add(name=name, type=Fact(element_type, dims, other_type).proto())
            else:
                graph.initializer.add(
                    name=name, data_type=element_type, dims=dims, raw_data=numbers
                )
    try:
        inferred = shape_inference.infer_shapes(model)
    except (shape_inference.InferenceError, RuntimeError, ValueError):
        return [Fact()] * len(outputs)
    facts = {value.name: of_type(value.type) for value in inferred.graph.value_info}
    return [facts.get(name, Fact()) for name in node.output]


def check_inferable(node: onnx.NodeProto) -> None:
    """Refuse a node that ends or hangs the process in shape inference, by onnx or onnxruntime.

    Raises:
        InvalidModelError: a Split into fewer parts than it has outputs, a negative number of
            batch dimensions of a GatherND, or an Einsum without an equation of letters.
    """
    counts = {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT}
    parts, output_count = counts.get("num_outputs", 0), len(node.output)
    # An attribute that a function's caller gives is 0 here.
    if is_default(node, "Split") and 0 < parts < output_count:
        problem = f"num_outputs is {parts}, but it has {output_count} outputs"
        raise InvalidModelError(f"{describe_node(node)}: {problem}")
    if is_default(node, "GatherND") and counts.get("batch_dims", 0) < 0:
        raise InvalidModelError(f"{describe_node(node)}: batch_dims is negative")
    for text in [
        a.s for a in node.attribute if a.name == "equation" and is_default(node, "Einsum")
    ]:
        if not EQUATION.fullmatch(text.replace(b" ", b"")):
            raise InvalidModelError(f"{describe_node(node)}: {quoted(text)} is no equation")


WEIGHT_POSITIONS = {
    "Conv": 1,
    "ConvInteger": 1,
    "ConvTranspose": 1,
    "FusedConv": 1,
    "QLinearConv": 3,
}
"""Position of the input that has the rank of the data, by operator."""


def weight_position(node: onnx.NodeProto) -> int | None:
    """Return the position of the input that has the rank of the data, None if there is none."""
    is_known = is_default(node, *WEIGHT_POSITIONS) or node.op_type == "FusedConv"
    position = WEIGHT_POSITIONS[node.op_type] if is_known else len(node.input)
    return position if position < len(node.input) else None


def rank_by_weight(node: onnx.NodeProto, facts: Mapping[str, Fact]) -> int | None:
    """Return the rank of the data of a node, if only its weight tells the rank."""
    position = weight_position(node)
    if position is None:
        return None
    data, weight = (facts.get(node.input[i]) for i in (0, position))
    if weight is None or weight.dims is None or (data is not None and data.dims is not None):
        return None
    return len(weight.dims)


def _numbers(fact: Fact | None) -> list[Any] | None:
    """Return the whole numbers of a vector, with None for an unknown one."""
    if fact is None or fact.dims is None or len(fact.dims) != 1:
        return None
    if fact.numbers is not None:
        if fact.numbers.size > 2 * MAX_RANK:
            return None
        numbers: list[Any] = fact.numbers.tolist()
        return numbers if all(n is None or type(n) is int for n in numbers) else None
    (size,) = fact.dims
    return None if size is None or size > 2 * MAX_RANK else [None] * size


def _dims(fact: Fact | None, rank: int) -> Dims:
    """Return the extents of a value; all are open if it is not known to have this rank."""
    dims = fact.dims if fact else None
    return dims if dims is not None and len(dims) == rank else (None,) * rank


def _reshape_dims(attributes: RawAttributes, inputs: Inputs) -> Dims | None:
    """Return the extents of a Reshape; a single unknown extent follows from the element count."""
    data, target = inputs[0], _numbers(inputs[1])
    if target is None:
        return None
    dims = data.dims if data else None
    copies = not attributes.get("allowzero", 0)
    for i, n in enumerate(target):
        if n == 0 and copies:
            target[i] = dims[i] if dims is not None and i < len(dims) else None
    open_axes = [i for i, n in enumerate(target) if n is None or n < 0]
    product = math.prod(n for i, n in enumerate(target) if i not in open_axes)
    if dims is not None and None not in dims and len(open_axes) == 1 and product:
        target[open_axes[0]] = math.prod(n or 0 for n in dims) // product
    return tuple(target)


def _expand_dims(_: RawAttributes, inputs: Inputs) -> Dims | None:
    """Return the extents of an Expand: an extent of 1 gives way, another one is the result."""
    data, target = inputs[0], _numbers(inputs[1])
    if target is None or data is None or data.dims is None:
        return None
    rank = max(len(target), len(data.dims))
    data_dims = [1] * (rank - len(data.dims)) + [*data.dims]
    target = [1] * (rank - len(target)) + target
    pairs = zip(data_dims, target, strict=True)
    return tuple(
        a if b == 1 or a not in (None, 1) else b if a == 1 or b not in (None, 1) else None
        for a, b in pairs
    )


def _constant_of_shape_dims(_: RawAttributes, inputs: Inputs) -> Dims | None:
    """Return the extents of a ConstantOfShape."""
    target = _numbers(inputs[0])
    return None if target is None else tuple(target)


def _pool_dims(attributes: RawAttributes, inputs: Inputs) -> Dims | None:
    """Return the extents of a pool with ceil_mode.

    A window that would begin in the pad behind the data is left out (ONNX operator text,
    MaxPool-22); inference counts it.
    """
    kernel, data = attributes.get("kernel_shape", ()), inputs[0]
    if not attributes.get("ceil_mode") or data is None or len(data.dims or ()) != len(kernel) + 2:
        return None
    unit, side = [1] * len(kernel), attributes.get("auto_pad", b"NOTSET")
    strides, dilations = (attributes.get(name, unit) for name in ("strides", "dilations"))
    pads = attributes.get("pads") if side == b"NOTSET" else None
    pads = pads or [0] * 2 * len(kernel)
    batch, channels, *extents = data.dims or ()
    spatial: list[int | None] = []
    # Attributes that do not fit leave extents out, and the rank differs then.
    for n, k, s, d, begin, end in zip(
        extents, kernel, strides, dilations, pads, pads[len(kernel) :], strict=False
    ):
        if n is None or s < 1:
            spatial.append(None)
        elif side.startswith(b"SAME"):
            spatial.append(-(-n // s))
        else:
            count = -(-(begin + n + end - d * (k - 1) - 1) // s) + 1
            spatial.append(min(count, -(-(begin + n) // s)))
    return (batch, channels, *spatial) if len(spatial) == len(kernel) else None


def _resize_dims(attributes: RawAttributes, inputs: Inputs) -> Dims | None:
    """Return the extents of a Resize to sizes of all axes."""
    target = _numbers(inputs[3])
    is_complete = {"axes", "keep_aspect_ratio_policy"}.isdisjoint(attributes)
    return tuple(target) if target and is_complete else None


def _data_dims(_: RawAttributes, inputs: Inputs) -> Dims | None:
    """Return the extents of the data: inference derives none for some operators."""
    return inputs[0].dims if inputs[0] else None


def _slice_dims(_: RawAttributes, inputs: Inputs) -> Dims | None:
    """Return the extents of a Slice: an axis that it does not name keeps its extent."""
    data, axes = inputs[0], _numbers(inputs[3])
    if data is None or not data.dims or axes is None or None in axes:
        return None
    changed_axes = {axis % len(data.dims) for axis in axes}
    return tuple(None if i in changed_axes else n for i, n in enumerate(data.dims))


def _conv_transpose_dims(attributes: RawAttributes, inputs: Inputs) -> Dims | None:
    """Return the extents of a ConvTranspose with an output_shape, or with output_padding.

    SAME padding keeps stride times the input's extent (ONNX operator text, ConvTranspose-11). So
    output_padding only fills the positions of it that the kernel does not reach; inference adds all
    of the output_padding. At an output_shape below an input's extent inference stops.
    """
    spatial: Dims = tuple(attributes.get("output_shape", ()))
    output_padding = attributes.get("output_padding", ())
    rank = len(spatial or output_padding) + 2
    data, weight = (_dims(fact, rank) for fact in inputs[:2])
    if not spatial and attributes.get("auto_pad", b"").startswith(b"SAME"):
        unit = [1] * len(output_padding)
        strides, dilations = (attributes.get(name, unit) for name in ("strides", "dilations"))
        kernel = attributes.get("kernel_shape") or weight[2:]
        # Attributes that do not fit leave extents out, and the rank differs then.
        spatial = tuple(
            None if n is None or k is None else s * n + min(0, d * (k - 1) + 1 + m - s)
            for n, k, s, d, m in zip(
                data[2:], kernel, strides, dilations, output_padding, strict=False
            )
        )
    if not spatial or len(spatial) + 2 < rank:
        return None
    channels = None if weight[1] is None else weight[1] * attributes.get("group", 1)
    return (data[0], channels, *spatial)


def _stft_dims(attributes: RawAttributes, inputs: Inputs) -> Dims | None:
    """Return the extents of an STFT: [batch, frames, bins, 2] (ONNX operator text, STFT-17).

    Inference returns no rank if the length of the signal is open, on which only the frames depend.
    """
    signal, _, window, count = inputs[:4]
    length = window.dims[0] if window and window.dims else None
    if count is not None:
        numbers = count.numbers if count.is_whole else None
        length = int(numbers.item()) if numbers is not None and numbers.size == 1 else None
    if signal is None or not signal.dims or length is None:
        return None
    bins = length // 2 + 1 if attributes.get("onesided", 1) else length
    return (signal.dims[0], None, bins, 2)


def _crop_dims(attributes: RawAttributes, inputs: Inputs) -> Dims | None:
    """Return the extents of a Crop: a border (left, top, right, bottom) goes, or `scale` is left.

    It is an operator of ONNX Runtime (contrib op Crop, up to operator set 9).
    """
    data, scale, border = inputs[0], attributes.get("scale"), attributes.get("border", ())
    if data is None or len(data.dims or ()) != 4 or len(border) != 4:
        return None
    batch, channels, height, width = data.dims or ()
    if scale:
        return (batch, channels, *scale) if len(scale) == 2 else None
    left, top, right, bottom = border
    rows = None if height is None else height - top - bottom
    return (batch, channels, rows, None if width is None else width - left - right)


def _row_dims(inputs: Inputs, width: int | None) -> Dims | None:
    """Return the extents of a result with as many rows as the data: one if that is a vector."""
    dims = inputs[0].dims if inputs[0] else None
    return None if dims is None else (dims[0] if len(dims) == 2 else 1, width)


FLOAT_RESULTS = frozenset(
    f"ai.onnx.ml.{name}"
    for name in (
        *("FeatureVectorizer", "LinearRegressor", "Normalizer", "Scaler", "SVMRegressor"),
        "TreeEnsembleRegressor",
    )
)
"""Operators whose result is of floats whatever the data."""

SHAPE_FUNCTIONS: Mapping[str, Callable[[RawAttributes, Inputs], Dims | None]] = {
    "Affine": _data_dims,
    "AveragePool": _pool_dims,
    "Crop": _crop_dims,
    "ConstantOfShape": _constant_of_shape_dims,
    "ConvTranspose": _conv_transpose_dims,
    "Expand": _expand_dims,
    "GroupNormalization": _data_dims,
    "ImageScaler": _data_dims,
    "LpPool": _pool_dims,
    "MaxPool": _pool_dims,
    "MeanVarianceNormalization": _data_dims,
    "ParametricSoftplus": _data_dims,
    "Reshape": _reshape_dims,
    "Resize": _resize_dims,
    "STFT": _stft_dims,
    "Scale": _data_dims,
    "ScaledTanh": _data_dims,
    "SimplifiedLayerNormalization": _data_dims,
    "Slice": _slice_dims,
    "ai.onnx.ml.Binarizer": _data_dims,
    "ai.onnx.ml.FeatureVectorizer": lambda a, i: _row_dims(i, sum(a.get("inputdimensions", ()))),
    "ai.onnx.ml.Imputer": _data_dims,
    "ai.onnx.ml.LinearRegressor": lambda a, i: _row_dims(i, a.get("targets", 1)),
    "ai.onnx.ml.Normalizer": _data_dims,
    "ai.onnx.ml.SVMRegressor": lambda _, i: _row_dims(i, 1),
    "ai.onnx.ml.Scaler": _data_dims,
    "ai.onnx.ml.TreeEnsembleRegressor": lambda a, i: _row_dims(i, a.get("n_targets")),
}
"""By name of the operator; with its domain before it if that is not the default one."""
