"""Checks one tensor: its size in exact integers, and that it holds just the data it declares."""

from __future__ import annotations

import math
import re

import onnx
from onnx import TensorProto
from onnx.helper import (
    np_dtype_to_tensor_dtype,
    tensor_dtype_to_field,
    tensor_dtype_to_np_dtype,
)

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.text import quoted

MAX_RANK = 64
"""Highest rank of numpy; the runtime's kernels stop far below."""

DTYPES = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
"""Every element type that a tensor can have."""

_UNNUMBERED = {"BOOL": 8, "FLOAT": 32, "DOUBLE": 64}
BITS = {
    kind: _UNNUMBERED.get(name) or int(re.findall(r"\d+", name)[0])
    for name, kind in TensorProto.DataType.items()
    if kind in DTYPES - {TensorProto.STRING}
}
"""Bits of one element of a stored tensor, by element type: the first number in most names."""


def has_arrays(kind: int) -> bool:
    """Return whether onnx reads tensors of an element type as arrays of that very type.

    Older releases read BFLOAT16 as float32, and INT4 as int8.
    """
    try:
        return np_dtype_to_tensor_dtype(tensor_dtype_to_np_dtype(kind)) == kind
    except (KeyError, ValueError):
        return False


_WITH_ARRAYS = frozenset(filter(has_arrays, DTYPES))
_FIELDS = sorted(set(map(tensor_dtype_to_field, DTYPES)))


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
        InvalidModelError: an element type that is unknown or has no arrays in the installed onnx;
            a negative dim, a rank above `MAX_RANK`, or a segment of a larger tensor.
    """
    what = describe(tensor)
    if tensor.data_type not in DTYPES:
        raise InvalidModelError(f"{what}: unknown element type {tensor.data_type}")
    if tensor.data_type not in _WITH_ARRAYS:
        name = TensorProto.DataType.Name(tensor.data_type)
        raise InvalidModelError(f"{what}: onnx {onnx.__version__} has no arrays of {name}")
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
        tensor: `check_declaration` accepts it, and its data are not external.

    Raises:
        InvalidModelError: data in two fields or in the wrong one, too many or too few.
    """
    what = describe(tensor)
    used = [name for name in _FIELDS if len(getattr(tensor, name))]
    if tensor.HasField("raw_data"):
        if used:
            raise InvalidModelError(f"{what}: data both in raw_data and in {used[0]}")
        size, need = len(tensor.raw_data), stored_bytes(tensor)
        if size != need:
            raise InvalidModelError(f"{what}: {size} data bytes, its dims need {need}")
        return
    field = tensor_dtype_to_field(tensor.data_type)
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
    # Elements of 2 and 4 bits are packed, one byte per entry; all others take an entry each.
    return stored_bytes(tensor) if BITS.get(tensor.data_type) in (2, 4) else count
