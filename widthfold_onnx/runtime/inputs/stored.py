"""Read inputs that the user stored: a ``test_data_set_*`` folder, an .npz or an .npy file.

The files may be hostile: nothing is unpickled, and at most `MAX_INPUT_BYTES` are unpacked. An array
whose header declares 8 TiB fails before its memory is touched.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from numpy.lib.format import read_array
from onnx import ModelProto, TensorProto, numpy_helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import ANY_SIZE, FoldOptions, Sizes, VerifyOptions
from widthfold_onnx.runtime.inputs.feeds import InputSet
from widthfold_onnx.runtime.session import Port, ports_of
from widthfold_onnx.text import printable

SizedOptions = TypeVar("SizedOptions", FoldOptions, VerifyOptions)

MAX_INPUT_BYTES = 1 << 30
"""Most bytes that one set of inputs may hold, unpacked."""

_FAULTS = (
    *(OSError, ValueError, EOFError, NotImplementedError, MemoryError),
    *(zipfile.BadZipFile, DecodeError),
)
"""Exceptions of reading a broken file; inputs that do not fit the model raise ValueError here."""


def stored_feeds(path: Path, inputs: Sequence[Port]) -> list[InputSet]:
    """Read the sets at a path and check them against the model's inputs.

    Args:
        path: a folder of input_0.pb, ... (or of such folders named test_data_set_*), an .npz
            with the inputs' names, or an .npy for a model of one input.
        inputs: of the model.

    Raises:
        UsageError: missing, broken, too large, or not what the model takes.
    """
    return [_read(item, inputs) for item in sorted(path.glob("test_data_set_*")) or [path]]


def with_stored_sizes(
    options: SizedOptions, paths: Sequence[str], model: ModelProto
) -> SizedOptions:
    """Return options with the sizes of stored inputs, unless the caller demands sizes.

    Raises:
        UsageError: stored inputs that do not fit the model.
    """
    if not paths or options.input_shapes != ANY_SIZE:
        return options
    return replace(options, input_shapes=stored_sizes(paths, ports_of(model)))


def stored_sizes(paths: Iterable[str], inputs: Sequence[Port]) -> Sizes:
    """Return sizes of stored inputs: that of the first set, then the smallest and the largest.

    Raises:
        UsageError: as `stored_feeds`.
    """
    sets = [item.feeds for path in paths for item in stored_feeds(Path(path), inputs)]
    sizes = [{name: array.shape for name, array in feeds.items()} for feeds in sets]
    first, *further = sizes
    by_elements = sorted(further, key=lambda shapes: sum(map(math.prod, shapes.values())))
    chosen_sizes = [first, *by_elements[:1], *by_elements[-1:]]
    return tuple(
        shapes for at, shapes in enumerate(chosen_sizes) if shapes not in chosen_sizes[:at]
    )


def _read(path: Path, inputs: Sequence[Port]) -> InputSet:
    label = printable(path.name)
    try:
        feeds = _feeds(path, inputs)
        _check(feeds, inputs)
        expected = tuple(_tensors(path, "output")) if path.is_dir() else ()
    except _FAULTS as error:
        raise UsageError(f"--inputs {label}: {printable(str(error))}") from error
    return InputSet(label, feeds, expected)


def _feeds(path: Path, inputs: Sequence[Port]) -> dict[str, Array]:
    names = [port.name for port in inputs]
    if path.is_dir():
        arrays = _tensors(path, "input")
        if len(arrays) != len(names):
            raise ValueError(f"{len(arrays)} input_*.pb; the model has {len(names)} inputs")
        return dict(zip(names, arrays, strict=True))
    if not path.is_file():
        raise ValueError("no such file or folder")
    if path.suffix == ".npz":
        return _archive(path)
    if path.suffix != ".npy":
        raise ValueError("expected a folder, an .npz or an .npy file")
    if len(names) != 1:
        raise ValueError(f"one array; the model has {len(names)} inputs")
    _check_size(path.stat().st_size)
    with path.open("rb") as stream:
        return {names[0]: read_array(stream, allow_pickle=False)}


def _archive(path: Path) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _check_size(sum(member.file_size for member in members))  # zipfile unpacks no more
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in arrays:
                raise ValueError(f"{printable(name)} is there twice")
            with archive.open(member) as stream:
                arrays[name] = read_array(stream, allow_pickle=False)
    return arrays


def _tensors(folder: Path, kind: str) -> list[Array]:
    """Return the tensors of kind_0.pb, kind_1.pb, ... in the order of their numbers."""
    files = {
        int(match[1]): file
        for file in folder.iterdir()
        if (match := re.fullmatch(rf"{kind}_(\d+)\.pb", file.name))
    }
    _check_size(sum(file.stat().st_size for file in files.values()))
    return [_tensor(files[number]) for number in sorted(files)]


def _tensor(file: Path) -> Array:
    if not file.is_file():
        raise ValueError(f"{file.name} is not a regular file")
    tensor = TensorProto.FromString(file.read_bytes())
    if tensor.data_location == TensorProto.EXTERNAL or not tensor.data_type:
        raise ValueError(f"{file.name} is no tensor with its data inside")
    array = numpy_helper.to_array(tensor)
    if tensor.data_type == TensorProto.STRING:
        texts = [text.decode() if isinstance(text, bytes) else text for text in array.flat]
        return np.array(texts, dtype=object).reshape(array.shape)
    return array


def _check_size(size: int) -> None:
    if size > MAX_INPUT_BYTES:
        raise ValueError(f"more than {MAX_INPUT_BYTES} bytes")


def _check(feeds: Mapping[str, Array], inputs: Sequence[Port]) -> None:
    ports = {port.name: port for port in inputs}
    surplus = sorted(feeds.keys() - ports.keys())
    lacking = sorted(ports.keys() - feeds.keys())
    for names, problem in ((surplus, "is no input of the model"), (lacking, "is missing")):
        if names:
            raise ValueError(f"{printable(names[0])} {problem}")
    for name, array in feeds.items():
        port = ports[name]
        dtype = "string" if array.dtype.kind in "OUS" else array.dtype.name
        if dtype != port.dtype:
            raise ValueError(f"{printable(name)} is {dtype}; the model takes {port.dtype}")
        if port.dims and len(port.dims) != array.ndim:
            rank = f"{array.ndim}; the model takes {len(port.dims)}"
            raise ValueError(f"{printable(name)} has rank {rank}")
        for axis, (dim, size) in enumerate(zip(port.dims, array.shape, strict=bool(port.dims))):
            if isinstance(dim, int) and dim != size:
                extent = f"size {size} on axis {axis}; the model takes {dim}"
                raise ValueError(f"{printable(name)} has {extent}")
