"""Models as text, and the extents that are found in them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from widthfold_onnx.model.shapes.table import ShapeTable


def parsed(text: str, *, opset: int = 17, ir: int = 8, **constants) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]> main {text}')
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def shape(model: onnx.ModelProto, name: str, path: str = "", **pins):
    return ShapeTable(model, pins).get(path, name)
