"""Runs models on input sets, and holds what the original computes there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.eight_bits.exact_kernels import open_exact
from widthfold_onnx.evidence.parity.comparison import Outputs, both
from widthfold_onnx.evidence.parity.figures import relative_error
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.progress import Say, quiet
from widthfold_onnx.runtime.inputs.input_sets import InputSets
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


@dataclass(frozen=True)
class Reference:
    """The original without the runtime's own optimizations, and how all models are run.

    Attributes:
        model: file of the original.
        options: where models run.
        report: gets a line of text before each run.
        inputs: the sets on which it runs.
        outputs: those of each set, by name.
        names: of the outputs that the model declares.
        unsteady: names of outputs that a second run on the same inputs does not repeat.
    """

    model: Path
    options: VerifyOptions
    report: Say
    inputs: InputSets
    outputs: list[Outputs]
    names: list[str]
    unsteady: set[str]

    @property
    def sets(self) -> list[InputSet]:
        """The input sets."""
        return self.inputs.sets

    def run(self, model: Path, level: Level) -> list[Outputs] | str:
        """Return the outputs of a model on each input set, or why there are none."""
        return attempt(model, self.options, level, self.sets, self.report)

    @cached_property
    def noise(self) -> list[dict[str, float | None]]:
        """Distances by which outputs of the original move if float inputs move by one rounding.

        By input set; if the changed inputs do not run, there is no noise.
        """
        shaken = [
            InputSet(f"{item.label} shaken", {name: _shaken(x) for name, x in item.feeds.items()})
            for item in self.sets
        ]
        moved = attempt(self.model, self.options, Level.DISABLED, shaken, self.report)
        if isinstance(moved, str):
            return [{} for _ in self.sets]
        return [
            {name: relative_error(*both(name, before, after)) for name in before}
            for before, after in zip(self.outputs, moved, strict=True)
        ]


def _shaken(array: Array) -> Array:
    if array.dtype.kind != "f":
        return array
    return np.asarray(np.nextafter(array, np.asarray(np.inf, array.dtype)))
