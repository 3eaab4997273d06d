"""Evaluates operators that move elements, by onnx's reference implementation, once per prime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.proof.call import Call
from widthfold_onnx.evidence.proof.field import PRIMES
from widthfold_onnx.evidence.proof.values import Elements, Known, Tensor, Value
from widthfold_onnx.model.proto.reference import run_reference

MOVES: Mapping[str, tuple[int, ...] | None] = {
    **dict.fromkeys(
        (
            *("Compress", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements"),
            *("GatherND", "Reshape", "ReverseSequence", "Slice", "SpaceToDepth", "Split"),
            *("Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze"),
        ),
        (0,),
    ),
    "Concat": None,
    "Pad": (0, 2),
}
"""Which inputs hold the elements that are moved, None for all; the others say where to."""


PAD_READS = 11
"""Version of the operator set since which Pad reads what were its attributes."""


def move(call: Call) -> list[Value] | None:
    """Move elements; None if their new places depend on the inputs of the model."""
    if call.node.op_type == "Pad" and call.opset < PAD_READS:
        call = _pad_that_reads(call)
    places = MOVES[call.node.op_type]
    moved: dict[int, Tensor] = {}
    for i, value in enumerate(call.inputs):
        if isinstance(value, Known | Elements) and (places is None or i in places):
            moved[i] = value
        elif isinstance(value, Elements):
            return None
    indices, results = range(len(call.inputs)), []
    for draw in range(len(PRIMES)):
        arrays = [moved[i].draws[draw] if i in moved else call.known(i) for i in indices]
        result = run_reference(call.node, _cut(call, arrays), call.opset)
        if result is None:
            return None
        results.append(result)
    given = list(moved.values())
    grid = _grid(given if places is None else given[:1])
    if call.node.op_type == "Pad" and any(fill.draws[0].any() for fill in given[1:]):
        grid = b""
    return [
        Elements(
            tuple(parts),
            degree=max(value.degree for value in given),
            constants=max(value.constants for value in given),
            grid=grid,
        )
        for parts in zip(*results, strict=True)
    ]


def _pad_that_reads(call: Call) -> Call:
    """Return a Pad with its attributes as inputs: the number that it pads with is an element."""
    mode = call.attributes.get("mode", "constant")
    pads = call.attributes["pads" if "pads" in call.attributes else "paddings"]
    fill = Known(np.array(call.attributes.get("value", 0.0)))
    return replace(
        call,
        node=helper.make_node("Pad", ["data", "pads", "value"], call.node.output, mode=mode),
        inputs=[call.tensor(0), Known(np.array(pads, np.int64)), fill],
        opset=PAD_READS,
    )


def _cut(call: Call, arrays: list[Array | None]) -> list[Array | None]:
    """Slice what a Pad with negative numbers cuts off, which the reference implementation cannot.

    ONNX defines the order of both only where a constant is padded with.
    """
    if call.node.op_type != "Pad" or call.attributes.get("mode", "constant") != "constant":
        return arrays
    data, pads, fill, axes = (arrays + [None] * 3)[:4]
    if data is None or pads is None or not (pads < 0).any():
        return arrays
    begins, ends = pads.reshape(2, -1)
    parts = [slice(None)] * data.ndim
    for axis, begin, end in zip(
        range(data.ndim) if axes is None else axes, begins, ends, strict=True
    ):
        parts[axis] = slice(max(-begin, 0), data.shape[axis] - max(-end, 0))
    return [data[tuple(parts)], np.maximum(pads, 0), fill, axes][: len(arrays)]


def _grid(given: list[Tensor]) -> bytes:
    """Return the grid on which all elements lie, as zero does; empty if there is none."""
    grids = {value.grid if isinstance(value, Elements) else b"" for value in given}
    return grids.pop() if len(grids) == 1 else b""
