"""Writes a model atomically: the old output stays until the new one is complete and checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import onnx
from google.protobuf.message import EncodeError

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.proto.external import check_external, external_tensors, open_external
from widthfold_onnx.model.write.atomic import (
    Temporary,
    check_target,
    pieces,
    reading,
    temporary,
    writing,
)
from widthfold_onnx.model.write.sidecar import Sidecar
from widthfold_onnx.text import quoted


def write_model(
    proto: onnx.ModelProto,
    out: Path,
    *,
    source_folder: Path | None,
    check: Callable[[Path], None],
    protected: Sequence[Path] = (),
    externalize: Collection[str] = (),
) -> None:
    """Write a model, and its external data into one file beside it.

    The data go into ``<out name>.<16 hex digits of their SHA-256>.data``, so that the model that
    was at `out` keeps its own. Whatever fails, an interrupt included, `out` stays as it was, and
    only files made here are removed.

    Args:
        proto: the model; its external tensors are made to refer to the new file, also where a
            later step fails.
        out: where it goes; a file that is there is replaced in one step.
        source_folder: folder to which the locations of its external data are relative now.
        check: called with the path of the written file before it is put in its place; an
            exception ends the writing.
        protected: files that must not be replaced. Sources of external data never are.
        externalize: names of initializers that hold raw_data and shall become external.

    Raises:
        UsageError: `out` is no place for a file, the disk is full or read-only, or the model
            without its external data is larger than a protobuf can be.
        InvalidModelError: external data changed since the model was loaded.
    """
    sidecar = Sidecar(proto, source_folder, externalize)
    check_target(out, [*protected, *sidecar.sources()])
    with temporary(out) as model, _removing_unless(model.is_published) as new_paths:
        if sidecar:
            _place_sidecar(sidecar, out, new_paths)
        with writing(out):
            model.write(_serialize(proto, out))
            model.finish()
        check(model.path)
        with writing(out):
            model.publish()


def copy_model(path: Path, out: Path, *, proto: onnx.ModelProto) -> None:
    """Copy a model file byte for byte, with the external data that it refers to.

    Data go to the same relative names below the folder of `out`, unless that is the folder of
    `path`. A file that is there stays: it must hold the same.

    Args:
        path: the model file.
        out: where it goes; a file that is there is replaced in one step.
        proto: the loaded model, which names the files.

    Raises:
        UsageError: `out` is no place for a file, a file of external data exists with other
            content, or the disk is full or read-only.
        InvalidModelError: external data changed since the model was loaded.
    """
    folder = path.parent
    places = {check_external(tensor, folder).location: None for tensor in external_tensors(proto)}
    check_target(out, [path, *(folder / location for location in places)])
    with writing(out):
        if folder.samefile(out.parent):
            places = {}
    with temporary(out) as model, _removing_unless(model.is_published) as new_paths:
        for location in places:
            _copy_data(location, folder, out, new_paths)
        with reading(str(path)), path.open("rb", buffering=0) as file:
            _copy(cast("BinaryIO", file), model)
        with writing(out):
            model.publish()


@contextmanager
def _removing_unless(published: Callable[[], bool]) -> Iterator[list[Path]]:
    """Yield a list for files and folders made on the way; they go unless it is published.

    An entry is made before the file is, so that an interrupt in between loses nothing.
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


def _place_sidecar(sidecar: Sidecar, out: Path, new_paths: list[Path]) -> None:
    with temporary(out.with_name(f"{out.name}.data")) as data:
        sidecar.fill(data)
        path = sidecar.path_for(out)
        if not sidecar.is_at(path):
            new_paths.append(path)
            with writing(path):
                data.publish(path)
        sidecar.point(path)


def _copy(source: BinaryIO, copy: Temporary) -> None:
    with writing(copy.target):
        for piece in pieces(source, os.fstat(source.fileno()).st_size):
            copy.write(piece)
        copy.finish()


def _copy_data(location: str, folder: Path, out: Path, new_paths: list[Path]) -> None:
    """Copy one file of external data; a file that exists already must hold the same bytes."""
    target = out.parent
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
            if target.is_symlink() or not target.is_file() or not _same_content(source, target):
                raise UsageError(f"{quoted(str(target))} exists and holds something else")
            return
        with temporary(target) as copy:
            _copy(source, copy)
            new_paths.append(target)
            with writing(target):
                copy.publish()


def _same_content(source: BinaryIO, target: Path) -> bool:
    size = os.fstat(source.fileno()).st_size
    with target.open("rb", buffering=0) as other:
        if os.fstat(other.fileno()).st_size != size:
            return False
        both = zip(pieces(source, size), pieces(cast("BinaryIO", other), size), strict=False)
        return all(a == b for a, b in both)
