"""The truth: what the original would compute without rounding to its own element types.

All floats of the model are widened to float64 (weights, casts, what nodes make up) and onnx's
reference implementation runs it, with a Conv of our own because that one is slow. It knows
neither every operator nor every version, so there may be no truth; then nothing is claimed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.inline import inlined
from widthfold_onnx.evidence.rows import Outputs
from widthfold_onnx.model.walk import all_nodes, all_tensors
from widthfold_onnx.runtime.session import Array
from widthfold_onnx.runtime.stored import InputSet
from widthfold_onnx.runtime.worker import isolated

START = 5.0
"""Seconds on top of the budget until the process is killed: it must start, and one node of the
reference implementation may run for minutes."""

MAX_BYTES = 1 << 28
"""Largest model that is widened; it is held several times."""

_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


class Conv(OpRun):
    """Conv in the element type of its inputs, as one product of matrices per tap."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str = "NOTSET",
        dilations: Sequence[int] | None = None,
        group: int = 1,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        rank = w.ndim - 2
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        reach = [d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:], strict=True)]
        begins, ends = _pads(auto_pad, pads or [0] * 2 * rank, x.shape[2:], strides, reach)
        x = np.pad(x, [(0, 0), (0, 0), *zip(begins, ends, strict=True)])
        out = [(e - r) // s + 1 for e, r, s in zip(x.shape[2:], reach, strides, strict=True)]
        x = x.reshape(x.shape[0], group, -1, *x.shape[2:])
        w = w.reshape(group, -1, *w.shape[1:])
        y = np.zeros((x.shape[0], group, w.shape[1], math.prod(out)), x.dtype)
        for tap in np.ndindex(*w.shape[3:]):
            places = [
                slice(d * t, d * t + s * (n - 1) + 1, s)
                for t, d, s, n in zip(tap, dilations, strides, out, strict=True)
            ]
            seen = x[:, :, :, *places].reshape(*x.shape[:3], -1)
            y += w[:, :, :, *tap] @ seen
        y = y.reshape(x.shape[0], -1, *out)
        return (y if b is None else y + b.reshape(-1, *[1] * rank),)


def _pads(
    auto_pad: str,
    pads: Sequence[int],
    extents: Sequence[int],
    strides: Sequence[int],
    reach: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Zeros before and after each spatial axis."""
    rank = len(extents)
    if not auto_pad.startswith("SAME"):
        return list(pads[:rank]), list(pads[rank:])
    total = [
        max(0, (-(-extent // s) - 1) * s + r - extent)
        for extent, s, r in zip(extents, strides, reach, strict=True)
    ]
    less = [t // 2 for t in total]
    more = [t - half for t, half in zip(total, less, strict=True)]
    return (less, more) if auto_pad == "SAME_UPPER" else (more, less)


def true_outputs(
    model: Path, outputs: Sequence[str], sets: Sequence[InputSet], budget: float
) -> list[Outputs]:
    """What the model computes in float64 on each input set, {} where that is not known.

    It runs in a process of its own, which ends when the budget is spent. Small sets go first, so
    that there is time for as many as possible.

    Args:
        model: the original.
        outputs: their names in graph order.
        sets: the input sets.
        budget: seconds; 0 asks for nothing.
    """
    results: list[Outputs] = [{} for _ in sets]
    if budget <= 0:
        return results
    order = sorted(range(len(sets)), key=lambda i: sum(x.size for x in sets[i].feeds.values()))
    feeds = [sets[i].feeds for i in order]
    try:
        runs = isolated(evaluate, model, list(outputs), feeds, budget, timeout=budget + START)
    except UnverifiedError:
        return results
    for i, run in zip(order, runs, strict=False):
        results[i] = run
    return results


def evaluate(
    model: Path, outputs: Sequence[str], feeds: Sequence[Outputs], budget: float
) -> list[Outputs]:
    """Outputs in float64 for the first sets of inputs, as many as the budget lets begin."""
    ends = time.monotonic() + budget
    pace = 0.0  # seconds per element of the largest set so far
    results: list[Outputs] = []
    try:
        proto = inlined(model, MAX_BYTES)
        widen(proto)
        evaluator = ReferenceEvaluator(proto, new_ops=[Conv])
        with np.errstate(all="ignore"):
            for item in feeds:
                began, size = time.monotonic(), sum(array.size for array in item.values())
                if results and began + pace * size > ends:
                    break
                wide = {name: _wide(array) for name, array in item.items()}
                values = evaluator.run(list(outputs), wide)
                results.append({n: v for n, v in zip(outputs, values, strict=True) if _float(v)})
                pace = (time.monotonic() - began) / max(size, 1)
    except UnverifiedError:
        raise
    except Exception as error:
        # Every operator fails in its own way on what it does not know; there is no common base.
        if not results:
            raise UnverifiedError(f"no truth: {type(error).__name__}") from error
    return results


def widen(model: onnx.ModelProto) -> None:
    """Turn every float of a model that holds its own data into float64."""
    for tensor in all_tensors(model):
        if tensor.data_type in _NARROW:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    bodies = [model.graph.node, *(function.node for function in model.functions)]
    for node in (node for body in bodies for node in all_nodes(body)):
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i in _NARROW:
                attribute.i = TensorProto.DOUBLE
            elif node.op_type == "Constant" and attribute.name.startswith("value_float"):
                single = attribute.name == "value_float"
                values = np.array(attribute.f if single else attribute.floats, np.float64)
                wide = numpy_helper.from_array(values)
                attribute.CopyFrom(helper.make_attribute("value", wide))


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _float(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float64
