"""Measure kernels of the runtime on this machine: two inexact ones, and the fastest ones.

* `prelu_keeps_inf`: some releases of ONNX Runtime return NaN for a PRelu of Inf. ONNX keeps Inf.
* `u8s8_error`: without VNNI the runtime's kernel of unsigned data and signed weights adds two
  products of 8 bits in 16 bits, and saturates (microsoft/onnxruntime pull request 24220:
  `vpmaddubsw`). Weights of 7 bits cannot reach that, as 2 * 255 * 64 < 2**15. Kernels of two signed
  or two unsigned types compute exactly.
* `multiply_speed`, `copy_speed`: operations a second of a matrix product, and bytes a second of a
  copy. `verify` reports how near a node comes to these speeds.
* `peak_speed`: operations a second of the fastest product. `auto` runs no form whose arithmetic
  alone takes too long at that speed.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.clock import clock_of, seconds_of
from widthfold_onnx.runtime.provider_traits import Level, traits_of
from widthfold_onnx.runtime.providers import model_of
from widthfold_onnx.runtime.session import open_session
from widthfold_onnx.runtime.settings import Setting, random_run

SIZE = 16
"""Elements of the tensors: a single element may take another kernel than a whole vector."""

PRELU_MODEL = f"g (float[{SIZE}] x) => (float[{SIZE}] y) <float s = {{0.5}}> {{ y = PRelu (x, s) }}"


@cache
def prelu_keeps_inf() -> bool:
    """Return whether PRelu of an Inf is an Inf; true where no runtime is installed to ask."""
    try:
        session = open_session(
            model_of(PRELU_MODEL), RuntimeOptions(provider=Provider.CPU), Level.DISABLED
        )
    except UnverifiedError:
        return True
    return bool(np.isinf(session.run({"x": np.full(SIZE, np.inf, np.float32)})["y"]).all())


_DATA, _WEIGHT = np.uint8(255), np.int8(127)
_CHANNELS = 16
_EXPECTED = 200
"""The exact result; a kernel that saturates returns about half of it."""


@cache
def u8s8_error() -> int:
    """Return the error of a QLinearConv of the largest numbers, in steps out of 255; 0 if exact.

    Raises:
        UnverifiedError: ONNX Runtime is not installed.
    """
    session = open_session(_model(), RuntimeOptions(provider=Provider.CPU), Level.DISABLED)
    result = session.run({"x": np.full((1, _CHANNELS, 1, 1), _DATA)})["y"]
    return int(np.abs(result.astype(int) - _EXPECTED).max())


def _model() -> onnx.ModelProto:
    """Return a QLinearConv at one position whose exact result is `_EXPECTED` in every channel."""
    scale = _CHANNELS * int(_DATA) * int(_WEIGHT) / _EXPECTED
    weights = ", ".join([str(_WEIGHT)] * _CHANNELS**2)
    tensor = f"uint8[1, {_CHANNELS}, 1, 1]"
    return model_of(
        f"u8s8 ({tensor} x) => ({tensor} y) <float one = {{1}}, float y_scale = {{{scale}}}, "
        f"uint8 zero = {{0}}, int8[{_CHANNELS}, {_CHANNELS}, 1, 1] w = {{{weights}}}, "
        "int8 w_zero = {0}> { y = QLinearConv(x, one, zero, w, one, w_zero, y_scale, zero) }"
    )


RUNS = 15


def multiply_speed(setting: Setting, dtype: str = "float", extent: int = 512) -> float:
    """Return the operations per second of a matrix product; a multiply-add is two.

    Args:
        setting: of the sessions.
        dtype: element type, as ONNX's text syntax and the runtime's profile name it; both of 8
            bits stand for uint8 data and int8 weights.
        extent: rows and columns of both matrices.
    """
    op, types = "MatMul", (dtype, dtype, dtype)
    if dtype in ("int8", "uint8"):
        op, types = "MatMulInteger", ("uint8", "int8", "int32")
    a, b, y = (f"{kind}[{extent}, {extent}]" for kind in types)
    product = model_of(f"product ({a} a, {b} b) => ({y} y) {{ y = {op}(a, b) }}")
    return 2 * extent**3 / _shortest(product, setting)


def peak_speed(setting: Setting) -> float:
    """Return the operations per second that a layer can hardly exceed.

    On a GPU they are those of a large float16 product: a small product takes no longer than its
    launch, and float32 runs at half the speed.
    """
    if traits_of(setting.options.provider).device == "nvidia":
        return multiply_speed(setting, "float16", 4096)
    return multiply_speed(setting)


def copy_speed(setting: Setting, size: int) -> float:
    """Return the bytes per second of a Relu that reads and writes `size` bytes in all."""

    def seconds(count: int) -> float:
        tensor = f"float[{count}]"
        model = model_of(f"copy ({tensor} x) => ({tensor} y) {{ y = Relu(x) }}")
        return _shortest(model, setting)

    launch = seconds(1)
    return size / max(seconds(size // 8) - launch, 1e-9)


def _shortest(model: onnx.ModelProto, setting: Setting) -> float:
    """Return the seconds of the shortest run: one to warm up, and `RUNS` more."""
    run, clock = random_run(model, setting), clock_of(setting.options)
    return min(seconds_of(run, count, clock) for count in range(1 + RUNS))
