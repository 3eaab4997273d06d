"""Runs the original: what other models are compared with, and how far rounding moves that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.eight_bits.exact_kernels import may_saturate, open_chosen, open_exact
from widthfold_onnx.evidence.inputs.controls import controls, shown
from widthfold_onnx.evidence.inputs.filled import filling
from widthfold_onnx.evidence.inputs.reached import unreached
from widthfold_onnx.evidence.inputs.windows import all_windows_fit
from widthfold_onnx.evidence.parity.figures import Distance, distance
from widthfold_onnx.evidence.parity.outputs import SLACK, compare, difference
from widthfold_onnx.evidence.parity.runs import Outputs, attempt, both, output_names, run_once
from widthfold_onnx.evidence.parity.shaken import Steps, shake, shaken
from widthfold_onnx.model.read.loader import load, load_with_data
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
            InputSet(item.label, {name: shaken(x, steps) for name, x in item.feeds.items()})
            for item in self.sets
        ]
        runs = attempt(model, self.options, Level.DISABLED, sets, self.report, f"copy {copy + 1}")
        if isinstance(runs, str):
            return runs
        return [
            {
                name: apart
                for name in before
                if (apart := distance(*both(name, before, after))) is not None
            }
            for before, after in zip(self.outputs, runs, strict=True)
        ]


def reference_of(original: Path, options: VerifyOptions, report: Say) -> Reference:
    """Run the original and close it again: at most two models are in memory at a time.

    Raises:
        UnverifiedError: it does not run.
        UsageError: stored inputs or shapes that do not fit it.
    """
    session = open_exact(original, options, Level.DISABLED)
    _check_deployable(original, options)
    # Loaded when it is asked for, and only as long: models may be large.
    inputs = input_sets(session, options, lambda s: all_windows_fit(load(original).proto, s))
    made = [item for item in inputs.sets if item.random][:1]
    inputs.sets.extend(item for one in made if (item := filling(original, one)) is not None)
    inputs, outputs = _run(session, inputs, report)
    if made and not any(map(shown, outputs)) and (values := controls(session, made[0].feeds)):
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
    said = ", ".join(f"{printable(name)} {x.tolist()}" for name, x in values.items())
    limits = [*inputs.limits, f"random values of small inputs show nothing; they are {said}"]
    return replace(inputs, sets=sets, limits=limits)


def _check_deployable(original: Path, options: VerifyOptions) -> None:
    """Check that the original loads with the options of the session that were chosen, if any.

    Raises:
        UnverifiedError: it does not. It is no `NoKernelError`, which says that no options help.
    """
    given = ", ".join(f"{name}={value}" for name, value in options.session_options.items())
    try:
        if given:
            open_chosen(original, options, Level.ALL)
    except UnverifiedError as error:
        raise UnverifiedError(f"with {printable(given)} {error}") from error


def _run(session: Session, inputs: InputSets, report: Say) -> tuple[InputSets, list[Outputs]]:
    """Run the original on each set, and leave out random sets on which it stops.

    Raises:
        UnverifiedError: it stops on the first set or on a stored one.
    """
    kept: list[InputSet] = []
    outputs: list[Outputs] = []
    limits = [*inputs.limits]
    for item in inputs.sets:
        try:
            outputs.append(run_once(session, item, "original", report))
        except UnverifiedError as error:
            if not (kept and item.random):
                raise
            limits.append(f"left out {item.label}: {error}")
        else:
            kept.append(item)
    return replace(inputs, sets=kept, limits=limits), outputs


def stored_differences(reference: Reference, computed: Sequence[Outputs]) -> list[str]:
    """Say where the rewritten model is further from stored outputs than it may be.

    `SLACK` times the original's own distance is allowed beside the tolerance.

    Args:
        reference: the original; stored outputs stand in graph order.
        computed: the rewritten model's outputs per set.
    """
    tolerance, lines = reference.options.tolerance, []
    for item, before, after in zip(reference.sets, reference.outputs, computed, strict=True):
        for name, expected in zip(reference.names, item.expected, strict=False):
            if name not in before or name not in after:
                continue
            old = compare(name, expected, before[name], tolerance)
            new = compare(name, expected, after[name], tolerance)
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
