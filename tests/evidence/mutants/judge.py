"""Is a mutant another function? onnx's reference implementation decides, in float64.

It shares no code with the folding, the proof or the runtime. All floating-point constants become
float64, so that a weight which is off by one unit in the last place of float32 is far above the
rounding of the comparison.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tests.oracle import conv_transpose, resolve_transposed_pads


class ConvTranspose(OpRun):
    """The loop oracle; that of the reference implementation fails with groups (onnx 1.23.2)."""

    op_domain = ""

    def _run(
        self, x: Any, w: Any, b: Any = None, auto_pad: str = "NOTSET", **given: Any
    ) -> tuple[Any]:
        given = {name: value for name, value in given.items() if value is not None}
        kernel, shape = given.pop("kernel_shape", w.shape[2:]), given.pop("output_shape", None)
        rank = len(kernel)
        if shape or auto_pad.startswith("SAME"):
            strides, dilations = (given.get(n, [1] * rank) for n in ("strides", "dilations"))
            more = given.get("output_padding", [0] * rank)
            given["pads"] = resolve_transposed_pads(
                auto_pad, x.shape[2:], kernel, strides, dilations, more, shape
            )
        return (conv_transpose(x, w, b, **given),)


ROUNDING = 1e-12
OPEN = [(2, 9), (5, 6), (4, 15)]
"""Samples and positions for dimensions that a model leaves open."""


class Judgement(StrEnum):
    SAME = "same function"
    OTHER = "another function"
    BROKEN = "does not run"


def judge(original: onnx.ModelProto, mutant: onnx.ModelProto) -> Judgement:
    """Compare on random inputs, of several sizes where dimensions are open."""
    dims = [d.dim_param or d.dim_value for d in original.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(2718)
    for sizes in OPEN:
        shape = [
            d if isinstance(d, int) else sizes[0] if i == 0 else sizes[1]
            for i, d in enumerate(dims)
        ]
        x = rng.standard_normal(shape)
        expected = run(original, x)
        try:
            y = run(mutant, x)
        except Exception:  # the reference implementation raises whatever numpy does
            return Judgement.BROKEN
        if y.shape != expected.shape:
            return Judgement.OTHER
        if not np.abs(y - expected).max() <= ROUNDING * np.abs(expected).max():
            return Judgement.OTHER
    return Judgement.SAME


def run(model: onnx.ModelProto, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for tensor in wide.graph.initializer:
        if tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16):
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    with np.errstate(all="ignore"):
        (y,) = ReferenceEvaluator(wide, new_ops=[ConvTranspose]).run(None, {"x": x})
    return np.asarray(y)
