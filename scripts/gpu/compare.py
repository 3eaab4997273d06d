"""Do two runs agree? Computed on the device, since outputs are too large to fetch."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from gpu.graphs import Port, serialized
from gpu.stage import Stage
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.binding import Bound, Placed

WRONG = 1e-2
"""Largest difference / largest magnitude that rounding to float16 or TF32 explains."""

NOWHERE = 1e9
"""The difference where one is no number."""


class Judge:
    """Compares outputs of one element type.

    Args:
        stage: where.
        dtype: numpy's name.

    Raises:
        UnverifiedError: the provider does not run the comparison.
    """

    def __init__(self, stage: Stage, dtype: str) -> None:
        nodes = [
            helper.make_node("Cast", ["a"], ["p"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["b"], ["q"], to=TensorProto.FLOAT),
            helper.make_node("Sub", ["p", "q"], ["r"]),
            helper.make_node("Abs", ["r"], ["s"]),
            helper.make_node("Abs", ["p"], ["t"]),
            helper.make_node("ReduceMax", ["s"], ["apart"], keepdims=0),
            helper.make_node("ReduceMax", ["t"], ["largest"], keepdims=0),
        ]
        inputs = [(name, dtype, None) for name in "ab"]
        outputs: list[Port] = [(name, "float32", []) for name in ("apart", "largest")]
        # TensorRT takes no inputs of unknown shape; what it computes lies where CUDA can read it.
        provider = Provider.CPU if stage.provider is Provider.CPU else Provider.CUDA
        model = serialized(nodes, inputs, outputs, {})
        self._opened = stage.open(model, stage.options(), provider)

    def apart(self, one: Bound, other: Bound) -> float:
        """Run both; largest difference / largest magnitude of the first."""
        one()
        other()
        (a,), (b,) = one.results().values(), other.results().values()
        compare = self._opened.on({"a": a, "b": b})
        compare()
        apart, largest = map(_number, compare.results().values())
        return apart / largest if np.isfinite(apart) and 0 < largest < np.inf else NOWHERE


def _number(value: Placed) -> float:
    array: Any = value.numpy()
    return float(array)
