"""Give a constant of one number two dimensions, where ONNX Runtime broadcasts it slowly.

    before:  x [..., L, 1] - Add(c []) ------ y
    after:   x [..., L, 1] - Add(c [1, 1]) -- y

Matches: Add, Div, Mul and Sub of a tensor whose last extent is 1 and a constant of one number with
    fewer than two dimensions. The runtime's loop over the last axis then takes one element at a
    time, 12 ns for each; with the extents [1, 1] it takes all at once, 0.2 ns for each.
Rewrites: to the same op with the number as a matrix.
Exact: both read the same numbers, and the result has the extents of the data.
Leaves alone: operands from a DequantizeLinear, which a runtime may compute in integers.
"""

from __future__ import annotations

from widthfold_onnx.model.document import Document, Node, graph_of
from widthfold_onnx.model.shapes.arithmetic import BROADCAST_OPSET
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.companions.companion import Exchange, NodeSpec
from widthfold_onnx.rules.quantization import dequantizer, is_single


def scalar(document: Document, node: Node) -> Exchange | None:
    """Return the op with a matrix of one number; None where it would gain nothing."""
    first, second = node.inputs
    assert first is not None and second is not None
    if document.opset < BROADCAST_OPSET or any(map(dequantizer, (first, second))):
        return None
    for number, data in ((second, first), (first, second)):
        constant, dims = document.constant(number), document.dims(graph_of(node), data)
        if isinstance(constant, Refusal) or not dims or len(dims) < 2 or dims[-1] != 1:
            continue
        if is_single(constant.shape):
            matrix = document.read(constant).reshape(1, 1)
            operands = (data, matrix) if number is second else (matrix, data)
            return Exchange(node, (NodeSpec(node.op_type, operands),))
    return None
