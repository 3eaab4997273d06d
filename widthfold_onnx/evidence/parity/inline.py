"""Inlines all data of a model, for copies of it that must not lie next to the original."""

from __future__ import annotations

from pathlib import Path

import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.model.proto.external import check_external, external_tensors, open_external
from widthfold_onnx.model.read.loader import load

MAX_BYTES = 1 << 30
"""Largest model that is copied; a protobuf holds twice that at most."""


def inlined(model: Path, most: int) -> onnx.ModelProto:
    """Read a model and the external data that it names.

    Args:
        model: the file.
        most: largest number of bytes, external ones included.

    Raises:
        UnverifiedError: it is larger.
        InvalidModelError: a file that changed since it was checked.
    """
    loaded = load(model)
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
