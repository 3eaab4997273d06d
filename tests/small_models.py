"""Small models: from ONNX text, of one Conv, and the folder of models of the repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

from tests.shared import ROOT

MODELS = ROOT / "models"

Dims = Sequence[int | str | None]

TWO_LAYERS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,2,6,16] x) => (float[1,2,6,16] y) <float[3,2,3,3] w1, float[3] b1, float[2,3,1,5] w2>
{
    [first] a = Conv <pads = [1,1,1,1]> (x, w1, b1)
    [relu] r = Relu (a)
    [second] y = Conv <pads = [0,2,0,2]> (r, w2)
}"""

TWO_CONVS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,2,8,16] x) => (float[1,3,8,16] y) <float[4,2,1,3] w1, float[3,4,1,3] w2>
{
    [first] a = Conv <pads = [0,1,0,1]> (x, w1)
    b = Relu (a)
    y = Conv <pads = [0,1,0,1]> (b, w2)
}"""
"""The second Conv has no name."""

LAYER = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,2,8,16] x) => (float[1,4,8,16] y) <float[4,2,3,3] w, float[4] b>
{
    [conv] c = Conv <pads = [1,1,1,1]> (x, w, b)
    [relu] y = Relu (c)
}"""


def build(text: str = TWO_LAYERS, seed: int = 0) -> onnx.ModelProto:
    """A model from ONNX text; what no node computes becomes a random float weight."""
    model = parser.parse_model(text)
    graph = model.graph
    rng = np.random.default_rng(seed)
    computed = {name for node in graph.node for name in node.output}
    for value in [v for v in graph.value_info if v.name not in computed]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(array, value.name))
        graph.value_info.remove(value)
    return model


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def nothing_to_fold() -> onnx.ModelProto:
    """A Conv whose weight is an input."""
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 1, 4, 8]), ("w", [1, 1, 3, 3]), ("y", [1, 1, 4, 8]))
    ]
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])
    graph = helper.make_graph([node], "g", ends[:2], ends[2:])
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


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


def same(*kernel: int) -> str:
    half = [k // 2 for k in kernel]
    return f"pads = {half + half}"


STRIDED = "strides = [2, 2], pads = [{0}, {0}, {0}, {0}]"
