"""Reads and checks model files; a loaded model can be trusted."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from widthfold_onnx.errors import InvalidModelError, UnverifiedError, UsageError
from widthfold_onnx.model.preflight import scan_wire
from widthfold_onnx.system import READ
from widthfold_onnx.text import printable

if TYPE_CHECKING:
    import onnx

MAX_FILE_BYTES = 2**31 - 1
"""Most bytes of a protobuf message; larger models keep their data in external files."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that passed all checks.

    Attributes:
        proto: the model; external data are still in their files.
        path: where it was read from; external data lie below its folder.
    """

    proto: onnx.ModelProto
    path: Path

    @property
    def folder(self) -> Path:
        """The folder against which locations of external data are resolved."""
        return self.path.parent


def load(path: Path) -> LoadedModel:
    """Read and check a model; its content decides whether it is one, not its file name.

    Args:
        path: the model file.

    Raises:
        UsageError: there is no such file, or it cannot be read.
        InvalidModelError: it is no regular file, larger than `MAX_FILE_BYTES`, or no model that
            can be rewritten. The message names the file.
    """
    shown = printable(path.name or str(path))
    try:
        data = _read(path)
        scan_wire(data)
        # Imported only for files worth parsing: most files that are no model need no onnx.
        from widthfold_onnx.model.check import check_model, parse

        proto = parse(data)
        del data
        check_model(proto, path.parent)
    except InvalidModelError as error:
        raise InvalidModelError(f"{shown}: {error}") from error
    return LoadedModel(proto, path)


def load_with_data(model: Path, most: int) -> onnx.ModelProto:
    """Read a model with its external data inside, for copies that may lie anywhere.

    Args:
        model: the file.
        most: largest number of bytes, external ones included.

    Raises:
        UnverifiedError: it is larger.
        InvalidModelError: a file that changed since it was checked.
    """
    loaded = load(model)
    from widthfold_onnx.model.proto.external import check_external, external_tensors, open_external

    tensors = [(t, check_external(t, loaded.folder)) for t in external_tensors(loaded.proto)]
    if model.stat().st_size + sum(data.length for _, data in tensors) > most:
        raise UnverifiedError(f"the model has more than {most >> 20} MiB")
    for tensor, data in tensors:
        with open_external(data.location, loaded.folder) as file:
            file.seek(data.offset)
            tensor.raw_data = file.read(data.length)
        del tensor.external_data[:]
        tensor.ClearField("data_location")
    return loaded.proto


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
