"""Reads the extents that a graph declares."""

from __future__ import annotations

import onnx

Dims = tuple[int | None, ...]
"""Extents of a tensor; None where one is open."""


def dims_of(value: onnx.ValueInfoProto) -> Dims | None:
    """Return the declared extents; a symbol, a missing or a negative dimension is None."""
    return dims_of_type(value.type)


def dims_of_type(kind: onnx.TypeProto) -> Dims | None:
    """Return the extents of a type; a symbol, a missing or a negative dimension is None."""
    if not kind.tensor_type.HasField("shape"):
        return None
    return tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None
        for d in kind.tensor_type.shape.dim
    )
