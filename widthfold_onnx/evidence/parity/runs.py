"""Runs models on input sets."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.eight_bits.exact_kernels import open_exact
from widthfold_onnx.evidence.parity.comparison import Outputs
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.progress import Say, quiet
from widthfold_onnx.runtime.inputs.recorded import InputSet
from widthfold_onnx.runtime.sessions.session import Level, Session
from widthfold_onnx.text import printable

LARGE_BYTES = 1 << 26
"""Outputs of this size are kept in files."""


def run_once(session: Session, item: InputSet, who: str, report: Say) -> Outputs:
    """Return the outputs on one set.

    Raises:
        UnverifiedError: the model stops, or an output is no tensor.
    """
    report(f"{who}: {item.label}")
    return {name: _kept(array) for name, array in session.run(item.feeds).items()}


def _kept(array: Array) -> Array:
    """Move a large array into a file without a name: those of all sets and models are kept."""
    if array.nbytes < LARGE_BYTES or array.dtype.hasobject:
        return array
    with tempfile.TemporaryFile() as file:
        mapped = np.memmap(file, array.dtype, "w+", shape=array.shape)
    mapped[...] = array
    return mapped


def attempt(
    model: Path,
    options: VerifyOptions,
    level: Level,
    sets: Sequence[InputSet],
    report: Say = quiet,
    opened: Callable[[Path, VerifyOptions, Level], Session] = open_exact,
) -> list[Outputs] | str:
    """Return all outputs, by default computed with exact integers, or why there are none."""
    try:
        session = opened(model, options, level)
        who = f"{printable(model.name)}, level {level}"
        return [run_once(session, item, who, report) for item in sets]
    except UnverifiedError as error:
        return str(error)
