"""Reads the extents and element types that a graph declares."""

from __future__ import annotations

import onnx

Dims = tuple[int | None, ...]
"""Extents of a tensor; None where one is open."""


def shapes_of(graph: onnx.GraphProto) -> dict[str, Dims]:
    """Return the known shapes by value name."""
    described = (*graph.input, *graph.output, *graph.value_info)
    table = {v.name: dims for v in described if (dims := dims_of(v)) is not None}
    table.update({t.name: tuple(t.dims) for t in graph.initializer})
    return table


def elements_of(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the declared element types by value name."""
    described = (*graph.input, *graph.output, *graph.value_info)
    table = {v.name: v.type.tensor_type.elem_type for v in described}
    table.update({t.name: t.data_type for t in graph.initializer})
    return {name: kind for name, kind in table.items() if kind}


def dims_of(value: onnx.ValueInfoProto) -> Dims | None:
    """Return the declared extents; a symbol, a missing or a negative dimension is None."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None
        for d in value.type.tensor_type.shape.dim
    )
