"""Layers to plan for: models of one Conv and small integers, their workloads, and how they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime  # noqa: TID251 - the tests judge by the runtime itself
from onnx import helper, numpy_helper

from widthfold_onnx.model.document import Document
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import FoldOptions, Shapes
from widthfold_onnx.reports.described.tuning import lines
from widthfold_onnx.reports.description import Detail
from widthfold_onnx.results import SearchReport
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.tuning.layers import Layers
from widthfold_onnx.tuning.targets import load_target
from widthfold_onnx.tuning.workloads import Workload

Dims = Sequence[int | str | None]
FOLD = FoldOptions()


def search_text(report: SearchReport) -> str:
    """All that a report says of a search."""
    return "; ".join(line.text for line in lines(report, Detail.FULL))


def conv(
    shape: Dims,
    weight: Sequence[int],
    *,
    seed: int = 0,
    dtype: type = np.float32,
    bias: bool = True,
    behind: Sequence[tuple[str, Sequence[np.ndarray], Mapping[str, object]]] = (),
    output: str = "y",
    op: str = "Conv",
    blocks: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """A Conv or ConvTranspose of small integers; operators behind it take further constants.

    Its weight is zero outside of so many blocks of channels.
    """
    rng = np.random.default_rng(seed)
    constants = {"w": rng.integers(-2, 3, weight)}
    if blocks > 1:
        inside = np.kron(np.eye(blocks), np.ones([n // blocks for n in weight[:2]]))
        constants["w"][inside == 0] = 0
    if bias:
        group = attributes.get("group", 1)
        outputs = weight[0] if op == "Conv" else weight[1] * group
        constants["b"] = rng.integers(-4, 5, outputs)
    names = [*(f"value{index}" for index in range(len(behind))), output]
    nodes = [helper.make_node(op, ["x", *constants], names[:1], "conv", **attributes)]
    for index, (op, values, settings) in enumerate(behind):
        operands = {f"c{index}_{i}": value for i, value in enumerate(values)}
        constants |= operands
        ends = [names[index], *operands], [names[index + 1]]
        nodes.append(helper.make_node(op, *ends, f"{op}{index}", **settings))
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info(output, element, [None] * len(shape))],
        [numpy_helper.from_array(np.asarray(v).astype(dtype), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def layers_of(
    model: onnx.ModelProto, fold: FoldOptions = FOLD, shapes: Shapes | None = None
) -> Layers:
    """The layers of a model, measured at the given shapes of its inputs."""
    return Layers.of(
        Reading(Document(model, None, OPERATORS), fold.input_shapes),
        fold,
        shapes or {},
        load_target("cpu-avx512"),
    )


def workload_of(
    model: onnx.ModelProto, fold: FoldOptions = FOLD, shapes: Shapes | None = None
) -> Workload:
    """The workload of a model that has one."""
    (workload,) = layers_of(model, fold, shapes).workloads.values()
    return workload


def run(model: bytes, x: np.ndarray) -> np.ndarray:
    """The output of a model for one input, exactly as it is written."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {session.get_inputs()[0].name: x})
    return result


def integers(model: bytes, dtype: type = np.float32) -> np.ndarray:
    """A small-integer input for a model of one input."""
    dims = onnx.ModelProto.FromString(model).graph.input[0].type.tensor_type.shape.dim
    rng = np.random.default_rng(9)
    return rng.integers(-3, 4, [d.dim_value for d in dims]).astype(dtype)


def same(*kernel: int) -> str:
    half = [k // 2 for k in kernel]
    return f"pads = {half + half}"


STRIDED = "strides = [2, 2], pads = [{0}, {0}, {0}, {0}]"


BASE = {"shape": [1, 2, 6, 16], "weight": (3, 2, 3, 3), "pads": [1, 1, 1, 1]}


def subject(**changes: object) -> str:
    return workload_of(conv(**{**BASE, **changes})).subject
