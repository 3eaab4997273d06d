"""Runs the original: what other models are compared with, and how far rounding moves that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.inputs import all_windows_fit, controls, filling, shown, unreached
from widthfold_onnx.evidence.parity.exact_kernels import may_saturate, open_chosen, open_exact
from widthfold_onnx.evidence.parity.outputs import SLACK, Distance, compare, difference, distance
from widthfold_onnx.evidence.parity.runs import Outputs, attempt, both, output_names, run_once
from widthfold_onnx.evidence.parity.shaken import Steps, shake, shaken
from widthfold_onnx.model.loader import load, load_with_data
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.proto.walk import operator_of
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.progress import Say, quiet
from widthfold_onnx.runtime.inputs.input_sets import InputSets, input_sets
from widthfold_onnx.runtime.inputs.recorded import InputSet
from widthfold_onnx.runtime.sessions.session import Level, Session, resolved
from widthfold_onnx.text import printable

UNSTEADY = "cannot be judged: the original itself gives other values when it runs again"

MAX_BYTES = 1 << 29
"""Largest model that is copied; it is held several times."""


@dataclass(frozen=True)
class Reference:
    """The original without the runtime's own optimizations, and how all models are run.

    Attributes:
        model: file of the original.
        options: where models run.
        report: gets a line of text before each run.
        inputs: the sets on which it runs.
        outputs: outputs of each set, by name.
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

    @property
    def doubts(self) -> list[str]:
        """Why outputs cannot be judged, one line each."""
        return [f"output {printable(name)} {UNSTEADY}" for name in sorted(self.unsteady)]

    def shapes(self, name: str) -> list[tuple[int, ...]]:
        """Return the shapes of an output on all input sets."""
        return [outputs[name].shape for outputs in self.outputs if name in outputs]

    def run(self, model: Path, level: Level) -> list[Outputs] | str:
        """Return the outputs of a model on each input set, or why there are none."""
        return attempt(model, self.options, level, self.sets, self.report)

    def moved(self, copy: int, size: int) -> list[dict[str, Distance]] | str:
        """Return how far a copy moves each output, by input set, or why that is not known.

        An output whose non-finite elements are others in the copy is left out: it says nothing.

        Args:
            copy: number of the shaken copy.
            size: units in the last place by which it is shaken.
        """
        steps = Steps(copy, size)
        try:
            model = shake(load_with_data(self.model, MAX_BYTES), steps)
        except UnverifiedError as error:
            return str(error)
        sets = [
            InputSet(
                f"copy {copy + 1}, {item.label}",
                {n: shaken(x, steps) for n, x in item.feeds.items()},
            )
            for item in self.sets
        ]
        runs = attempt(model, self.options, Level.DISABLED, sets, self.report)
        if isinstance(runs, str):
            return runs
        pairs = zip(self.outputs, runs, strict=True)
        moved = [{n: distance(*both(n, first, other)) for n in first} for first, other in pairs]
        return [{n: apart for n, apart in item.items() if apart is not None} for item in moved]

    def overflows(self, number: int) -> str:
        """Name a linear node of the main graph that reads or gives NaN or Inf on an input set.

        A structural zero times Inf is NaN, so a fold spreads such a value to its neighbours, by
        design and within one sample. Random inputs may be larger than the model was made for.

        Returns:
            A sentence; "" where there is no such node, or the original does not run so.
        """
        try:
            model = load_with_data(self.model, MAX_BYTES)
            nodes = [node for node in model.graph.node if operator_of(node) in OPERATORS]
            outputs = {name for node in model.graph.node for name in node.output}
            ports = {name for node in nodes for name in (*node.input, *node.output)} & outputs
            for name in sorted(ports - {value.name for value in model.graph.output}):
                model.graph.output.add().name = name
            session = open_exact(model, self.options, Level.DISABLED)
            values = session.run(self.sets[number].feeds)
        except UnverifiedError:
            return ""
        for node, name in ((n, name) for n in nodes for name in (*n.input, *n.output)):
            value = values.get(name)
            if value is not None and value.dtype.kind == "f" and not np.isfinite(value).all():
                return (
                    f"{describe_node(node)} of the original "
                    f"{'gives' if name in node.output else 'reads'} NaN or Inf there "
                    f"({np.count_nonzero(~np.isfinite(value))} of {value.size} values), "
                    "which a fold may spread"
                )
        return ""


def reference_of(original: Path, options: VerifyOptions, report: Say) -> Reference:
    """Run the original and close it again: at most two models are in memory at a time.

    Raises:
        UnverifiedError: it does not run.
        UsageError: stored inputs or shapes that do not fit it.
    """
    session = open_exact(original, options, Level.DISABLED)
    chosen = ", ".join(f"{name}={value}" for name, value in options.session_options.items())
    try:
        if chosen:
            open_chosen(original, options, Level.ALL)
    except UnverifiedError as error:  # no `NoKernelError`, which says that no options help
        raise UnverifiedError(f"with {printable(chosen)} {error}") from error
    # Loaded when it is asked for, and only as long: models may be large.
    inputs = input_sets(session, options, lambda s: all_windows_fit(load(original).proto, s))
    random_sets = [item for item in inputs.sets if item.random][:1]
    inputs.sets.extend(
        item for random_set in random_sets if (item := filling(original, random_set)) is not None
    )
    inputs, outputs = _run(session, inputs, report)
    if (
        random_sets
        and not any(map(shown, outputs))
        and (values := controls(session, random_sets[0].feeds))
    ):
        inputs, outputs = _run(session, _controlled(inputs, values), report)
    if missed := unreached(load(original).proto, original, options, inputs.sets):
        limits = [*inputs.limits, f"no input set reached {', '.join(missed)}"]
        inputs = replace(inputs, limits=limits)
    again = session.run(inputs.sets[0].feeds)
    unsteady = {
        name
        for name in output_names([outputs[0]], [again])
        if not compare(name, *both(name, outputs[0], again), options.tolerance).passed
    }
    return Reference(original, options, report, inputs, outputs, session.outputs, unsteady)


def _controlled(inputs: InputSets, values: Mapping[str, Array]) -> InputSets:
    """Set some inputs of all random sets to values, and say so."""
    sets = [
        replace(item, feeds={n: values.get(n, x) for n, x in item.feeds.items()})
        if item.random
        else item
        for item in inputs.sets
    ]
    values_text = ", ".join(f"{printable(name)} {x.tolist()}" for name, x in values.items())
    limits = [*inputs.limits, f"random values of small inputs show nothing; they are {values_text}"]
    return replace(inputs, sets=sets, limits=limits)


def _run(session: Session, inputs: InputSets, report: Say) -> tuple[InputSets, list[Outputs]]:
    """Run the original on each set, and leave out random sets on which it stops.

    Raises:
        UnverifiedError: it stops on the first set or on a stored one.
    """
    usable: list[InputSet] = []
    outputs: list[Outputs] = []
    limits = [*inputs.limits]
    for item in inputs.sets:
        try:
            report(f"original: {item.label}")
            outputs.append(run_once(session, item))
        except UnverifiedError as error:
            if not (usable and item.random):
                raise
            limits.append(f"left out {item.label}: {error}")
        else:
            usable.append(item)
    return replace(inputs, sets=usable, limits=limits), outputs


def stored_differences(reference: Reference, computed: Sequence[Outputs]) -> list[str]:
    """Say where the rewritten model is further from stored outputs than it may be.

    `SLACK` times the original's own distance is allowed beside the tolerance.

    Args:
        reference: the original; stored outputs stand in graph order.
        computed: the rewritten model's outputs per set.
    """
    tolerance, lines = reference.options.tolerance, []
    for item, *runs in zip(reference.sets, reference.outputs, computed, strict=True):
        for name, expected in zip(reference.names, item.expected, strict=False):
            if any(name not in run for run in runs):
                continue
            old, new = (compare(name, expected, run[name], tolerance) for run in runs)
            far = new.max_abs is None or old.max_abs is None or new.max_abs > SLACK * old.max_abs
            if not new.passed and (far or (old.nonfinite_match and not new.nonfinite_match)):
                lines.append(f"{item.label}: stored {difference(new)}")
    return lines


def check_judged(original: Path, options: VerifyOptions) -> bool:
    """Check that a rewritten model can be compared with something, before one is sought.

    Meant to run in `runtime.child.isolated`.

    Args:
        original: model file.
        options: provider, stored inputs and shapes are used.

    Returns:
        Whether its kernels saturate here, so that folds must be checked as well.

    Raises:
        UnverifiedError: the model does not run as its values are judged, or not twice alike.
        UsageError: stored inputs or shapes that do not fit it.
    """
    chosen = replace(resolved(options), seeds=0 if options.inputs else 1)
    reference = reference_of(original, chosen, quiet)
    if reference.doubts:
        raise UnverifiedError(reference.doubts[0])
    return may_saturate(chosen, original)
