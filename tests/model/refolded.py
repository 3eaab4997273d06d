"""Folds a model and runs it before and after: both must say the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the package made
from onnx import numpy_helper

from tests.folding import fold_model
from widthfold_onnx.options import FoldOptions

LEVELS = (
    ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
)
RNG = np.random.default_rng(1)
W = RNG.standard_normal((3, 2, 3, 3)).astype(np.float32)
SQUARE = RNG.standard_normal((2, 2, 3, 3)).astype(np.float32)
B = RNG.standard_normal(3).astype(np.float32)
OPTIONS = FoldOptions(factor=2)
PADS = "pads = [1, 1, 1, 1]"
Arrays = Mapping[str, np.ndarray]


def parsed(text: str, constants: Arrays | None = None, opset: int = 17, ir: int = 8):
    model = onnx.parser.parse_model(
        f'<ir_version: {ir}, opset_import: ["" : {opset}]> main {text}'.replace("PADS", PADS)
    )
    for name, array in (constants or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def outputs(model: onnx.ModelProto, feeds: Arrays, level) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = level
    return ort.InferenceSession(model.SerializeToString(), options).run(None, dict(feeds))


def assert_same(before: onnx.ModelProto, after: onnx.ModelProto, *feeds: Arrays) -> None:
    for fed in feeds:
        for level in LEVELS:
            pairs = zip(outputs(before, fed, level), outputs(after, fed, level), strict=True)
            for first, second in pairs:
                assert first.shape == second.shape
                np.testing.assert_allclose(second, first, rtol=1e-5, atol=1e-5)


def refolded(model: onnx.ModelProto, *feeds: Arrays, options: FoldOptions = OPTIONS):
    """Fold, compare on the runtime, and return the result with the codes of all sites."""
    result, sites = fold_model(model, options)
    assert_same(model, result, *(feeds or [{"x": data()}]))
    return result, {site.node: site.code for site in sites}


def data(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(shape or (1, 2, 8, 8)).astype(np.float32)


def constants(model: onnx.ModelProto) -> list[str]:
    return [tensor.name for tensor in model.graph.initializer]
