"""Make products of 8-bit integers exact on every CPU, by changing the types of operands.

Some CPUs saturate where unsigned data meets signed weights (`runtime.kernels`), none where both
operands are signed or both unsigned. So the second operand of such a product is made as the first
is: it and its zero point are shifted by 128, and still represent the same numbers. Then a fold can
be compared with the original, although it adds other products and would saturate elsewhere.

On x86 ONNX Runtime makes signed data unsigned where it is quantized and dequantized
(qdq_s8_to_u8.cc). So weights of such data are written as unsigned numbers, too. The entry
`session.qdqisint8allowed` of a session leaves both signed. Its own option for exact products,
`session.x64quantprecision`, has no effect below the level EXTENDED, and fails for some models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count

import onnx
from onnx import TensorProto, helper

from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.model.proto.functions import inline_holders
from widthfold_onnx.model.proto.walk import (
    copy_of,
    is_default,
    model_nodes,
    operator_of,
    placed_graphs,
)
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.rules.quantization import REMOVED, SELECTING
from widthfold_onnx.runtime.kernels import u8s8_error
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.providers import SIGNED
from widthfold_onnx.runtime.session import Session, open_session
from widthfold_onnx.system import cores

INT8, UINT8 = TensorProto.INT8, TensorProto.UINT8
MICROSOFT = "com.microsoft"

PRODUCTS = {
    **{
        operator: (inputs.weight, inputs.weight_zero)
        for operator, (description, *_) in OPERATORS.items()
        for inputs in [description.inputs]
        if inputs.weight_zero is not None
    },
    (MICROSOFT, "DynamicQuantizeMatMul"): (1, 3),
    (MICROSOFT, "MatMulIntegerToFloat"): (1, 5),
    (MICROSOFT, "QGemm"): (3, 5),
    (MICROSOFT, "QLinearConv"): (3, 5),
}
"""Operators that multiply 8-bit integers, of `OPERATORS` and of ONNX Runtime: the input indices of
the second operand and of its zero point."""

DEQUANTIZED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that the runtime computes with integers if both operands are dequantized."""


def open_chosen(
    model: LoadedModel | onnx.ModelProto, options: RuntimeOptions, level: Level
) -> Session:
    """Open a model with the provider and the options that the caller chose.

    It runs on all cores, as the number of threads affects no more than rounding.
    """
    options = replace(options, threads=cores())
    if isinstance(model, LoadedModel):
        return open_session(model.path, options, level, name=model.name)
    return open_session(model, options, level)


def open_exact(
    model: LoadedModel | onnx.ModelProto, options: RuntimeOptions, level: Level
) -> Session:
    """Open a model so that products of its integers are exact on this CPU.

    A model in memory has no external data.

    Raises:
        UnverifiedError: as `open_session`.
    """
    proto = model.proto if isinstance(model, LoadedModel) else model
    if not saturates(options.provider) or not holds_bytes(proto):
        return open_chosen(model, options, level)
    is_signed = options.session_options.get(SIGNED) == "1"
    exact = with_exact_products(copy_of(proto), signed_stays=is_signed)
    if not isinstance(model, LoadedModel):
        return open_chosen(exact, options, level)
    options = replace(options, threads=cores())
    return open_session(exact, options, level, source=model.path, name=model.name)


def saturates(provider: Provider) -> bool:
    """Check whether models run on the CPU, and its kernels saturate."""
    return provider is Provider.CPU and u8s8_error() > 0


def holds_bytes(*models: onnx.ModelProto) -> bool:
    """Check whether any model multiplies 8-bit integers, or may be optimized to do so."""
    return any(
        is_default(node, "DequantizeLinear") or operator_of(node) in PRODUCTS
        for model in models
        for node in model_nodes(model)
    )


def with_exact_products(model: onnx.ModelProto, *, signed_stays: bool = False) -> onnx.ModelProto:
    """Make both operands signed, or both unsigned, in every product that may saturate.

    Args:
        model: a model that runs; it is changed, and its external data is not needed.
        signed_stays: True if the runtime leaves signed quantized data signed.
    """
    model, _ = inline_holders(model, OPERATORS)
    shapes = ShapeTable(model, {})
    names = _fresh_names(model)
    # Inner graphs first: a node that holds one is copied when its own graph is written.
    for path, graph in reversed(list(placed_graphs(model.graph))):
        elements = partial(shapes.element_type, path)
        shifts = [
            new
            for reader, indices, kind in _mixed_operands(graph, elements, signed_stays)
            for index in indices
            for new in _shift_nodes(reader, index, kind, names)
        ]
        nodes = [*shifts, *graph.node]  # the runtime sorts them
        del graph.node[:]
        graph.node.extend(nodes)
    return model


def _mixed_operands(
    graph: onnx.GraphProto, elements: Callable[[str], int], signed_stays: bool
) -> Iterator[tuple[onnx.NodeProto, tuple[int, int], int]]:
    """Yield operands to convert: their reader, the indices of operand and zero point, the type.

    Bodies of nodes are not visited. `elements` returns the type of a value, 0 where it is unknown.
    """
    makers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        if indices := PRODUCTS.get(operator_of(node)):
            # If the type of the data is not known, its zero point tells it.
            first = {elements(name) for name in (node.input[0], *node.input[2:3])}
            if node.op_type == "DynamicQuantizeMatMul":
                first.add(UINT8)
            # Other types have another kernel or none; ConvInteger's has the weight on the left.
            kinds = (INT8, UINT8) if node.op_type == "ConvInteger" else (UINT8, INT8)
            if kinds[0] in first and elements(node.input[indices[0]]) == kinds[1]:
                yield node, indices, kinds[0]
        elif is_default(node, *DEQUANTIZED):
            data, weight = (_source(makers, name, "DequantizeLinear") for name in node.input[:2])
            if data is None or weight is None:
                continue
            kind = elements(data.input[0])
            is_quantized = _source(makers, data.input[0], "QuantizeLinear") is not None
            becomes_unsigned = is_quantized and not (signed_stays and kind == INT8)
            # A weight that was shifted for another reader has a new name of unknown type: it is
            # not shifted again.
            if (kind == UINT8 or becomes_unsigned) and elements(weight.input[0]) == INT8:
                yield weight, (0, 2), UINT8


def _source(makers: Mapping[str, onnx.NodeProto], name: str, op_type: str) -> onnx.NodeProto | None:
    """Return the node behind a value, before moves and selections of elements, if of this type."""
    node = makers.get(name)
    while node is not None and is_default(node, *SELECTING, *REMOVED):
        node = makers.get(node.input[0])
    return node if node is not None and is_default(node, op_type) else None


def _shift_nodes(
    reader: onnx.NodeProto, index: int, kind: int, names: Iterator[str]
) -> Iterator[onnx.NodeProto]:
    """Yield nodes that shift an input of `reader` by 128 to type `kind`, and connect them to it."""
    reader.input.extend([""] * (index + 1 - len(reader.input)))
    shift, integer, extents, total, result = (next(names) for _ in range(5))
    offset = helper.make_tensor(shift, TensorProto.INT32, [], [128 if kind == UINT8 else -128])
    zero = helper.make_tensor(integer, TensorProto.INT32, [1], [0])
    yield helper.make_node("Constant", [], [shift], value=offset)
    if reader.input[index]:
        yield helper.make_node("Cast", [reader.input[index]], [integer], to=TensorProto.INT32)
    elif reader.op_type == "DequantizeLinear":  # as many zero points as there are scales
        yield helper.make_node("Shape", [reader.input[1]], [extents])
        yield helper.make_node("ConstantOfShape", [extents], [integer], value=zero)
    else:
        yield helper.make_node("Sub", [shift, shift], [integer])
    yield helper.make_node("Add", [integer, shift], [total])
    yield helper.make_node("Cast", [total], [result], to=kind)
    reader.input[index] = result


def _fresh_names(model: onnx.ModelProto) -> Iterator[str]:
    """Yield names that no value of a model has."""
    names = {name for node in model_nodes(model) for name in (*node.input, *node.output)}
    for _, graph in placed_graphs(model.graph):
        names.update(value.name for value in (*graph.input, *graph.initializer))
        names.update(sparse.values.name for sparse in graph.sparse_initializer)
    return (name for i in count() if (name := f"widthfold/exact/{i}") not in names)
