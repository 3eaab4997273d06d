"""A model with all its data inside, for copies of it that must not lie next to the original."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.rounds import opened
from widthfold_onnx.evidence.rows import Outputs
from widthfold_onnx.model.external import check_external, external_tensors, open_external
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.runtime.session import Level
from widthfold_onnx.runtime.stored import InputSet

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


def run_with(
    model: onnx.ModelProto,
    names: Iterable[str],
    items: Iterable[InputSet],
    options: VerifyOptions,
) -> list[Outputs]:
    """Run a model that returns more of its values, without the runtime's optimizations.

    Args:
        model: with all its data inside; it is changed.
        names: values of its main graph.
        items: the input sets.
        options: where it runs.

    Returns:
        Per input set its outputs and the named values.

    Raises:
        UnverifiedError: it does not run.
    """
    known = {value.name for value in model.graph.output}
    for name in sorted(set(names) - known):
        model.graph.output.add().name = name
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        session = opened(path, options, Level.DISABLED)
        return [session.run(item.feeds) for item in items]
