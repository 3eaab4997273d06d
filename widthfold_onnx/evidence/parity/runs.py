"""Run a model on input sets; large outputs lie in files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.exact_kernels import open_exact
from widthfold_onnx.evidence.parity.outputs import Outputs
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import RuntimeOptions
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.runtime.inputs.feeds import InputSet
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import Session
from widthfold_onnx.text import printable

MIN_FILE_BYTES = 1 << 26
"""Outputs of this size and above are kept in files."""


@dataclass(frozen=True)
class Runs:
    """The runs of a model on several input sets.

    Attributes:
        outputs: of each set; none if the model does not run on all of them.
        failure: why it does not run, "" if it does.
    """

    outputs: list[Outputs] = field(default_factory=list)
    failure: str = ""


def run_once(session: Session, item: InputSet) -> Outputs:
    """Return the outputs on one set; large ones lie in files, as outputs of all runs are kept.

    Raises:
        UnverifiedError: the model stops, an output is no tensor, or there is no room for it.
    """
    return {name: _in_file(array) for name, array in session.run(item.feeds).items()}


def _in_file(array: Array) -> Array:
    if array.nbytes < MIN_FILE_BYTES or array.dtype.hasobject:
        return array
    with tempfile.TemporaryFile() as file:  # without a name
        try:
            file.write(np.ascontiguousarray(array).view(np.uint8).data)
            file.flush()
        except OSError as error:  # a full disk would end a process that writes into a mapping
            raise UnverifiedError(f"no room for an output in a file: {error.strerror}") from error
        return np.memmap(file, array.dtype, "r", shape=array.shape)


def attempt(
    model: LoadedModel | Callable[[], onnx.ModelProto],
    options: RuntimeOptions,
    level: Level,
    sets: Iterable[InputSet],
    open_model: Callable[
        [LoadedModel | onnx.ModelProto, RuntimeOptions, Level], Session
    ] = open_exact,
) -> Runs:
    """Run a model on input sets, by default with exact integers.

    A model was read from a file, or is a function that copies the original in memory and is called
    before the first set is read. Each run is a step.
    """
    name = printable(model.name) if isinstance(model, LoadedModel) else "copy of the original"
    outputs: list[Outputs] = []
    try:
        session = open_model(model if isinstance(model, LoadedModel) else model(), options, level)
        for item in sets:
            progress(Step(f"{name}, level {level}: {item.label}"))
            outputs.append(run_once(session, item))
    except UnverifiedError as error:
        return Runs(failure=str(error))
    return Runs(outputs)
