"""Models for guards, and what both sides of a guard make of the same data."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.folding import fold_model
from widthfold_onnx.options import FoldOptions

PADS = "pads = [1, 2, 1, 2]"
WEIGHTS = {"u": (3, 3, 3, 5), "v": (3, 3, 3, 5), "w": (5, 3, 3, 5), "b": (3,), "d": (5,)}
CHAIN = f"""<ir_version: 8, opset_import: ["" : 17]>
main (float[2, 3, 7, W] x) => (float[2, 5, 7, W] y) {{
  c = Conv <{PADS}> (x, u, b)
  r = Relu (c)
  e = Conv <{PADS}> (r, v, b)
  a = Add (e, r)
  y = Conv <{PADS}> (a, w, d)
}}"""
"""Three layers that run on packed tensors, where a width is assumed."""

SEVERAL = f"""<ir_version: 8, opset_import: ["" : 17]>
main (float[2, 3, 7, W] x, float[2, 3, 7, V] z) => (float[2, 5, 7, Y] y, float[2, 3, 7, Y] s) {{
  c = Conv <{PADS}> (x, u, b)
  e = Conv <{PADS}> (z, v, b)
  s = Sub (c, e)
  y = Conv <{PADS}> (s, w, d)
}}"""
"""A Sub of two layers; where one is of width 1, its numbers are repeated."""

SHAPE = (2, 3, 7, 20)
REGION = FoldOptions(factor=4, axis="width", input_shapes={"x": SHAPE, "z": SHAPE})


def parsed(text: str, seed: int = 3, dtype: type = np.float32, **shapes: tuple) -> onnx.ModelProto:
    """A model in ONNX's text form; the named constants are random."""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(seed)
    for name, shape in shapes.items():
        array = rng.standard_normal(shape).astype(dtype)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.checker.check_model(model, full_check=True)
    return model


def folded(model: onnx.ModelProto, options: FoldOptions, count: int) -> onnx.ModelProto:
    """The model with `count` of its sites folded; the checker has seen it."""
    result, sites = fold_model(model, options)
    assert sum(site.status == "folded" for site in sites) == count, sites
    onnx.checker.check_model(result, full_check=True)
    assert result.graph.input == model.graph.input
    assert result.graph.output == model.graph.output
    return result


def guards(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [
        node
        for node in model.graph.node
        if any(entry.key == "widthfold.guard" and entry.value for entry in node.metadata_props)
    ]


def watched(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model that also returns the conditions of its guards."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in guards(model):
        port = helper.make_tensor_value_info(node.input[0], onnx.TensorProto.BOOL, [])
        copy.graph.output.append(port)
    return copy


def draw(shape: tuple[int, ...], dtype: type = np.float32, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
