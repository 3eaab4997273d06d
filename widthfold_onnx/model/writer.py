"""Write a model atomically, its large tensors into one file beside it.

The old output stays until the new one is complete and checked.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path, PurePosixPath

import onnx
from google.protobuf.message import EncodeError

from widthfold_onnx.errors import InternalError, UsageError
from widthfold_onnx.model.atomic import (
    Temporary,
    check_target,
    pieces,
    reading,
    temporary,
    writing,
)
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.model.proto.tensors import (
    ExternalData,
    check_external,
    external_tensors,
    open_external,
)
from widthfold_onnx.model.proto.walk import all_graphs
from widthfold_onnx.text import quoted

_MAPPED_BYTES = 1 << 16
"""Large tensors start at multiples of it, so that a runtime can map them: Windows maps a file from
there only, other systems from each page of 4 or 16 KiB."""
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
        self._new = _inline_initializers(proto, externalize)
        self._folder = source_folder or Path()
        self._ranges: list[tuple[onnx.TensorProto, int, int]] = []  # offset and length in bytes
        self._hash = hashlib.sha256()
        self._end = 0

    def __bool__(self) -> bool:
        """Say whether the model has any external data, old or new."""
        return bool(self._old or self._new)

    def sources(self) -> list[Path]:
        """Return the files that the data come from, each once."""
        return [self._folder / name for name in {data.location: None for _, data in self._old}]

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
                self._copy_data(target, source)
            self._ranges.append((tensor, offsets[source], source.length))
        for tensor in self._new:
            data = tensor.raw_data
            self._ranges.append((tensor, self._align(target, len(data)), len(data)))
            self._write(target, data)
        with writing(target.target):
            target.finish()

    def _align(self, target: Temporary, length: int) -> int:
        """Write zeros up to where a tensor of this length may start, and return the offset."""
        self._write(target, _gap(self._end, length))
        return self._end

    def _write(self, target: Temporary, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self._end += len(data)
        with writing(target.target):
            target.write(data)

    def _copy_data(self, target: Temporary, source: ExternalData) -> None:
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

    def refer_to(self, path: Path) -> None:
        """Make the tensors of the model refer to the file."""
        for tensor, offset, length in self._ranges:
            _refer_to(tensor, path, offset, length)


def _inline_initializers(proto: onnx.ModelProto, names: Collection[str]) -> list[onnx.TensorProto]:
    """Return the initializers with raw_data of some names.

    Raises:
        InternalError: a name that none of them has.
    """
    tensors = [
        tensor
        for graph in all_graphs(proto.graph)
        for tensor in graph.initializer
        if tensor.name in names and tensor.HasField("raw_data")
    ]
    if missing := sorted(set(names) - {tensor.name for tensor in tensors}):
        raise InternalError(f"no initializer with raw_data is named {quoted(missing[0])}")
    return tensors


def _gap(end: int, length: int) -> bytes:
    """Return the zeros between the end of a file and a tensor of `length` bytes behind it."""
    return bytes(-end % (_MAPPED_BYTES if length >= _LARGE_BYTES else _LINE_BYTES))


def _refer_to(tensor: onnx.TensorProto, path: Path, offset: int, length: int) -> None:
    """Make a tensor refer to bytes of a file beside the model."""
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", path.name), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


@contextmanager
def written(
    proto: onnx.ModelProto,
    out: Path,
    *,
    source_folder: Path | None,
    protected: Sequence[Path] = (),
    externalize: Collection[str] = (),
) -> Iterator[Temporary]:
    """Write a model to a temporary file, and its external data into one file beside `out`.

    The data go into ``<out name>.<16 hex digits of their SHA-256>.data``, so that the old model at
    `out` keeps its data. If the block does not publish the file, also because anything failed or
    was interrupted, `out` is not changed, and the files made here, no others, are removed.

    Args:
        proto: the model; its external tensors are made to refer to the new file, also where a
            later step fails.
        out: where it goes when it is published: a file that is there is replaced in one step.
        source_folder: folder to which the present locations of its external data are relative.
        protected: files that must not be replaced. Sources of external data never are.
        externalize: names of initializers that hold raw_data and shall become external.

    Yields:
        The temporary file.

    Raises:
        UsageError: no file may be written at `out`, the disk is full or read-only, or the model
            without its external data is larger than a protobuf can be.
        InvalidModelError: external data changed since the model was loaded.
    """
    sidecar = Sidecar(proto, source_folder, externalize)
    check_target(out, [*protected, *sidecar.sources()])
    with temporary(out) as model, _removing_unless(model.is_published) as new_paths:
        if sidecar:
            _publish_sidecar(sidecar, out, new_paths)
        with writing(out):
            model.write(_serialize(proto, out))
            model.finish()
        yield model


def write_scratch(proto: onnx.ModelProto, out: Path, *, externalize: Collection[str] = ()) -> None:
    """Write a new model that is removed soon, beside the external data that it refers to.

    Those data are not copied, and nothing is flushed to the disk.

    Args:
        proto: the model; the tensors of `externalize` are made to refer to the new data.
        out: where it goes; its folder holds the external data.
        externalize: names of initializers that hold raw_data and become external, in the file
            `data_path` of `out`.

    Raises:
        UsageError: a file exists already, the disk is full or read-only, or the model without its
            external data is larger than a protobuf can be.
    """
    data = data_path(out)
    tensors = _inline_initializers(proto, externalize)
    with writing(out):
        if tensors:
            with data.open("xb") as file:
                for tensor in tensors:
                    length = len(tensor.raw_data)
                    file.write(_gap(file.tell(), length))
                    offset = file.tell()
                    file.write(tensor.raw_data)
                    _refer_to(tensor, data, offset, length)
        with out.open("xb") as file:
            file.write(_serialize(proto, out))


def data_path(out: Path) -> Path:
    """Return the file beside a model of `write_scratch` that holds its new external data."""
    return out.with_name(f"{out.name}.data")


def copy_model(loaded: LoadedModel, out: Path) -> None:
    """Copy the file of a model byte for byte, with the external data that it refers to.

    Data go to the same relative names below the folder of `out`, unless that is the folder of the
    model. A file that is there already must hold the same data, and is not replaced.

    Args:
        loaded: the model.
        out: where it goes; a file that is there is replaced in one step.

    Raises:
        UsageError: no file may be written at `out`, a file of external data exists with other
            content, or the disk is full or read-only.
        InvalidModelError: a file of the model was changed since it was loaded, or is gone.
    """
    folder = loaded.folder
    locations = _locations(loaded.proto, folder)
    data = [parent / location for parent in (folder, out.parent) for location in locations]
    check_target(out, [loaded.path, *data])
    with writing(out):
        if folder.samefile(out.parent):
            locations = []
    with temporary(out) as model, _removing_unless(model.is_published) as new_paths:
        for location in locations:
            _copy_data(location, folder, out.parent, new_paths)
        content = loaded.reread()  # checks the data, too, which must be copied by then
        with writing(out):
            model.write(content)
            model.finish()
        model.publish()


def copy_data(proto: onnx.ModelProto, folder: Path, copies: Path) -> None:
    """Copy the external data of a loaded model to the same relative names below another folder.

    Args:
        proto: the model.
        folder: the folder of the model file.
        copies: the other folder. A file that is there already must hold the same data.

    Raises:
        UsageError: a file exists with other content, or the disk is full or read-only.
        InvalidModelError: external data changed since the model was loaded.
    """
    for location in _locations(proto, folder):
        _copy_data(location, folder, copies, [])


def _locations(proto: onnx.ModelProto, folder: Path) -> list[str]:
    """Return the locations of all external data of a model, each once."""
    sources = (check_external(tensor, folder) for tensor in external_tensors(proto))
    return list({source.location: None for source in sources})


@contextmanager
def _removing_unless(published: Callable[[], bool]) -> Iterator[list[Path]]:
    """Yield a list for new files and folders, and remove them unless the model is published.

    A path is appended before its file is made, so that an interrupt in between leaves no file.
    """
    new_paths: list[Path] = []
    try:
        yield new_paths
    finally:
        if not published():
            for path in reversed(new_paths):
                with writing(path):
                    _remove(path)


def _remove(path: Path) -> None:
    if not path.is_dir():
        path.unlink(missing_ok=True)
    elif not any(path.iterdir()):
        path.rmdir()


def _serialize(proto: onnx.ModelProto, out: Path) -> bytes:
    try:
        data: bytes = proto.SerializeToString(deterministic=True)
    except (EncodeError, ValueError) as error:
        raise UsageError(
            f"cannot write {quoted(str(out))}: the model without its external data is larger than "
            "the 2 GiB of a protobuf"
        ) from error
    return data


def _publish_sidecar(sidecar: Sidecar, out: Path, new_paths: list[Path]) -> None:
    with temporary(out.with_name(f"{out.name}.data")) as data:
        sidecar.fill(data)
        path = sidecar.path_for(out)
        if not sidecar.is_at(path):
            new_paths.append(path)
            data.publish(path)
        sidecar.refer_to(path)


def _copy(source: FileIO, copy: Temporary) -> None:
    with writing(copy.target):
        for piece in pieces(source, os.fstat(source.fileno()).st_size):
            copy.write(piece)
        copy.finish()


def _copy_data(location: str, folder: Path, copies: Path, new_paths: list[Path]) -> None:
    """Copy one file of external data; a file that exists already must hold the same bytes."""
    target = copies
    for part in PurePosixPath(location).parts[:-1]:
        target /= part
        with writing(target):
            if target.is_symlink():
                raise UsageError(f"{quoted(str(target))} is a symbolic link")
            if not target.exists():
                new_paths.append(target)
                target.mkdir()
    target /= PurePosixPath(location).name
    with reading(location), open_external(location, folder) as source:
        if target.is_symlink() or target.exists():
            is_file = target.is_file() and not target.is_symlink()
            if not is_file or hashlib.file_digest(source, "sha256").digest() != _digest(target):
                raise UsageError(f"{quoted(str(target))} exists and holds something else")
            return
        with temporary(target) as copy:
            _copy(source, copy)
            new_paths.append(target)
            copy.publish()
