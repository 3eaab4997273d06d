"""Reads inputs that the user stored: a ``test_data_set_*`` folder, an .npz or an .npy file.

The files may be hostile. A header is read before its data, so that 188 bytes that declare 8 TiB
cost nothing, and nothing is ever unpickled.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UsageError
from widthfold_onnx.runtime.sessions.ports import Port
from widthfold_onnx.text import printable

MAX_BYTES = 1 << 30
"""Most bytes that one set of inputs may hold."""

MAX_RATIO = 2000
"""Most that a zip member may expand; deflate cannot honestly exceed 1032."""


@dataclass(frozen=True)
class InputSet:
    """One set of inputs.

    Attributes:
        label: its name in messages: a file or folder name, escaped, or "seed 0, normal".
        feeds: array by input name.
        expected: outputs in graph order, () where none are stored.
        random: whether it is random, not stored.
    """

    label: str
    feeds: dict[str, Array]
    expected: tuple[Array, ...] = ()
    random: bool = False


def stored_feeds(path: Path, inputs: Sequence[Port]) -> list[InputSet]:
    """Read the sets at a path and check them against the model's inputs.

    Args:
        path: a folder of input_0.pb, ... (or of such folders named test_data_set_*), an .npz
            with the inputs' names, or an .npy for a model of one input.
        inputs: of the model.

    Raises:
        UsageError: missing, broken, too large, or not what the model takes.
    """
    label = printable(path.name)
    try:
        sets = _read(path, label, inputs)
    except (OSError, ValueError, EOFError, NotImplementedError) as error:
        raise UsageError(f"--inputs {label}: {printable(str(error))}") from error
    except (zipfile.BadZipFile, DecodeError) as error:
        raise UsageError(f"--inputs {label} is damaged: {printable(str(error))}") from error
    for item in sets:
        _check(item, inputs)
    return sets


def _read(path: Path, label: str, inputs: Sequence[Port]) -> list[InputSet]:
    if path.is_dir():
        folders = sorted(path.glob("test_data_set_*")) or [path]
        return [_folder(folder, inputs) for folder in folders]
    if not path.is_file():
        raise UsageError(f"--inputs {label}: no such file or folder")
    if path.suffix == ".npz":
        return [InputSet(label, _archive(path, label))]
    if path.suffix != ".npy":
        raise UsageError(f"--inputs {label}: expected a folder, an .npz or an .npy file")
    if len(inputs) != 1:
        raise UsageError(f"--inputs {label} is one array; the model has {len(inputs)} inputs")
    with path.open("rb") as stream:
        _declared(stream, label)
        stream.seek(0)
        return [InputSet(label, {inputs[0].name: np.load(stream, allow_pickle=False)})]


def _archive(path: Path, label: str) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    total = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            where = f"{label}[{printable(name)}]"
            if name in arrays:
                raise UsageError(f"--inputs {where} is there twice")
            if member.file_size > MAX_RATIO * max(member.compress_size, 1):
                raise UsageError(f"--inputs {where} expands more than {MAX_RATIO} times")
            with archive.open(member) as stream:
                size = _declared(stream, where)
            if size > member.file_size:
                raise UsageError(f"--inputs {where} declares {size} bytes and holds fewer")
            total += size
            if total > MAX_BYTES:
                raise UsageError(f"--inputs {label} holds more than {MAX_BYTES} bytes")
            with archive.open(member) as stream:
                arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
    return arrays


def _declared(stream: IO[bytes], label: str) -> int:
    """Return the bytes that an array's header declares."""
    readers: dict[tuple[int, int], Any] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(stream)
    if version not in readers:
        raise UsageError(f"--inputs {label}: array format {version} holds no plain array")
    shape, _, dtype = readers[version](stream)
    if dtype.hasobject:
        raise UsageError(f"--inputs {label} is pickled; pickles are not read")
    size: int = math.prod(shape) * dtype.itemsize
    if size > MAX_BYTES:
        raise UsageError(f"--inputs {label} declares {size} bytes; the limit is {MAX_BYTES}")
    return size


def _folder(folder: Path, inputs: Sequence[Port]) -> InputSet:
    label = printable(folder.name)
    arrays = _numbered(folder, "input")
    if len(arrays) != len(inputs):
        raise UsageError(
            f"--inputs {label} holds {len(arrays)} input_*.pb; the model has {len(inputs)} inputs"
        )
    names = [port.name for port in inputs]
    return InputSet(
        label, dict(zip(names, arrays, strict=True)), tuple(_numbered(folder, "output"))
    )


def _numbered(folder: Path, kind: str) -> list[Array]:
    """Return the tensors of kind_0.pb, kind_1.pb, ... in the order of their numbers."""
    files = {
        int(match[1]): file
        for file in folder.iterdir()
        if (match := re.fullmatch(rf"{kind}_(\d+)\.pb", file.name))
    }
    if sum(file.stat().st_size for file in files.values()) > MAX_BYTES:
        raise UsageError(f"--inputs {printable(folder.name)} holds more than {MAX_BYTES} bytes")
    return [_tensor(files[number]) for number in sorted(files)]


def _tensor(file: Path) -> Array:
    if not file.is_file():
        raise UsageError(f"--inputs {printable(file.name)} is not a regular file")
    tensor = TensorProto.FromString(file.read_bytes())
    if tensor.data_location == TensorProto.EXTERNAL or not tensor.data_type:
        raise UsageError(f"--inputs {printable(file.name)} is no tensor with its data inside")
    array = numpy_helper.to_array(tensor)
    if tensor.data_type == TensorProto.STRING:
        texts = [text.decode() if isinstance(text, bytes) else text for text in array.flat]
        return np.array(texts, dtype=object).reshape(array.shape)
    return array


def _check(item: InputSet, inputs: Sequence[Port]) -> None:
    ports = {port.name: port for port in inputs}
    unknown = sorted(item.feeds.keys() - ports.keys())
    missing = sorted(ports.keys() - item.feeds.keys())
    for names, what in ((unknown, "is no input of the model"), (missing, "is missing")):
        if names:
            raise UsageError(f"--inputs {item.label}: {printable(names[0])} {what}")
    for name, array in item.feeds.items():
        port = ports[name]
        dtype = "string" if array.dtype.kind in "OUS" else array.dtype.name
        where = f"--inputs {item.label}: {printable(name)}"
        if dtype != port.dtype:
            raise UsageError(f"{where} is {dtype}; the model takes {printable(port.dtype)}")
        if port.dims and len(port.dims) != array.ndim:
            raise UsageError(f"{where} has rank {array.ndim}; the model takes {len(port.dims)}")
        for axis, dim in enumerate(port.dims):
            if isinstance(dim, int) and dim != array.shape[axis]:
                raise UsageError(
                    f"{where} has size {array.shape[axis]} on axis {axis}; the model takes {dim}"
                )
