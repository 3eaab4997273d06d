"""The layers and workloads of models, and runs on small integers."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime  # noqa: TID251 - the tests judge by the runtime itself

from tests.small_models import conv
from widthfold_onnx.model.document import Document
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import FoldOptions, Shapes
from widthfold_onnx.reports.described.tuning import lines
from widthfold_onnx.results import SearchReport
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.tuning.layers import Layers
from widthfold_onnx.tuning.targets import load_target
from widthfold_onnx.tuning.workloads import Workload

FOLD = FoldOptions()


def search_text(report: SearchReport) -> str:
    """Text of all lines of the report of a search."""
    return "; ".join(line.text for line in lines(report, is_full=True))


def layers_of(
    model: onnx.ModelProto, fold: FoldOptions = FOLD, shapes: Shapes | None = None
) -> Layers:
    """The layers of a model, measured at the given shapes of its inputs."""
    return Layers.of(
        Reading(Document(model, None, OPERATORS), Draft.unchanged(fold)),
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


BASE = {"shape": [1, 2, 6, 16], "weight": (3, 2, 3, 3), "pads": [1, 1, 1, 1]}


def subject(**changes: object) -> str:
    return workload_of(conv(**{**BASE, **changes})).subject
