"""Writes the large tensors of a model into one file beside it."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Collection
from pathlib import Path

import onnx

from widthfold_onnx.errors import InternalError, UsageError
from widthfold_onnx.model.proto.external import (
    ExternalData,
    check_external,
    external_tensors,
    open_external,
)
from widthfold_onnx.model.proto.walk import all_graphs
from widthfold_onnx.model.write.atomic import Temporary, pieces, reading, writing
from widthfold_onnx.text import quoted

_PAGE_BYTES = 4096
_LINE_BYTES = 64
_LARGE_BYTES = 1 << 20


class Sidecar:
    """Gathers the data of a model's external tensors into one file."""

    def __init__(
        self, proto: onnx.ModelProto, source_folder: Path | None, externalize: Collection[str]
    ) -> None:
        """Find the tensors for the file, and check the external data of the model.

        Args:
            proto: the model that will be written.
            source_folder: the folder that its present locations are relative to.
            externalize: names of initializers that hold raw_data and shall become external.

        Raises:
            InvalidModelError: external data that `check_external` refuses.
            InternalError: a name in `externalize` that no initializer with raw_data has.
        """
        self._old = [(t, check_external(t, source_folder)) for t in external_tensors(proto)]
        self._new = [
            tensor
            for graph in all_graphs(proto.graph)
            for tensor in graph.initializer
            if tensor.name in externalize and tensor.HasField("raw_data")
        ]
        if missing := sorted(set(externalize) - {tensor.name for tensor in self._new}):
            raise InternalError(f"no initializer with raw_data is named {quoted(missing[0])}")
        self._folder = source_folder or Path()
        self._places: list[tuple[onnx.TensorProto, int, int]] = []  # offset and length in bytes
        self._hash = hashlib.sha256()
        self._end = 0

    def __bool__(self) -> bool:
        """Say whether the model has any external data, old or new."""
        return bool(self._old or self._new)

    def sources(self) -> list[Path]:
        """Return the files that the data come from, each once."""
        return [self._folder / name for name in {place.location: None for _, place in self._old}]

    def fill(self, target: Temporary) -> None:
        """Write all data, a chunk at a time, and finish the file.

        Raises:
            UsageError: the file cannot be written, or a source not be read.
            InvalidModelError: a source changed since it was checked.
        """
        offsets: dict[ExternalData, int] = {}  # tensors that share their bytes go on sharing them
        for tensor, source in self._old:
            if source not in offsets:
                offsets[source] = self._align(target, source.length)
                self._pour(target, source)
            self._places.append((tensor, offsets[source], source.length))
        for tensor in self._new:
            data = tensor.raw_data
            self._places.append((tensor, self._align(target, len(data)), len(data)))
            self._write(target, data)
        with writing(target.target):
            target.finish()

    def _align(self, target: Temporary, length: int) -> int:
        """Write zeros up to where a tensor of this length may start, and return the offset."""
        unit = _PAGE_BYTES if length >= _LARGE_BYTES else _LINE_BYTES
        self._write(target, bytes(-self._end % unit))
        return self._end

    def _write(self, target: Temporary, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self._end += len(data)
        with writing(target.target):
            target.write(data)

    def _pour(self, target: Temporary, source: ExternalData) -> None:
        with reading(source.location), open_external(source.location, self._folder) as file:
            file.seek(source.offset)
            for piece in pieces(file, source.length):
                self._write(target, piece)

    def path_for(self, out: Path) -> Path:
        """Return the name of the filled file beside the model `out`: it holds its own hash."""
        return out.with_name(f"{out.name}.{self._hash.hexdigest()[:16]}.data")

    def is_at(self, path: Path) -> bool:
        """Say whether the file is in place already, from an earlier run.

        Raises:
            UsageError: something else has its name.
        """
        with writing(path):
            try:
                status = path.lstat()
            except FileNotFoundError:
                return False
            if stat.S_ISREG(status.st_mode) and _digest(path) == self._hash.digest():
                return True
        raise UsageError(f"{quoted(str(path))} exists and holds something else; remove it")

    def point(self, path: Path) -> None:
        """Make the tensors of the model refer to the file."""
        for tensor, offset, length in self._places:
            tensor.ClearField("raw_data")
            tensor.ClearField("external_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", path.name), ("offset", offset), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
