"""Asks what ONNX Runtime's PRelu makes of an Inf: some releases return NaN, where ONNX keeps it."""

from __future__ import annotations

from functools import cache

import numpy as np

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.model.proto.onnx_text import model_of
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.sessions.session import Level, open_session

SIZE = 16
"""A vector: the kernel of a single element may be another one."""

MODEL = f"g (float[{SIZE}] x) => (float[{SIZE}] y) <float s = {{0.5}}> {{ y = PRelu (x, s) }}"


@cache
def prelu_keeps_inf() -> bool:
    """Return whether PRelu of an Inf is an Inf; true where no runtime is installed to ask."""
    try:
        session = open_session(
            model_of(MODEL), RuntimeOptions(provider=Provider.CPU), Level.DISABLED
        )
    except UnverifiedError:
        return True
    return bool(np.isinf(session.run({"x": np.full(SIZE, np.inf, np.float32)})["y"]).all())
