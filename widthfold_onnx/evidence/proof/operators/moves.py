"""Evaluates operators that move elements: Pad, and others by onnx's reference implementation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.proof.call import Call
from widthfold_onnx.evidence.proof.operators.arithmetic import combined, each, reshaped
from widthfold_onnx.evidence.proof.values import Elements, Known, Tensor, Value
from widthfold_onnx.model.proto.reference import run_reference

MOVES = frozenset(
    {
        *("Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements"),
        *("GatherND", "Reshape", "ReverseSequence", "Slice", "SpaceToDepth", "Split", "Squeeze"),
        *("Tile", "Transpose", "Trilu", "Unsqueeze"),
    }
)
"""Their first input holds the moved elements, the others say where to. Concat moves all."""

PAD_READS = 11
"""Version of the operator set since which Pad reads what were its attributes."""


def move(call: Call) -> list[Value] | None:
    """Move elements; None if their new places depend on the inputs of the model."""
    count = len(call.inputs) if call.node.op_type == "Concat" else 1
    given = [call.tensor(i) for i in range(count)]
    if any(isinstance(value, Elements) for value in call.inputs[count:]):
        return None
    places = [call.known(i) for i in range(count, len(call.inputs))]
    results = []
    for draws in zip(*(value.draws for value in given), strict=True):
        result = run_reference(call.node, [*draws, *places], call.opset)
        if result is None:
            return None
        results.append(result)
    grid = _grid(given)
    return [replace(combined(parts, *given), grid=grid) for parts in zip(*results, strict=True)]


def pad(call: Call) -> list[Value] | None:
    """Pad, or cut where a number is negative; None where that is not defined, or not constant.

    ONNX defines the order of both only where a constant is padded with.
    """
    data, said = call.tensor(0), call.attributes
    rank, mode = len(data.shape), said.get("mode", "constant")
    pads, fill, axes = call.known(1), call.optional(2), call.known(3)
    if call.opset < PAD_READS:
        pads = np.array(said["pads" if "pads" in said else "paddings"])
        fill = Known(np.array(said.get("value", 0.0)))
    if pads is None or (axes is None and call.optional(3) is not None):
        return None
    fill = Known(np.array(0.0)) if fill is None or mode != "constant" else reshaped(fill, ())
    sides = np.zeros((2, rank), np.int64)
    sides[:, slice(None) if axes is None else axes] = pads.reshape(2, -1)
    more, (begins, ends) = np.maximum(sides, 0), np.maximum(-sides, 0)
    kept = tuple(map(slice, begins, data.shape - ends))
    if mode != "constant" and (sides < 0).any():
        return None

    def padded(array: Array, number: Array, _: int) -> Array:
        given = {"constant_values": number} if mode == "constant" else {}
        return np.pad(array[kept], more.T, mode, **given)

    draws = each(padded, data, fill, widens=True)
    is_zero = not fill.draws[0].any()
    return [replace(combined(draws, data, fill), grid=_grid([data]) if is_zero else b"")]


def _grid(given: list[Tensor]) -> bytes:
    """Return the grid on which all elements lie, as zero does; empty if there is none."""
    grids = {value.grid if isinstance(value, Elements) else b"" for value in given}
    return grids.pop() if len(grids) == 1 else b""
