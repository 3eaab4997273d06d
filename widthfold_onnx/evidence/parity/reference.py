"""Run the original as the reference: how far rounding moves it (`shaken`), where it overflows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.exact_kernels import open_chosen, open_exact
from widthfold_onnx.evidence.inputs import run_on_inputs
from widthfold_onnx.evidence.model_outputs import Outputs, attempt, pairs
from widthfold_onnx.evidence.parity.outputs import Distance, compare, distance, dtype_of
from widthfold_onnx.evidence.parity.shaken import COPIES, shake, shaken_input, steps_of
from widthfold_onnx.model.loader import load_with_data
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.proto.walk import operator_of
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.options.progress import Progress
from widthfold_onnx.runtime.descriptions import Level
from widthfold_onnx.runtime.inputs.input_sets import InputSets
from widthfold_onnx.runtime.inputs.recorded import InputSet
from widthfold_onnx.text import printable

UNSTEADY = "cannot be judged: the original itself gives other values when it runs again"

MAX_COPIED_BYTES = 1 << 29
"""Largest model that is copied; it is held several times."""


@dataclass(frozen=True)
class Reference:
    """The original, and how all models are run.

    Attributes:
        model: file of the original.
        options: where models run.
        on_progress: gets a step before each run.
        inputs: the input sets on which the original runs.
        outputs: by input set and name, without the runtime's own optimizations.
        names: of the outputs that the model declares.
        unsteady: names of outputs that a second run on the same inputs does not repeat.
    """

    model: Path
    options: VerifyOptions
    on_progress: Progress
    inputs: InputSets
    outputs: list[Outputs]
    names: list[str]
    unsteady: set[str]

    @property
    def sets(self) -> list[InputSet]:
        """The input sets."""
        return self.inputs.sets

    @property
    def doubts(self) -> list[str]:
        """Why outputs cannot be judged, one line each."""
        return [f"output {printable(name)} {UNSTEADY}" for name in sorted(self.unsteady)]

    def run(self, model: Path, level: Level) -> list[Outputs] | str:
        """Return the outputs of a model on each input set, or why there are none."""
        return attempt(model, self.options, level, self.sets, self.on_progress)

    @cached_property
    def optimized_outputs(self) -> list[Outputs] | str:
        """Outputs with the runtime's optimizations, or why there are none."""
        return self.run(self.model, Level.ALL)

    def movement(self, copy_index: int) -> list[dict[str, Distance]] | str:
        """Measure by a shaken copy how far a unit in the last place moves each output.

        The result is by input set and name, or says why the copy does not run. An output is left
        out if other elements are not finite in the copy: its distance says nothing.
        """
        steps = steps_of(copy_index, COPIES[copy_index])

        def copy() -> onnx.ModelProto:
            return shake(load_with_data(self.model, MAX_COPIED_BYTES), steps)

        def sets() -> Iterator[InputSet]:
            for item in self.sets:
                feeds = {name: shaken_input(array, steps) for name, array in item.feeds.items()}
                yield InputSet(f"copy {copy_index + 1}, {item.label}", feeds)

        runs = attempt(copy, self.options, Level.DISABLED, sets(), self.on_progress)
        if isinstance(runs, str):
            return runs
        return [
            {
                name: gap.times(1 / COPIES[copy_index], dtype_of(pair[0]))
                for name, pair in pairs(outputs, run).items()
                if (gap := distance(*pair)) is not None
            }
            for outputs, run in zip(self.outputs, runs, strict=True)
        ]

    def overflow(self, set_index: int) -> str:
        """Name a linear node of the main graph that reads or gives NaN or Inf on an input set.

        The sentence is "" if there is no such node, or if the original does not run with the values
        of these nodes as outputs. Random inputs may be larger than the model was made for. A
        structural zero times Inf is NaN, so a fold spreads such a value to its neighbours, by
        design and within one sample.
        """
        nodes: list[onnx.NodeProto] = []

        def copy() -> onnx.ModelProto:
            model = load_with_data(self.model, MAX_COPIED_BYTES)
            nodes.extend(node for node in model.graph.node if operator_of(node) in OPERATORS)
            values = {name for node in model.graph.node for name in node.output}
            values &= {name for node in nodes for name in (*node.input, *node.output)}
            for name in sorted(values - {value.name for value in model.graph.output}):
                model.graph.output.add().name = name
            return model

        runs = attempt(copy, self.options, Level.DISABLED, [self.sets[set_index]], self.on_progress)
        if isinstance(runs, str):
            return ""
        for node in nodes:
            for verb, names in (("reads", node.input), ("gives", node.output)):
                for value in (runs[0][name] for name in names if name in runs[0]):
                    count = np.count_nonzero(~np.isfinite(value)) if value.dtype.kind == "f" else 0
                    if count:
                        return (
                            f"{describe_node(node)} of the original {verb} NaN or Inf there "
                            f"({count} of {value.size} values), which a fold may spread"
                        )
        return ""


def reference_of(original: Path, options: VerifyOptions, on_progress: Progress) -> Reference:
    """Run the original and close it again: at most two models are in memory at a time.

    Raises:
        UnverifiedError: it does not run.
        UsageError: stored inputs or shapes that do not fit it.
    """
    session = open_exact(original, options, Level.DISABLED)
    options_text = ", ".join(f"{name}={value}" for name, value in options.session_options.items())
    try:
        if options_text:
            open_chosen(original, options, Level.ALL)
    except UnverifiedError as error:  # no `NoKernelError`, which says that no options help
        raise UnverifiedError(f"with {printable(options_text)} {error}") from error
    inputs, outputs = run_on_inputs(original, session, options, on_progress)
    second_outputs = session.run(inputs.sets[0].feeds)
    unsteady = {
        name
        for name, pair in pairs(outputs[0], second_outputs).items()
        if not compare(name, *pair, options.tolerance).passed
    }
    return Reference(original, options, on_progress, inputs, outputs, session.outputs, unsteady)
