"""Small models: from ONNX text, with random weights, and the folder of those of the repository."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

from tests.shared import ROOT

MODELS = ROOT / "models"

TWO_LAYERS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,2,6,16] x) => (float[1,2,6,16] y) <float[3,2,3,3] w1, float[3] b1, float[2,3,1,5] w2>
{
    [first] a = Conv <pads = [1,1,1,1]> (x, w1, b1)
    [relu] r = Relu (a)
    [second] y = Conv <pads = [0,2,0,2]> (r, w2)
}"""


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
