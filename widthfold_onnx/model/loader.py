"""Read and check model files; a loaded model can be trusted.

A file is limited by counting on its raw bytes, before a parser builds any object of it. A protobuf
parser turns two bytes into a message of some 150 bytes, so file size does not bound memory. The
scan visits every field header of the messages that can repeat or nest, and jumps over the content
of all others.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from widthfold_onnx.errors import InvalidModelError, UnverifiedError, UsageError
from widthfold_onnx.system import READ
from widthfold_onnx.text import printable, quoted

if TYPE_CHECKING:
    import onnx

MAX_FILE_BYTES = 2**31 - 1
"""Most bytes of a protobuf message; larger models keep their data in external files."""


@dataclass(frozen=True)
class Model:
    """A model that passed all checks; it is never changed.

    Attributes:
        proto: the model; external data are still in their files.
        folder: the folder to which the locations of its external data are relative; None if it
            has none.
        name: of the model in messages and reports.
    """

    proto: onnx.ModelProto
    folder: Path | None
    name: str = field(default="model.onnx", kw_only=True)

    @property
    def size(self) -> int:
        """Its bytes, without external data."""
        size: int = self.proto.ByteSize()
        return size


@dataclass(frozen=True)
class LoadedModel(Model):
    """A model that was read from a file; external data lie below its folder.

    Attributes:
        path: the file.
        digest: of the bytes of the file, and of the size, times and identity of each file of
            external data (`_state`).
    """

    folder: Path
    path: Path
    digest: str

    @property
    def source(self) -> tuple[Path, str, str]:
        """What `load` takes to read the same model in another process."""
        return self.path, self.name, self.digest

    @property
    def size(self) -> int:
        """The bytes of its file."""
        return self.path.stat().st_size

    @property
    def files(self) -> list[Path]:
        """The files of the model: its own, and the files of its external data."""
        from widthfold_onnx.model.proto.tensors import data_files  # needs onnx

        return [self.path, *data_files(self.proto, self.folder)]

    def check_unchanged(self) -> None:
        """Check that the files are still as they were read.

        Raises:
            InvalidModelError: one was changed, or is gone.
        """
        self.reread()

    def reread(self) -> bytes:
        """Return the bytes of its file, which are those that were loaded.

        Raises:
            InvalidModelError: a file of the model was changed, or is gone.
        """
        try:
            data = _read(self.path)
            digest = _digest(data, self.proto, self.folder)
        except (UsageError, OSError) as error:
            name = printable(self.name)
            raise InvalidModelError(f"{name} was removed in the meantime: {error}") from error
        _check_same(self.name, digest, self.digest)
        return data


def load(path: Path, name: str = "", digest: str = "") -> LoadedModel:
    """Read and check a model; its content decides whether it is one, not its file name.

    Commands import the rest of the package only after it: a file that is no model is refused in a
    tenth of the time that the imports take.

    Args:
        path: the file.
        name: of the model in messages and reports; "" takes the name of the file.
        digest: of an earlier read of the same file, "" if there was none.

    Raises:
        UsageError: there is no such file, or it cannot be read.
        InvalidModelError: it is no regular file, larger than `MAX_FILE_BYTES`, no model that can
            be rewritten, or changed since it was read. The message names the model.
    """
    name = name or path.name or str(path)
    try:
        data = _read(path)
        scan_wire(data)
        # Imported only for files worth parsing: most files that are no model need no onnx.
        from widthfold_onnx.model.check import checked, parse

        proto = checked(parse(data), path.parent)
    except InvalidModelError as error:
        raise InvalidModelError(f"{printable(name)}: {error}") from error
    loaded = LoadedModel(proto, path.parent, path, _digest(data, proto, path.parent), name=name)
    if digest:
        _check_same(name, loaded.digest, digest)
    return loaded


def _check_same(name: str, digest: str, earlier_digest: str) -> None:
    if digest != earlier_digest:
        raise InvalidModelError(f"{printable(name)} was changed in the meantime")


def _digest(data: bytes, proto: onnx.ModelProto, folder: Path) -> str:
    """Return the digest of the bytes of a file and of the state of its external data."""
    from widthfold_onnx.model.proto.tensors import data_files  # needs onnx

    digest = hashlib.blake2b(data)
    for path in data_files(proto, folder):
        digest.update(repr((str(path), _state(path))).encode())
    return digest.hexdigest()


def _state(path: Path) -> tuple[int, ...]:
    """Return what the system says of a file that differs if it was written to or replaced.

    No program can set the time of the last change of a file (`st_ctime_ns`; on Windows it is that
    of its creation). The content is not read: gigabytes would take longer than a small model runs.
    """
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino


def copy_with_data(loaded: LoadedModel, most: int) -> onnx.ModelProto:
    """Copy a model with its external data inside, so that the copy may lie anywhere.

    Args:
        loaded: the model.
        most: largest number of bytes, external ones included.

    Raises:
        UnverifiedError: it is larger.
        InvalidModelError: a file that changed since it was checked.
    """
    from widthfold_onnx.model.proto.tensors import check_external, external_tensors, open_external
    from widthfold_onnx.model.proto.walk import copy_of

    proto = copy_of(loaded.proto)
    tensors = [(t, check_external(t, loaded.folder)) for t in external_tensors(proto)]
    if proto.ByteSize() + sum(data.length for _, data in tensors) > most:
        raise UnverifiedError(f"the model has more than {most >> 20} MiB")
    for tensor, data in tensors:
        with open_external(data.location, loaded.folder) as file:
            file.seek(data.offset)
            tensor.raw_data = file.read(data.length)
        del tensor.external_data[:]
        tensor.ClearField("data_location")
    return proto


def _read(path: Path) -> bytes:
    try:
        # Opening a FIFO blocks, opening a device may do anything: look first, and again after.
        _check_status(path.stat())
        descriptor = os.open(path, READ)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            _check_status(status)
            return file.read(status.st_size)  # with a size, because read allocates as asked
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{printable(str(path))}: {reason}") from error


def _check_status(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidModelError("not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise InvalidModelError(f"{status.st_size} bytes, above the {MAX_FILE_BYTES} of a protobuf")


MAX_NODES = 1_000_000
MAX_TENSORS = 1_000_000
MAX_DEPTH = 32
MAX_MESSAGES = 2_000_000
MAX_FIELDS = 8_000_000

_LENGTH_DELIMITED = 2
_TEXT = frozenset(b"\t\n\r" + bytes(range(0x20, 0x7F)))
_LFS = b"version https://git-lfs"

_OTHER_FORMATS = (
    (
        4,
        b"ORTM",
        "a model in ONNX Runtime's own format (.ort): give the .onnx file it was made from",
    ),
    (4, b"TFL3", "a TensorFlow Lite model: convert it to ONNX, as with tf2onnx"),
    (
        0,
        b"PK\x03\x04",
        "a zip archive, as torch.save writes: export the model to ONNX, or unpack it",
    ),
    (0, b"\x1f\x8b", "a gzip archive: unpack it"),
    (8, b'{"', "weights alone (safetensors): export the model to ONNX"),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes: convert the model to ONNX, as with tf2onnx"),
    (0, b"\x93NUMPY", "a numpy array, no model"),
)
"""Formats of files that are passed by mistake: position and bytes of their mark, and what to do.

They are looked for in files that are no protobuf: a producer may be named ORTM, too.
"""

# A shorter value is not visited: its type cannot have many dims.
_LONG_VALUE = 4096


_LIMITS = {"NodeProto": MAX_NODES, "TensorProto": MAX_TENSORS}


@cache
def _schema() -> tuple[list[str], list[dict[int, int]]]:
    """Return the names of messages, and for each message its child messages by tag.

    A message is a number: an index into both lists. ModelProto is the first one.
    """
    from onnx import ModelProto  # only for a file worth scanning

    kinds = [ModelProto.DESCRIPTOR]
    children = []
    for kind in kinds:  # the loop appends to it
        message_types = {f.number: f.message_type for f in kind.fields if f.message_type}
        kinds += [child for child in dict.fromkeys(message_types.values()) if child not in kinds]
        numbers = {number: kinds.index(child) for number, child in message_types.items()}
        children.append({n << 3 | _LENGTH_DELIMITED: child for n, child in numbers.items()})
    return [kind.name for kind in kinds], children


def scan_wire(data: bytes) -> None:
    """Check the encoding and the counts of a serialized ModelProto.

    Args:
        data: the whole file.

    Raises:
        InvalidModelError: the file is empty, a Git LFS pointer, text, another format, cut off or
            not a protobuf; or it declares more than `MAX_NODES` nodes, `MAX_TENSORS` tensors,
            `MAX_DEPTH` nested subgraphs, `MAX_MESSAGES` messages or `MAX_FIELDS` fields.
    """
    if not data:
        raise InvalidModelError("the file is empty")
    if data.startswith(_LFS):
        raise InvalidModelError("a Git LFS pointer, not the model; fetch it with: git lfs pull")
    if _TEXT.issuperset(data[:256]):  # a model has other bytes in its first fields
        start = quoted(data[:256], 40)
        raise InvalidModelError(f"text, not an ONNX model; it starts with {start}")
    try:
        _scan(data)
    except (_WireError, IndexError) as error:
        for position, mark, text in _OTHER_FORMATS:
            if data.startswith(mark, position):
                raise InvalidModelError(f"not ONNX, but {text}") from error
        end = f"the last field runs past the end, {len(data)} bytes"
        reason = error if isinstance(error, _WireError) else end
        raise InvalidModelError(f"not an ONNX protobuf, or cut off: {reason}") from error


class _WireError(Exception):
    """The bytes are no protobuf message; the text says where."""


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > 63:
            raise _WireError(f"a number longer than 10 bytes at byte {pos}")


def _too_many(name: str, count: int) -> InvalidModelError:
    most = _LIMITS.get(name, MAX_MESSAGES)
    if count > most:
        return InvalidModelError(f"more than {most} {name.removesuffix('Proto').lower()}s")
    return InvalidModelError(f"more than {MAX_MESSAGES} nodes, attributes, tensors and values")


def _scan(data: bytes) -> None:
    names, all_children = _schema()
    graph, value = names.index("GraphProto"), names.index("ValueInfoProto")
    limits = [_LIMITS.get(name, MAX_MESSAGES) for name in names]
    counts = [0] * len(limits)
    stack: list[tuple[int, int]] = []  # (end, kind) of the messages around this one
    kind, children = 0, all_children[0]
    pos, end = 0, len(data)
    depth = fields = messages = 0
    while True:
        if pos >= end:
            if pos > end:
                raise _WireError(f"a field runs past its message, which ends at byte {end}")
            if not stack:
                return
            depth -= kind == graph
            end, kind = stack.pop()
            children = all_children[kind]
            continue
        tag = data[pos]
        pos += 1
        if tag > 0x7F:
            tag, pos = _varint(data, pos - 1)
        fields += 1
        if fields > MAX_FIELDS:
            raise InvalidModelError(f"more than {MAX_FIELDS} fields; no model needs as many")
        if tag < 8:
            raise _WireError(f"field number 0 before byte {pos}")
        if tag & 7 != _LENGTH_DELIMITED:
            pos = _past_number(data, pos, tag & 7)
            continue
        size = data[pos]
        pos += 1
        if size > 0x7F:
            size, pos = _varint(data, pos - 1)
        stop = pos + size
        if stop > end:
            raise _WireError(f"{size} bytes declared at byte {pos}, {end - pos} are there")
        child = children.get(tag)
        if child is None:
            pos = stop
            continue
        counts[child] += 1
        messages += 1
        if counts[child] > limits[child] or messages > MAX_MESSAGES:
            raise _too_many(names[child], counts[child])
        if not size or not all_children[child] or (child == value and size < _LONG_VALUE):
            pos = stop
            continue
        stack.append((end, kind))
        kind, children, end = child, all_children[child], stop
        if child == graph:
            depth += 1
            if depth > MAX_DEPTH + 1:  # the main graph is one of them
                raise InvalidModelError(f"subgraphs are nested more than {MAX_DEPTH} deep")


def _past_number(data: bytes, pos: int, wire: int) -> int:
    """Return the end of a field without a length."""
    if wire == 0:
        while data[pos] > 0x7F:
            pos += 1
        return pos + 1
    if wire == 1:
        return pos + 8
    if wire == 5:
        return pos + 4
    raise _WireError(f"unknown wire type {wire} before byte {pos}")
