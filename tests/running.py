"""Models run by the runtime itself, which judges what the package made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests judge by the runtime itself

Array = np.ndarray[Any, np.dtype[Any]]
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")


def opened(model: onnx.ModelProto | Path, level: str = LEVELS[0]) -> ort.InferenceSession:
    """A session of one thread on the CPU; by default it runs the model exactly as it is written."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    source = model if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run(
    model: onnx.ModelProto | Path, feeds: Mapping[str, Array] | Array, level: str = LEVELS[0]
) -> list[Array]:
    """The outputs of a model; an array is its input x."""
    arrays = {"x": feeds} if isinstance(feeds, np.ndarray) else dict(feeds)
    return opened(model, level).run(None, arrays)
