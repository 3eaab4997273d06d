"""Judge whether two models are different functions, by onnx's reference implementation in float64.

It shares no code with the proof but the moves (Reshape, Slice and others), which both run by onnx.
All constants of type float become float64, so that one unit in the last place of float32 is far
above the rounding of the comparison.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.evidence.mutants.judge import ConvTranspose, QLinearConv

Array = np.ndarray[Any, Any]

ROUNDING = 1e-12
SIZES = ({"n": 2, "l": 24}, {"n": 3, "l": 19}, {"n": 5, "l": 25}, {"n": 4, "l": 16})
"""Extents of the dimensions that models leave open."""


def differ(original: onnx.ModelProto, other: onnx.ModelProto) -> bool | None:
    """Compare on random inputs of several sizes; None where one model alone fails."""
    try:
        wrong = ReferenceEvaluator(widened(other), new_ops=[ConvTranspose, QLinearConv])
    except Exception:  # it raises different errors for every way of not knowing an operator
        return None
    for feeds, expected in answers(original.SerializeToString(deterministic=True)):
        with np.errstate(all="ignore"):
            try:
                actual = wrong.run(None, feeds)
            except Exception:  # it raises whatever numpy raises
                return None
        for first, two in zip(expected, actual, strict=True):
            a, b = (np.asarray(array, np.float64) for array in (first, two))
            scale = np.abs(a).max(initial=0)
            if a.shape != b.shape or not np.abs(a - b).max(initial=0) <= ROUNDING * scale:
                return True
    return False


@lru_cache(maxsize=4)
def answers(serialized: bytes) -> list[tuple[dict[str, Array], list[Array]]]:
    """Inputs and outputs of an original at all sizes, once for all of its faults."""
    original = onnx.ModelProto.FromString(serialized)
    right = ReferenceEvaluator(widened(original), new_ops=[ConvTranspose, QLinearConv])
    pairs = []
    for number, sizes in enumerate(SIZES):
        feeds = {v.name: drawn(v, sizes, number) for v in original.graph.input}
        with np.errstate(all="ignore"):
            pairs.append((feeds, right.run(None, feeds)))
    return pairs


def drawn(value: onnx.ValueInfoProto, sizes: dict[str, int], number: int) -> Array:
    """Random numbers for an input."""
    rng = np.random.default_rng([len(value.name), number])
    shape = [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim]
    kind = value.type.tensor_type.elem_type
    if kind == TensorProto.BOOL:
        return np.array(number % 2 == 0)
    if kind == TensorProto.UINT8:
        return rng.integers(0, 256, shape).astype(np.uint8)
    return rng.standard_normal(shape)


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose floats are float64, in bodies and nodes as well."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    widen(copy.graph)
    return copy


def widen(graph: onnx.GraphProto) -> None:
    """Change the constants of a graph in place."""
    tensors = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                widen(attribute.g)
            elif attribute.HasField("t"):
                tensors.append(attribute.t)
            elif attribute.name in ("value_float", "value_floats"):
                array = np.array(helper.get_attribute_value(attribute), np.float64)
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))
    for tensor in tensors:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
