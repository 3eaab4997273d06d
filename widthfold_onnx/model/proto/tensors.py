"""Check the data of a tensor, in the model or in another file, before any of it is used.

Sizes are exact integers, and a tensor holds just the data that it declares.

A location of external data comes from the model, so it is hostile. It may leave the model's folder
by a path, a symbolic link or a hard link. It may name a FIFO that never answers, or bytes past the
end of a file.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

import onnx
from onnx import TensorProto
from onnx.helper import (
    np_dtype_to_tensor_dtype,
    tensor_dtype_to_field,
    tensor_dtype_to_np_dtype,
)

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.proto.walk import all_tensors
from widthfold_onnx.system import NO_LINK, READ
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
    subject = describe(tensor)
    if tensor.data_type not in DTYPES:
        raise InvalidModelError(f"{subject}: unknown element type {tensor.data_type}")
    if tensor.data_type not in _WITH_ARRAYS:
        name = TensorProto.DataType.Name(tensor.data_type)
        raise InvalidModelError(f"{subject}: onnx {onnx.__version__} has no arrays of {name}")
    if len(tensor.dims) > MAX_RANK:
        raise InvalidModelError(
            f"{subject}: rank {len(tensor.dims)}, at most {MAX_RANK} is supported"
        )
    for dim in tensor.dims:
        if dim < 0:
            raise InvalidModelError(f"{subject}: dim {dim} is negative")
    if tensor.HasField("segment"):
        raise InvalidModelError(f"{subject}: a segment of a larger tensor is not supported")


def check_inline(tensor: TensorProto) -> None:
    """Check that exactly one field holds data, of exactly the size that the dims declare.

    Args:
        tensor: `check_declaration` accepts it, and its data are not external.

    Raises:
        InvalidModelError: data in two fields or in the wrong one, too many or too few.
    """
    subject = describe(tensor)
    fields = [name for name in _FIELDS if len(getattr(tensor, name))]
    if tensor.HasField("raw_data"):
        if fields:
            raise InvalidModelError(f"{subject}: data both in raw_data and in {fields[0]}")
        size, need = len(tensor.raw_data), stored_bytes(tensor)
        if size != need:
            raise InvalidModelError(f"{subject}: {size} data bytes, its dims need {need}")
        return
    field = tensor_dtype_to_field(tensor.data_type)
    for name in fields:
        if name != field:
            raise InvalidModelError(
                f"{subject}: data in {name}, element type {tensor.data_type} belongs in {field}"
            )
    have, need = len(getattr(tensor, field)), _typed_count(tensor)
    if have != need:
        raise InvalidModelError(f"{subject}: {have} entries in {field}, its dims need {need}")


def _typed_count(tensor: TensorProto) -> int:
    count = elements(tensor)
    if tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        return 2 * count
    # Elements of 2 and 4 bits are packed, one byte per entry; all others take an entry each.
    return stored_bytes(tensor) if BITS.get(tensor.data_type) in (2, 4) else count


_MAX_DIGITS = 19  # of 2**63 - 1


@dataclass(frozen=True)
class ExternalData:
    """The location of a tensor's bytes.

    Attributes:
        location: path relative to the model's folder, "/" between its parts.
        offset: first byte in the file.
        length: number of bytes.
    """

    location: str
    offset: int
    length: int


def is_external(tensor: TensorProto) -> bool:
    """Say whether the data of a tensor are in another file."""
    return tensor.data_location == TensorProto.EXTERNAL


def external_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor anywhere in a model whose data are in another file."""
    return (tensor for tensor in all_tensors(model) if is_external(tensor))


def data_files(model: onnx.ModelProto, folder: Path) -> list[Path]:
    """List the files that hold data of a checked model, which lies in `folder`."""
    return sorted({folder / check_external(t, folder).location for t in external_tensors(model)})


def check_external(tensor: TensorProto, folder: Path | None) -> ExternalData:
    """Check that a tensor's external data are there, complete, and inside the model's folder.

    Nothing is opened or read.

    Args:
        tensor: one for which `is_external` holds.
        folder: the folder of the model file; None allows no external data.

    Returns:
        Where the data are.

    Raises:
        InvalidModelError: the model holds data as well; the location is outside the folder, behind
            a link or no regular file; offset and length do not fit file and dims.
    """
    check_declaration(tensor)
    subject = describe(tensor)
    if folder is None:
        raise InvalidModelError(f"{subject}: external data in a model that has no folder")
    need = stored_bytes(tensor)
    if tensor.HasField("raw_data"):
        raise InvalidModelError(f"{subject}: data both in the model and in an external file")
    entries = _entries(tensor, subject)
    location = _location(entries.get("location", ""), subject)
    size = _lstat(folder, location, subject).st_size
    offset = _number(entries.get("offset", "0"), f"{subject}: external offset")
    length = _number(
        entries.get("length", str(max(size - offset, 0))), f"{subject}: external length"
    )
    if length != need:
        raise InvalidModelError(f"{subject}: {length} external bytes, its dims need {need}")
    if offset + length > size:
        raise InvalidModelError(
            f"{subject}: external bytes {offset} to {offset + length} of a file of {size} bytes"
        )
    return ExternalData(str(location), offset, length)


def open_external(location: str, folder: Path) -> FileIO:
    """Open a file of external data for reading.

    The open file is the checked file: a link that takes its place in between is not followed.

    Args:
        location: path relative to `folder`.
        folder: the folder of the model file.

    Returns:
        The file, without a buffer; the caller closes it.

    Raises:
        InvalidModelError: the path leads out of the folder, behind a link, or to no regular file.
        OSError: the file cannot be opened.
    """
    subject = "external data"
    path = _location(location, subject)
    expected = _lstat(folder, path, subject)
    descriptor = os.open(folder / path, READ | NO_LINK)
    file = os.fdopen(descriptor, "rb", buffering=0)
    if os.path.samestat(os.fstat(descriptor), expected):
        return file
    file.close()
    raise InvalidModelError(f"{subject}: {quoted(location)} changed while it was opened")


def _entries(tensor: TensorProto, subject: str) -> dict[str, str]:
    """Read the key-value pairs; unknown keys (a checksum, say) are left alone."""
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in entries:
            key = quoted(entry.key)
            raise InvalidModelError(f"{subject}: external data name the key {key} twice")
        entries[entry.key] = entry.value
    return entries


def _location(text: str, subject: str) -> PurePosixPath:
    path_text = quoted(text)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidModelError(f"{subject}: external location {path_text} is no file name")
    # As the system at hand splits it: on Windows at a backslash, too, so that no link is missed.
    path, windows = PurePosixPath(PurePath(text).as_posix()), PureWindowsPath(text)
    if path.is_absolute() or windows.drive or windows.root:
        raise InvalidModelError(f"{subject}: external location {path_text} is absolute")
    if ".." in path.parts or ".." in windows.parts:
        raise InvalidModelError(
            f"{subject}: external location {path_text} leaves the model's folder"
        )
    return path


def _number(text: str, subject: str) -> int:
    if len(text) > _MAX_DIGITS or not (text.isascii() and text.isdigit()):
        raise InvalidModelError(f"{subject} {quoted(text)} is no number of bytes")
    return int(text)


def _lstat(folder: Path, location: PurePosixPath, subject: str) -> os.stat_result:
    """Look at each component below the folder without following any, and return the last."""
    path_text = quoted(str(location))
    path = folder
    try:
        for part in location.parts[:-1]:
            path /= part
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise InvalidModelError(f"{subject}: {path_text} passes through a link or a file")
        status = (folder / location).lstat()
    except OSError as error:
        raise InvalidModelError(
            f"{subject}: external file {path_text}: {error.strerror}"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise InvalidModelError(f"{subject}: external file {path_text} is no regular file")
    if status.st_nlink > 1:  # 0 where the system does not count them
        raise InvalidModelError(
            f"{subject}: external file {path_text} has {status.st_nlink} hard links"
        )
    return status
