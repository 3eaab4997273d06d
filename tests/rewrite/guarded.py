"""Models for guards, and what both sides of a guard make of the same data."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the package made
from onnx import helper, numpy_helper

from widthfold_onnx import FoldOptions, NonFinite, fold_model

FINITE = FoldOptions(factor=4, axis="width", nonfinite=NonFinite.GUARD)
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")


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


def opened(model: onnx.ModelProto, level: str = "ORT_DISABLE_ALL") -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    return ort.InferenceSession(model.SerializeToString(), options)


def watched(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model that also returns the conditions of its guards."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in guards(model):
        port = helper.make_tensor_value_info(node.input[0], onnx.TensorProto.BOOL, [])
        copy.graph.output.append(port)
    return copy


def mask(array: np.ndarray) -> np.ndarray:
    """0 where finite, 1 for NaN, 2 and 3 for Inf and -Inf."""
    return np.isnan(array) + 2 * np.isposinf(array) + 3 * np.isneginf(array)


def draw(shape: tuple[int, ...], dtype: type = np.float32, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
