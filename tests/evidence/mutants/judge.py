"""Judge whether a mutant is another function, by onnx's reference implementation in float64.

It shares no code with the folding, the proof or the runtime. All floating-point constants become
float64. A weight that is off by one unit in the last place of float32 is then far above the
rounding of the comparison.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tests.oracle import conv, conv_transpose, resolve_transposed_pads

Array = np.ndarray[Any, Any]


class ConvTranspose(OpRun):
    """The loop oracle; the reference implementation fails with groups (onnx 1.23.2)."""

    op_domain = ""

    def _run(
        self, x: Any, w: Any, b: Any = None, auto_pad: str = "NOTSET", **arguments: Any
    ) -> tuple[Any]:
        arguments = {name: value for name, value in arguments.items() if value is not None}
        kernel, shape = (
            arguments.pop("kernel_shape", w.shape[2:]),
            arguments.pop("output_shape", None),
        )
        rank = len(kernel)
        if shape or auto_pad.startswith("SAME"):
            strides, dilations = (arguments.get(n, [1] * rank) for n in ("strides", "dilations"))
            more = arguments.get("output_padding", [0] * rank)
            arguments["pads"] = resolve_transposed_pads(
                auto_pad, x.shape[2:], kernel, strides, dilations, more, shape
            )
        return (conv_transpose(x, w, b, **arguments),)


class ConvInteger(OpRun):
    """The loop oracle; the reference implementation takes one zero point per tensor."""

    op_domain = ""

    def _run(self, x: Any, w: Any, zx: Any = None, zw: Any = None, **arguments: Any) -> tuple[Any]:
        return (sums(x, w, zx, zw, None, arguments).astype(np.int32),)


class QLinearConv(OpRun):
    """The loop oracle; the reference implementation has two spatial axes."""

    op_domain = ""

    def _run(
        self, x: Any, sx: Any, zx: Any, w: Any, sw: Any, zw: Any, sy: Any, zy: Any, b: Any = None,
        **arguments: Any,
    ) -> tuple[Any]:  # fmt: skip
        total = sums(x, w, zx, zw, b, arguments)
        scale = (sx * sw / sy).reshape(-1, *[1] * (total.ndim - 2))
        limits = np.iinfo(zy.dtype)
        stepped = np.rint(total * scale) + zy.astype(np.int64)
        return (np.clip(stepped, limits.min, limits.max).astype(zy.dtype),)


def sums(x: Any, w: Any, zx: Any, zw: Any, b: Any, attributes: dict[str, Any]) -> Any:
    """Products of integers less their zero points."""
    assert attributes.pop("auto_pad", "NOTSET") == "NOTSET"
    kernel = attributes.pop("kernel_shape", None)
    if kernel and tuple(kernel) != w.shape[2:]:
        raise ValueError(f"a kernel of {w.shape[2:]} that is said to be {kernel}")
    attributes = {name: value for name, value in attributes.items() if value is not None}
    zero = np.zeros((), np.int64)
    x = x.astype(np.int64) - (zero if zx is None else zx.astype(np.int64))
    points = zero if zw is None else zw.astype(np.int64)
    return conv(x, w - points.reshape(-1, *[1] * (w.ndim - 1)), b, **attributes)


ROUNDING = 1e-12
OPEN = [(2, 9), (5, 6), (4, 15)]
"""Samples and positions for dimensions that a model leaves open."""


class Judgement(StrEnum):
    SAME = "same function"
    OTHER = "another function"
    BROKEN = "does not run"


def judge(original: onnx.ModelProto, mutant: onnx.ModelProto) -> Judgement:
    """Compare on random inputs, of several sizes where dimensions are open.

    Integers are over the whole range of their type.
    """
    for x, expected in answers(original.SerializeToString(deterministic=True)):
        try:
            y = run(mutant, x)
        except Exception:  # the reference implementation raises whatever numpy does
            return Judgement.BROKEN
        if y.shape != expected.shape:
            return Judgement.OTHER
        if y.dtype.kind in "iu":
            y, expected = y.astype(np.int64), expected.astype(np.int64)
        if not np.abs(y - expected).max() <= ROUNDING * np.abs(expected).max():
            return Judgement.OTHER
    return Judgement.SAME


@lru_cache(maxsize=4)
def answers(serialized: bytes) -> list[tuple[Array, Array]]:
    """Inputs and outputs of an original, once for all of its mutants."""
    original = onnx.ModelProto.FromString(serialized)
    kind = helper.tensor_dtype_to_np_dtype(original.graph.input[0].type.tensor_type.elem_type)
    dims = [d.dim_param or d.dim_value for d in original.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(2718)
    pairs = []
    for sizes in OPEN:
        shape = [
            d if isinstance(d, int) else sizes[0] if i == 0 else sizes[1]
            for i, d in enumerate(dims)
        ]
        x = rng.standard_normal(shape)
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            x = rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
        pairs.append((x, run(original, x)))
    return pairs


def run(model: onnx.ModelProto, x: Array) -> Array:
    """Run a model; the reference implementation knows DequantizeLinear since opset 19."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for tensor in wide.graph.initializer:
        if tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16):
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    if any(node.op_type == "DequantizeLinear" for node in wide.graph.node):
        wide.opset_import[0].version = max(19, wide.opset_import[0].version)
    with np.errstate(all="ignore"):
        (y,) = ReferenceEvaluator(wide, new_ops=[ConvTranspose, ConvInteger, QLinearConv]).run(
            None, {"x": x}
        )
    return np.asarray(y)
