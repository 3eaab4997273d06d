"""Measures what a machine can do at most: multiply and add, as a matrix product does, and copy.

`auto` runs no form whose arithmetic alone takes too long, and `verify` says how near a node comes.
"""

from __future__ import annotations

import onnx

from widthfold_onnx.model.proto.onnx_text import model_of
from widthfold_onnx.runtime.clock import clock_of, seconds_of
from widthfold_onnx.runtime.settings import Setting, random_run

RUNS = 15

_EXTENT = 512


def operations(setting: Setting, dtype: str = "float") -> float:
    """Return the operations per second of a matrix product; a multiply-add is two.

    Args:
        setting: of the sessions.
        dtype: element type, as ONNX's text syntax and the runtime's profile name it; both of 8
            bits stand for uint8 data and int8 weights.
    """
    op, types = "MatMul", (dtype, dtype, dtype)
    if dtype in ("int8", "uint8"):
        op, types = "MatMulInteger", ("uint8", "int8", "int32")
    a, b, y = (f"{kind}[{_EXTENT}, {_EXTENT}]" for kind in types)
    product = model_of(f"product ({a} a, {b} b) => ({y} y) {{ y = {op}(a, b) }}")
    return 2 * _EXTENT**3 / _shortest(product, setting)


def copied(setting: Setting, size: int) -> float:
    """Return the bytes per second of a copy that reads and writes so many bytes."""

    def seconds(size: int) -> float:
        tensor = f"float[{size // 8}]"
        model = model_of(f"copy ({tensor} x) => ({tensor} y) {{ y = Relu(x) }}")
        return _shortest(model, setting)

    launch = seconds(8)
    return size / max(seconds(size) - launch, 1e-9)


def _shortest(model: onnx.ModelProto, setting: Setting) -> float:
    """Return the seconds of the shortest of `RUNS` runs and a run that warms up."""
    run, clock = random_run(model, setting), clock_of(setting.how)
    return min(seconds_of(run, count, clock) for count in range(1 + RUNS))
