"""Models of one Conv, and what becomes of it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.folding import fold_model
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.results import SiteReport


def conv_model(
    x_shape: list[int | str | None],
    weight: tuple[int, ...],
    *,
    bias: bool = False,
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
    name: str = "conv",
    **attributes: object,
) -> onnx.ModelProto:
    rng = np.random.default_rng(7)
    numpy_type = helper.tensor_dtype_to_np_dtype(dtype)
    constants = [numpy_helper.from_array(rng.standard_normal(weight).astype(numpy_type), "w")]
    if bias:
        values = rng.standard_normal(weight[0]).astype(numpy_type)
        constants.append(numpy_helper.from_array(values, "b"))
    node = helper.make_node("Conv", ["x", "w", "b"][: 2 + bias], ["y"], name, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", dtype, x_shape)],
        [helper.make_tensor_value_info("y", dtype, [None] * len(x_shape))],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def site(model: onnx.ModelProto, factor: int = 8, **options: object) -> SiteReport:
    _, (report,) = fold_model(model, FoldOptions(factor=factor, **options))
    return report


def folded_conv(model: onnx.ModelProto, factor: int = 8, **options: object) -> onnx.NodeProto:
    result, _ = fold_model(model, FoldOptions(factor=factor, **options))
    return next(node for node in result.graph.node if node.op_type == "Conv")


def ops(model: onnx.ModelProto, factor: int = 8, **options: object) -> list[str]:
    result, _ = fold_model(model, FoldOptions(factor=factor, **options))
    return [node.op_type for node in result.graph.node]


def transposed_model(
    x_shape: list[int | str | None],
    weight: tuple[int, ...],
    *,
    bias: int = 0,
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
    **attributes: object,
) -> onnx.ModelProto:
    rng = np.random.default_rng(7)
    numpy_type = helper.tensor_dtype_to_np_dtype(dtype)
    arrays = {"w": rng.standard_normal(weight)} | ({"b": np.ones(bias)} if bias else {})
    node = helper.make_node("ConvTranspose", ["x", *arrays], ["y"], "up", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", dtype, x_shape)],
        [helper.make_tensor_value_info("y", dtype, [None] * len(x_shape))],
        [numpy_helper.from_array(a.astype(numpy_type), n) for n, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
