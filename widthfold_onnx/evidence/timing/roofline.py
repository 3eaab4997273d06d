"""Says how long the work of a node takes at least on this machine (the roofline model).

That is the longer one of two times: its bytes at the speed of a copy, and its multiply-adds at the
speed of a matrix product. Multiply-adds with weights that are zero do not count, neither from
padding by the runtime nor from a fold. So both models have the same work.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.model.proto.walk import all_graphs
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.ceilings import copied, operations
from widthfold_onnx.runtime.sessions.session import Level
from widthfold_onnx.runtime.settings import Setting, open_at

Least = Callable[[str, Mapping[str, Any]], float | None]
"""Returns the least seconds of a node, by its name and what the profile says of one run of it."""

Weights = Mapping[str, Array | None]
"""Weights of the nodes that multiply, by name of the node; None for a computed weight."""

BYTES = {
    "float": 4,
    "double": 8,
    "float16": 2,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "bool": 1,
}
"""Bytes of an element, by the names that the profile gives types."""

COUNTED = ("float", "double", "int8", "uint8")
"""Types for which matrix products are measured."""

COPIES = [2**exponent for exponent in range(18, 27, 2)]
"""Bytes of the copies that are measured, from the size of the first cache to memory."""

WEIGHTS = {
    **{op: operators[0].inputs.weight for (_, op), operators in OPERATORS.items()},
    **dict.fromkeys(("NhwcFusedConv", "FusedMatMul", "FusedGemm"), 1),
    **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul"), 1),
    "QGemm": 3,
}
"""Position of the weight among the inputs of the operators that multiply: operators with a
description, and operators of ONNX Runtime's optimized graphs."""

MULTIPLIED = {"DynamicQuantizeMatMul": "uint8"}
"""What operators multiply that is not the type of their first input: this one quantizes it."""

UNKNOWN = (
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Shape", "Size"),
    *("If", "Loop", "Scan"),
)
"""Operators that may copy nothing, and those whose bodies do the work."""

PARTLY_READ = ("Gather", "GatherElements", "GatherND", "Slice", "Resize", "Upsample")
"""Operators that may read no more than they write."""


class Roofline:
    """The measured speeds of this machine, in sessions like the timed sessions."""

    def __init__(self, options: RuntimeOptions) -> None:
        self._setting = Setting(Level.ALL, options)
        self.copies: dict[int, float] = {}
        self.operations: dict[str, float] = {}

    def of(self, model: Path, setting: Setting) -> Least:
        """Return what says the least seconds of the nodes of a model; on the CPU only."""
        if setting.how.provider is not Provider.CPU:
            return unknown
        weights = self._weights(model, setting)
        return lambda name, details: self._least(weights, name, details)

    def limits(self) -> dict[str, float]:
        """Return the speeds measured so far, per second, by name."""
        copies = sorted(self.copies.items())
        speeds = {f"bytes of a copy of {size >> 10} KiB": speed for size, speed in copies}
        return speeds | {f"operations on {dtype}": v for dtype, v in self.operations.items()}

    def _least(self, weights: Weights, name: str, details: Mapping[str, Any]) -> float | None:
        op, size = details["op_name"], moved(details)
        if size is None or op in UNKNOWN:
            return None
        # Nothing is copied faster because it is larger, so the speed is not too low.
        copy = max((each for each in COPIES if each <= size), default=COPIES[0])
        if copy not in self.copies:
            self.copies[copy] = copied(self._setting, copy)
        seconds = size / self.copies[copy]
        if op not in WEIGHTS:
            return seconds
        dtype = MULTIPLIED.get(op) or next(iter(details["input_type_shape"][0]))
        if name not in weights or dtype not in COUNTED:
            return None
        if dtype not in self.operations:
            self.operations[dtype] = operations(self._setting, dtype)
        return max(seconds, 2 * multiply_adds(weights[name], details) / self.operations[dtype])

    def _weights(self, model: Path, setting: Setting) -> Weights:
        """Return the weights of the runtime's optimized graph."""
        with tempfile.TemporaryDirectory() as folder:
            optimized = Path(folder) / "optimized.onnx"
            try:
                open_at(model, setting, optimized=optimized)
            except UnverifiedError:  # too large for one file
                return {}
            graphs = list(all_graphs(onnx.load(optimized).graph))
        constants = {tensor.name: tensor for graph in graphs for tensor in graph.initializer}
        layers = [node for graph in graphs for node in graph.node if node.op_type in WEIGHTS]
        times = Counter(node.name for node in layers)
        weights_by_name: dict[str, Array | None] = {}
        for node in layers:
            if times[node.name] == 1:  # both branches of a guard may hold a node of one name
                weight = constants.get(node.input[WEIGHTS[node.op_type]])
                weights_by_name[node.name] = (
                    None if weight is None else numpy_helper.to_array(weight)
                )
        return weights_by_name


def unknown(name: str, details: Mapping[str, Any]) -> None:
    """Tell the least seconds of no node."""


def moved(details: Mapping[str, Any]) -> int | None:
    """Return the bytes that a node reads and writes; None if a type is not known."""
    read, written = (_bytes(details[f"{side}_type_shape"]) for side in ("input", "output"))
    if read is None or written is None:
        return None
    return written + (min(read, written) if details["op_name"] in PARTLY_READ else read)


def _bytes(tensors: Sequence[Mapping[str, Sequence[int]]]) -> int | None:
    pairs = [pair for tensor in tensors for pair in tensor.items()]
    if any(kind not in BYTES for kind, _ in pairs):
        return None
    return sum(BYTES[kind] * math.prod(dims) for kind, dims in pairs)


def multiply_adds(weight: Array | None, details: Mapping[str, Any]) -> int:
    """Return the multiply-adds of a node.

    Args:
        weight: None if it is computed. The profile does not list a weight that the runtime has
            packed.
        details: what the profile says of one run.
    """
    op = details["op_name"]
    inputs = [next(iter(tensor.values())) for tensor in details["input_type_shape"]]
    output = next(iter(details["output_type_shape"][0].values()))
    if weight is not None:
        dims, count = weight.shape, int(np.count_nonzero(weight))
    else:
        dims = tuple(inputs[WEIGHTS[op]])
        count = math.prod(dims)
    if "Conv" in op:
        # The first axis of a weight has the output channels; transposed, the input channels.
        shared, tensor = dims[0], inputs[0] if op == "ConvTranspose" else output
    else:
        shared, tensor = math.prod(dims[:-2]) * (output[-1] if len(dims) > 1 else 1), output
    return int(count * math.prod(tensor) // max(shared, 1))
