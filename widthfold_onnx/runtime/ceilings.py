"""Measures what a machine can do at most: multiply and add, as a matrix product does, and copy.

`auto` runs no form whose arithmetic alone takes too long, and `verify` says how near a node comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import TensorProto, helper

Shortest = Callable[[onnx.ModelProto], float]
"""Returns the seconds of the shortest of `RUNS` runs of a model on random inputs."""

RUNS = 15

_EXTENT = 512


def operations(shortest: Shortest, dtype: int = TensorProto.FLOAT) -> float:
    """Return the operations per second of a matrix product; a multiply-add is two.

    Args:
        shortest: runs models.
        dtype: element type of ONNX; both of 8 bits stand for uint8 data and int8 weights.
    """
    dims = [_EXTENT, _EXTENT]
    if dtype in (TensorProto.INT8, TensorProto.UINT8):
        kinds = [TensorProto.UINT8, TensorProto.INT8]
        product = _model("MatMulInteger", kinds, TensorProto.INT32, dims)
    else:
        product = _model("MatMul", [dtype, dtype], dtype, dims)
    return 2 * _EXTENT**3 / shortest(product)


def copied(shortest: Shortest, size: int) -> float:
    """Return the bytes per second of a copy that reads and writes so many bytes."""

    def seconds(size: int) -> float:
        float32 = TensorProto.FLOAT
        return shortest(_model("Relu", [float32], float32, [size // 8]))

    launch = seconds(8)
    return size / max(seconds(size) - launch, 1e-9)


def _model(op: str, kinds: Sequence[int], made: int, dims: list[int]) -> onnx.ModelProto:
    """Return a model of one node."""
    inputs = [helper.make_tensor_value_info(f"x{i}", kind, dims) for i, kind in enumerate(kinds)]
    node = helper.make_node(op, [port.name for port in inputs], ["y"])
    output = helper.make_tensor_value_info("y", made, dims)
    graph = helper.make_graph([node], "ceiling", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
