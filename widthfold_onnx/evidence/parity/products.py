"""Count the multiplications of a run: they take most of its time, on every machine."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx

from widthfold_onnx.model.proto.walk import operator_of
from widthfold_onnx.model.shapes.table import ShapeTable

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators whose work is their products."""


MAX_PRODUCTS = 1 << 34
"""Most multiplications of a run that is light; they take a core a second or two."""


def products_of(node: onnx.NodeProto, operands: Sequence[Sequence[int]], size: int) -> int:
    """Return the products of a node of `PRODUCTS`.

    Conv, weight [O, C / group, *kernel]: C / group * kernel products for each result.
    ConvTranspose, weight [C, O / group, *kernel]: O / group * kernel for each element of the data.
    Gemm and MatMul: one for each result and each position of the axis that is summed.

    Args:
        node: the node.
        operands: extents of its first two operands.
        size: elements of the result.
    """
    data, weight = operands
    if node.op_type == "ConvTranspose":
        return math.prod(data) * math.prod(weight[1:])
    if node.op_type == "Conv":
        return size * math.prod(weight[1:])
    is_transposed = any(a.name == "transA" and a.i for a in node.attribute)
    return size * data[0 if is_transposed else -1]


def products(model: onnx.ModelProto, table: ShapeTable) -> int:
    """Return the products of the main graph of a model, as far as shapes are known."""
    count = 0
    for node in model.graph.node:
        if operator_of(node) in {("", name) for name in PRODUCTS}:
            operands = [table.extents("", name) for name in node.input[:2]]
            known = [extents for extents in operands if extents]
            result = table.extents("", node.output[0])
            if len(known) == len(operands) and result is not None:
                count += products_of(node, known, math.prod(result))
    return count


def is_light(model: onnx.ModelProto, table: ShapeTable) -> bool:
    """Check that a run at other sizes than the first ones takes little time."""
    return products(model, table) <= MAX_PRODUCTS
