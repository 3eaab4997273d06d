"""Run the original, and find where it overflows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.exact_kernels import open_chosen, open_exact
from widthfold_onnx.evidence.parity.chosen_inputs import run_on_inputs
from widthfold_onnx.evidence.parity.outputs import (
    Outputs,
    compare,
    pairs,
)
from widthfold_onnx.evidence.parity.runs import Runs, attempt
from widthfold_onnx.model.loader import LoadedModel, copy_with_data
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.proto.walk import operator_of
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.runtime.inputs.input_sets import InputSets
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.text import printable

UNSTEADY_NOTE = "cannot be judged: the original itself gives other values when it runs again"

MAX_COPIED_BYTES = 1 << 29
"""Largest model that is copied; it is held several times."""


@dataclass(frozen=True)
class OriginalRuns:
    """The runs of the original, and how all models are run.

    Attributes:
        model: the original.
        options: where models run.
        inputs: the input sets on which the original runs.
        outputs: by input set and name, without the runtime's own optimizations.
        names: of the outputs that the model declares.
        unsteady_outputs: names of outputs that a second run on the same inputs does not repeat.
    """

    model: LoadedModel
    options: VerifyOptions
    inputs: InputSets
    outputs: list[Outputs]
    names: list[str]
    unsteady_outputs: set[str]

    @property
    def doubts(self) -> list[str]:
        """Why outputs cannot be judged, one line each."""
        return [
            f"output {printable(name)} {UNSTEADY_NOTE}" for name in sorted(self.unsteady_outputs)
        ]

    def shapes_of(self, name: str) -> list[tuple[int, ...]]:
        """Return the extents of an output on each input set that returned it."""
        return [outputs[name].shape for outputs in self.outputs if name in outputs]

    def run(self, model: LoadedModel, level: Level) -> Runs:
        """Run a model on each input set."""
        return attempt(model, self.options, level, self.inputs.sets)

    @cached_property
    def optimized_runs(self) -> Runs:
        """Runs with the runtime's optimizations."""
        return self.run(self.model, Level.ALL)

    def overflow(self, set_index: int) -> str:
        """Name a linear node of the main graph that reads or gives NaN or Inf on an input set.

        Random inputs may be larger than the model was made for. A fold spreads NaN and Inf to their
        neighbours within a sample, as a structural zero times Inf is NaN (docs/folds.md).

        Returns:
            A sentence; "" if there is no such node, or if the original does not run with the values
            of these nodes as outputs.
        """
        nodes: list[onnx.NodeProto] = []

        def copy() -> onnx.ModelProto:
            model = copy_with_data(self.model, MAX_COPIED_BYTES)
            nodes.extend(node for node in model.graph.node if operator_of(node) in OPERATORS)
            values = {name for node in model.graph.node for name in node.output}
            values &= {name for node in nodes for name in (*node.input, *node.output)}
            for name in sorted(values - {value.name for value in model.graph.output}):
                model.graph.output.add().name = name
            return model

        sets = [self.inputs.sets[set_index]]
        runs = attempt(copy, self.options, Level.DISABLED, sets)
        if runs.failure:
            return ""
        (outputs,) = runs.outputs
        for node in nodes:
            for verb, names in (("reads", node.input), ("gives", node.output)):
                for value in (outputs[name] for name in names if name in outputs):
                    count = np.count_nonzero(~np.isfinite(value)) if value.dtype.kind == "f" else 0
                    if count:
                        return (
                            f"{describe_node(node)} of the original {verb} NaN or Inf there "
                            f"({count} of {value.size} values), which a fold may spread"
                        )
        return ""


def original_runs_of(original: LoadedModel, options: VerifyOptions) -> OriginalRuns:
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
    except UnverifiedError as error:  # not a `NoKernelError`: without the options it may run
        raise UnverifiedError(f"with {printable(options_text)} {error}") from error
    inputs, outputs = run_on_inputs(original, session, options)
    second_outputs = session.run(inputs.sets[0].feeds)
    unsteady_outputs = {
        name
        for name, pair in pairs(outputs[0], second_outputs).items()
        if not compare(name, *pair, options.tolerance).passed
    }
    return OriginalRuns(original, options, inputs, outputs, session.outputs, unsteady_outputs)
