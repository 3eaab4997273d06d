"""Measures whether this CPU's kernel of unsigned data and signed weights computes exactly.

Without VNNI the runtime's kernel adds two products of 8 bits in 16 bits, and saturates
(microsoft/onnxruntime pull request 24220: `vpmaddubsw`). Weights of 7 bits cannot reach that, as
2 * 255 * 64 < 2**15. Where both types are signed, or both unsigned, other kernels compute exactly.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.sessions.session import Level, open_session

_DATA, _WEIGHT = np.uint8(255), np.int8(127)
_CHANNELS = 16
_EXPECTED = 200
"""The exact result; half of it is what saturation leaves of the largest products."""


@cache
def u8s8_error() -> int:
    """Return the error of a QLinearConv of the largest numbers, in steps out of 255; 0: exact.

    Raises:
        UnverifiedError: ONNX Runtime is not installed.
    """
    session = open_session(_model(), RuntimeOptions(provider=Provider.CPU), Level.DISABLED)
    result = session.run({"x": np.full((1, _CHANNELS, 1, 1), _DATA)})["y"]
    return int(np.abs(result.astype(int) - _EXPECTED).max())


def _model() -> onnx.ModelProto:
    """Return a QLinearConv of one position with the same exact result at every output channel."""
    largest = _CHANNELS * int(_DATA) * int(_WEIGHT)
    constants = {
        "one": np.float32(1),
        "zero": np.uint8(0),
        "w": np.full((_CHANNELS, _CHANNELS, 1, 1), _WEIGHT),
        "w_zero": np.int8(0),
        "y_scale": np.float32(largest / _EXPECTED),
    }
    inputs = ["x", "one", "zero", "w", "one", "w_zero", "y_scale", "zero"]
    shape = [1, _CHANNELS, 1, 1]
    graph = helper.make_graph(
        [helper.make_node("QLinearConv", inputs, ["y"])],
        "u8s8",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, shape)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)
