"""Makes products of 8-bit integers exact on every CPU, by changing the types of operands.

Kernels of unsigned data and signed weights saturate on some CPUs (`runtime.kernels`), kernels
of two unsigned or two signed operands on none. So the second operand of each such product gets
the signedness of the first: it and its zero point are shifted by 128, which represents the same
numbers. A fold saturates at other products than the original does; so changed, both are exact.

On x86 ONNX Runtime makes signed data unsigned where it is quantized and dequantized
(qdq_s8_to_u8.cc). So weights of such data are written as unsigned numbers, too. The entry
`session.qdqisint8allowed` of a session leaves both signed. Its own option for exact products,
`session.x64quantprecision`, has less effect: none below the level EXTENDED. With it 1.31.1 does not
load a QLinearConv of signed data, nor a model in which two weights share a zero point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from widthfold_onnx.model.proto.functions import inlined
from widthfold_onnx.model.proto.walk import (
    all_graphs,
    is_default,
    model_nodes,
    operator_of,
    placed_graphs,
)
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.rules.match.dequantized import REMOVED, SELECTING
from widthfold_onnx.runtime.kernels import u8s8_error
from widthfold_onnx.runtime.sessions.session import Level, Session, open_session
from widthfold_onnx.runtime.sessions.session_options import SIGNED
from widthfold_onnx.system import cores

INT8, UINT8 = TensorProto.INT8, TensorProto.UINT8
MICROSOFT = "com.microsoft"
OFFSET = 128
"""Difference between an unsigned number of 8 bits and the signed one in its place."""


@dataclass(frozen=True)
class Product:
    """An operator that multiplies integers of 8 bits.

    Attributes:
        second: index of the second operand and of its zero point; the first one is input 0, and
            input 2 its zero point where the type of input 0 may be unknown.
        types: types of both operands for which its kernel saturates.
    """

    second: tuple[int, int]
    types: tuple[int, int] = (UINT8, INT8)


PRODUCTS = {
    ("", "ConvInteger"): Product((1, 3), (INT8, UINT8)),  # its kernel has the weight on the left
    ("", "MatMulInteger"): Product((1, 3)),
    ("", "QLinearConv"): Product((3, 5)),
    ("", "QLinearMatMul"): Product((3, 5)),
    (MICROSOFT, "DynamicQuantizeMatMul"): Product((1, 3), (TensorProto.FLOAT, INT8)),
    (MICROSOFT, "MatMulIntegerToFloat"): Product((1, 5)),
    (MICROSOFT, "QGemm"): Product((3, 5)),
    (MICROSOFT, "QLinearConv"): Product((3, 5)),
}
"""By domain and operator; measured with ONNX Runtime 1.31.1 and 1.32.0."""

DEQUANTIZED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""The runtime's optimizations compute these with integers, where both operands are dequantized."""


CORES = cores()
"""Values do not depend on the number of threads beyond rounding; only times need one thread."""


def open_chosen(
    model: Path | onnx.ModelProto, options: VerifyOptions, level: Level, origin: Path | None = None
) -> Session:
    """Open a model on all cores, with the provider and the options that the caller chose.

    Raises:
        UnverifiedError: as `open_session`.
    """
    return open_session(model, replace(options, threads=CORES), level, origin=origin)


def open_exact(model: Path | onnx.ModelProto, options: VerifyOptions, level: Level) -> Session:
    """Open a model so that products of its integers are exact on this CPU.

    Args:
        model: the file; or a model in memory without external data.
        options: provider, its options and the session's options are used.
        level: the runtime's optimization level.

    Raises:
        UnverifiedError: as `open_session`.
    """
    origin = model if isinstance(model, Path) else None
    if _saturates(options) and holds_bytes(proto := _read(model)):
        is_signed = options.session_options.get(SIGNED) == "1"
        model = with_exact_products(proto, signed_stays=is_signed)
    return open_chosen(model, options, level, origin)


def may_saturate(options: VerifyOptions, *models: Path) -> bool:
    """Check whether a model holds 8-bit integers, on a CPU whose kernels of them saturate."""
    return _saturates(options) and holds_bytes(*models)


def _saturates(options: VerifyOptions) -> bool:
    """Check whether models run on the CPU and its kernels saturate; other providers differ."""
    return options.provider is Provider.CPU and u8s8_error() > 0


def holds_bytes(*models: Path | onnx.ModelProto) -> bool:
    """Check whether any model multiplies 8-bit integers, or may be optimized to do so."""
    return any(
        is_default(node, "DequantizeLinear") or _product(node) is not None
        for model in models
        for node in model_nodes(_read(model))
    )


def _product(node: onnx.NodeProto) -> Product | None:
    return PRODUCTS.get(operator_of(node))


def _read(model: Path | onnx.ModelProto) -> onnx.ModelProto:
    return (
        onnx.load(model, "protobuf", load_external_data=False) if isinstance(model, Path) else model
    )


def with_exact_products(model: onnx.ModelProto, *, signed_stays: bool = False) -> onnx.ModelProto:
    """Make both operands signed, or both unsigned, in every product that may saturate.

    Args:
        model: a model that runs; its external data is not needed, and it is changed.
        signed_stays: whether the runtime leaves signed quantized data signed.
    """
    model, _ = inlined(model, OPERATORS)
    shapes = ShapeTable(model, {})
    fresh = _fresh_names(model)
    # Inner graphs first: a node that holds one is copied when its own graph is written.
    for path, graph in reversed(list(placed_graphs(model.graph))):
        elements = partial(shapes.element, path)
        moves = [
            new
            for reader, value, zero, kind in _saturating(graph, elements, signed_stays)
            for new in _moved(reader, value, zero, kind, fresh)
        ]
        nodes = [*moves, *graph.node]  # the runtime sorts them
        del graph.node[:]
        graph.node.extend(nodes)
    return model


def _saturating(
    graph: onnx.GraphProto, elements: Callable[[str], int], signed_stays: bool
) -> Iterator[tuple[onnx.NodeProto, int, int, int]]:
    """Yield operands to convert: the reader, indices of operand and zero point, the type.

    Args:
        graph: its nodes; nodes of its bodies are left out.
        elements: element type of a value, 0 where it is not known.
        signed_stays: as for `with_exact_products`.
    """
    makers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        if product := _product(node):
            value, zero = product.second
            first = {elements(name) for name in (node.input[0], *node.input[2:3])}
            if product.types[0] in first and elements(node.input[value]) == product.types[1]:
                yield node, value, zero, INT8 if product.types[1] == UINT8 else UINT8
        elif is_default(node, *DEQUANTIZED):
            data, weight = (_source(makers, name, "DequantizeLinear") for name in node.input[:2])
            if data is None or weight is None:
                continue
            kind = elements(data.input[0])
            is_quantized = _source(makers, data.input[0], "QuantizeLinear") is not None
            turned = is_quantized and not (signed_stays and kind == INT8)
            # Of a weight that was moved for another reader the new name has no known type.
            if (kind == UINT8 or turned) and elements(weight.input[0]) == INT8:
                yield weight, 0, 2, UINT8


def _source(makers: Mapping[str, onnx.NodeProto], name: str, op_type: str) -> onnx.NodeProto | None:
    """Return the node behind a value, before moves and selections of elements, if of this type."""
    node = makers.get(name)
    while node is not None and is_default(node, *SELECTING, *REMOVED):
        node = makers.get(node.input[0])
    return node if node is not None and is_default(node, op_type) else None


def _moved(
    reader: onnx.NodeProto, value: int, zero: int, kind: int, fresh: Iterator[str]
) -> Iterator[onnx.NodeProto]:
    """Yield nodes that convert an operand and its zero point to a type, for their reader."""
    by = OFFSET if kind == UINT8 else -OFFSET
    reader.input.extend([""] * (zero + 1 - len(reader.input)))
    for index in (value, zero):
        offset_input, result = reader.input[index], next(fresh)
        reader.input[index] = result
        if offset_input:
            offset, wide, total = next(fresh), next(fresh), next(fresh)
            number = helper.make_tensor(offset, TensorProto.INT32, [], [by])
            yield helper.make_node("Constant", [], [offset], value=number)
            yield helper.make_node("Cast", [offset_input], [wide], to=TensorProto.INT32)
            yield helper.make_node("Add", [wide, offset], [total])
            yield helper.make_node("Cast", [total], [result], to=kind)
        elif reader.op_type == "DequantizeLinear":  # as many zero points as there are scales
            extents = next(fresh)
            number = helper.make_tensor(result, kind, [1], [by])
            yield helper.make_node("Shape", [reader.input[1]], [extents])
            yield helper.make_node("ConstantOfShape", [extents], [result], value=number)
        else:
            number = helper.make_tensor(result, kind, [], [by])
            yield helper.make_node("Constant", [], [result], value=number)


def _fresh_names(model: onnx.ModelProto) -> Iterator[str]:
    """Yield names that no value of a model has."""
    names = {name for node in model_nodes(model) for name in (*node.input, *node.output)}
    for graph in all_graphs(model.graph):
        names.update(value.name for value in (*graph.input, *graph.initializer))
        names.update(sparse.values.name for sparse in graph.sparse_initializer)
    return (name for i in count() if (name := f"widthfold/exact/{i}") not in names)
