"""Read and write the extents that a graph declares."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import onnx

from widthfold_onnx.arrays import Dims

_ANONYMOUS = re.compile(r"|\?|-1|None|unk__\d+")
"""Names that exporters give to every dimension without a name: two of them may differ in size."""


DimensionKey = str | tuple[str, int]
"""An open dimension: its symbol, or the input and the axis of one without a symbol."""


def symbol_of(name: str) -> str | None:
    """Return the name of an open dimension, None if it is anonymous.

    >>> symbol_of("height"), symbol_of("unk__12")
    ('height', None)
    """
    return None if _ANONYMOUS.fullmatch(name) else name


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


def declare(inputs: Iterable[onnx.ValueInfoProto], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Declare sizes in the place of the open extents of inputs, by the names of the inputs."""
    for value in inputs:
        tensor = value.type.tensor_type
        dims = dims_of(value)
        shape = shapes.get(value.name)
        if shape is None or (dims is not None and len(dims) != len(shape)):
            continue  # a shape that does not fit is refused where it is planned with
        for axis, size in enumerate(shape):
            if dims is None:
                tensor.shape.dim.add().dim_value = size
            elif dims[axis] is None:
                tensor.shape.dim[axis].dim_value = size


def declared(value: onnx.ValueInfoProto) -> tuple[int | str | None, ...]:
    """Return the declared extents with the names of open ones; None where one is anonymous.

    >>> declared(onnx.helper.make_tensor_value_info("x", 1, [1, "height", "?", None]))
    (1, 'height', None, None)
    """
    dims, extents = value.type.tensor_type.shape.dim, dims_of(value) or ()
    return tuple(
        symbol_of(dim.dim_param) if extent is None else extent
        for dim, extent in zip(dims, extents, strict=True)
    )
