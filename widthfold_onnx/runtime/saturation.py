"""Measures whether this CPU's kernel of unsigned data and signed weights computes exactly.

Without VNNI the runtime's kernel adds two products of 8 bits in 16 bits, and saturates
(microsoft/onnxruntime pull request 24220: `vpmaddubsw`). Weights of 7 bits cannot reach that, as
2 * 255 * 64 < 2**15. Where both types are signed, or both unsigned, other kernels compute exactly.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx

from widthfold_onnx.model.proto.onnx_text import model_of
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
    scale = _CHANNELS * int(_DATA) * int(_WEIGHT) / _EXPECTED
    weights = ", ".join([str(_WEIGHT)] * _CHANNELS**2)
    tensor = f"uint8[1, {_CHANNELS}, 1, 1]"
    return model_of(
        f"u8s8 ({tensor} x) => ({tensor} y) <float one = {{1}}, float y_scale = {{{scale}}}, "
        f"uint8 zero = {{0}}, int8[{_CHANNELS}, {_CHANNELS}, 1, 1] w = {{{weights}}}, "
        "int8 w_zero = {0}> { y = QLinearConv(x, one, zero, w, one, w_zero, y_scale, zero) }"
    )
