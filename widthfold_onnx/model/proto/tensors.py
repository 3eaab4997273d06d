"""Checks one tensor: its size in exact integers, and that it holds just the data it declares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from onnx import TensorProto

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.text import quoted

MAX_RANK = 64
"""Highest rank of numpy; the runtime's kernels stop far below."""

BITS: Mapping[int, int] = MappingProxyType(
    {
        TensorProto.UINT2: 2,
        TensorProto.INT2: 2,
        TensorProto.UINT4: 4,
        TensorProto.INT4: 4,
        TensorProto.FLOAT4E2M1: 4,
        TensorProto.FLOAT6E2M3: 6,
        TensorProto.FLOAT6E3M2: 6,
        TensorProto.UINT8: 8,
        TensorProto.INT8: 8,
        TensorProto.BOOL: 8,
        TensorProto.FLOAT8E4M3FN: 8,
        TensorProto.FLOAT8E4M3FNUZ: 8,
        TensorProto.FLOAT8E5M2: 8,
        TensorProto.FLOAT8E5M2FNUZ: 8,
        TensorProto.FLOAT8E8M0: 8,
        TensorProto.UINT16: 16,
        TensorProto.INT16: 16,
        TensorProto.FLOAT16: 16,
        TensorProto.BFLOAT16: 16,
        TensorProto.UINT32: 32,
        TensorProto.INT32: 32,
        TensorProto.FLOAT: 32,
        TensorProto.UINT64: 64,
        TensorProto.INT64: 64,
        TensorProto.DOUBLE: 64,
        TensorProto.COMPLEX64: 64,
        TensorProto.COMPLEX128: 128,
    }
)
"""Bits of one element of a stored tensor, for every element type with a fixed size."""

DTYPES = frozenset(BITS) | {TensorProto.STRING}
"""Every element type that a tensor can have."""

# The field that holds the elements when raw_data does not; all others use int32_data.
_TYPED_FIELDS: Mapping[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.COMPLEX64: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.COMPLEX128: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
    TensorProto.STRING: "string_data",
}
_ALL_FIELDS = (
    "float_data",
    "int32_data",
    "string_data",
    "int64_data",
    "double_data",
    "uint64_data",
)


def elements(tensor: TensorProto) -> int:
    """Return the number of elements that the dims declare; 1 for a scalar."""
    return math.prod(tensor.dims)


def stored_bytes(tensor: TensorProto) -> int:
    """Return the bytes of the tensor's data as raw or external data.

    Small element types are packed without gaps, so that only the last byte may be partly used.

    Raises:
        InvalidModelError: the elements are strings, which have no fixed size.
    """
    if tensor.data_type == TensorProto.STRING:
        raise InvalidModelError(f"{describe(tensor)}: strings cannot be stored as raw bytes")
    return (elements(tensor) * BITS[tensor.data_type] + 7) // 8


def describe(tensor: TensorProto) -> str:
    """Name a tensor in a message."""
    return f"tensor {quoted(tensor.name)}"


def check_declaration(tensor: TensorProto) -> None:
    """Check the declaration of a tensor, before any of its data.

    Raises:
        InvalidModelError: unknown element type, a negative dim, a rank above
            `MAX_RANK`, or a segment of a larger tensor.
    """
    what = describe(tensor)
    if tensor.data_type not in DTYPES:
        raise InvalidModelError(f"{what}: unknown element type {tensor.data_type}")
    if len(tensor.dims) > MAX_RANK:
        raise InvalidModelError(f"{what}: rank {len(tensor.dims)}, at most {MAX_RANK} is supported")
    for dim in tensor.dims:
        if dim < 0:
            raise InvalidModelError(f"{what}: dim {dim} is negative")
    if tensor.HasField("segment"):
        raise InvalidModelError(f"{what}: a segment of a larger tensor is not supported")


def check_inline(tensor: TensorProto) -> None:
    """Check that exactly one field holds data, of exactly the size that the dims declare.

    Args:
        tensor: one that `check_declaration` accepts and whose data are not external.

    Raises:
        InvalidModelError: data in two fields or in the wrong one, too many or too few.
    """
    what = describe(tensor)
    used = [name for name in _ALL_FIELDS if len(getattr(tensor, name))]
    if tensor.HasField("raw_data"):
        if used:
            raise InvalidModelError(f"{what}: data both in raw_data and in {used[0]}")
        size, need = len(tensor.raw_data), stored_bytes(tensor)
        if size != need:
            raise InvalidModelError(f"{what}: {size} data bytes, its dims need {need}")
        return
    field = _TYPED_FIELDS.get(tensor.data_type, "int32_data")
    for name in used:
        if name != field:
            raise InvalidModelError(
                f"{what}: data in {name}, element type {tensor.data_type} belongs in {field}"
            )
    have, need = len(getattr(tensor, field)), _typed_count(tensor)
    if have != need:
        raise InvalidModelError(f"{what}: {have} entries in {field}, its dims need {need}")


def _typed_count(tensor: TensorProto) -> int:
    count = elements(tensor)
    if tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        return 2 * count
    bits = BITS.get(tensor.data_type, 8)
    if bits in (2, 4):  # packed, one byte per entry; six-bit elements take an entry each
        return (count * bits + 7) // 8
    return count
