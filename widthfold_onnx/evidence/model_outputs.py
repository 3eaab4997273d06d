"""Run models on input sets, and keep the outputs: large ones lie in files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.exact_kernels import open_exact
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.options.progress import Progress, Step, silent
from widthfold_onnx.runtime.inputs.recorded import InputSet
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import Session
from widthfold_onnx.text import printable

Outputs = dict[str, Array]
"""Outputs of one run by name."""

LARGE_BYTES = 1 << 26
"""Outputs of this size are kept in files."""


def run_once(session: Session, item: InputSet) -> Outputs:
    """Return the outputs on one set; large ones lie in files, as outputs of all runs are kept.

    Raises:
        UnverifiedError: the model stops, an output is no tensor, or there is no room for it.
    """
    return {name: _in_file(array) for name, array in session.run(item.feeds).items()}


def _in_file(array: Array) -> Array:
    if array.nbytes < LARGE_BYTES or array.dtype.hasobject:
        return array
    with tempfile.TemporaryFile() as file:  # without a name
        try:
            file.write(np.ascontiguousarray(array).view(np.uint8).data)
            file.flush()
        except OSError as error:  # a full disk would end a process that writes into a mapping
            raise UnverifiedError(f"no room for an output in a file: {error.strerror}") from error
        return np.memmap(file, array.dtype, "r", shape=array.shape)


def attempt(
    model: Path | Callable[[], onnx.ModelProto],
    options: VerifyOptions,
    level: Level,
    sets: Iterable[InputSet],
    on_progress: Progress = silent,
    open_model: Callable[[Path | onnx.ModelProto, VerifyOptions, Level], Session] = open_exact,
) -> list[Outputs] | str:
    """Return all outputs, by default computed with exact integers, or why there are none.

    A model is a file, or a function that copies the original in memory and is called before the
    first set is read. `on_progress` gets a step before each run.
    """
    name = printable(model.name) if isinstance(model, Path) else "copy of the original"
    runs = []
    try:
        session = open_model(model if isinstance(model, Path) else model(), options, level)
        for item in sets:
            on_progress(Step(f"{name}, level {level}: {item.label}"))
            runs.append(run_once(session, item))
    except UnverifiedError as error:
        return str(error)
    return runs


def pairs(reference: Outputs, candidate: Outputs) -> dict[str, tuple[Array, Array]]:
    """Pair two runs by name; an output that a side lacks (sequences differ in length) is empty."""
    present = {**reference, **candidate, **reference}
    absent = {name: np.empty((0, *array.shape), array.dtype) for name, array in present.items()}
    return {
        name: (reference.get(name, empty), candidate.get(name, empty))
        for name, empty in absent.items()
    }
