"""Runs the original, and checks that folds can be compared with it before one is sought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.eight_bits.exact_kernels import may_saturate
from widthfold_onnx.evidence.eight_bits.filled import filling
from widthfold_onnx.evidence.parity.comparison import UNSTEADY, Outputs, both, output_names
from widthfold_onnx.evidence.parity.outputs import compare
from widthfold_onnx.evidence.parity.runs import (
    Report,
    attempt,
    input_sets,
    no_report,
    open_judged,
    originals,
)
from widthfold_onnx.evidence.parity.saturated import as_deployed, check_deployable
from widthfold_onnx.options import Shapes, VerifyOptions
from widthfold_onnx.runtime.inputs.recorded import InputSet
from widthfold_onnx.runtime.sessions.session import Level, resolved
from widthfold_onnx.text import printable


@dataclass(frozen=True)
class Reference:
    """The outputs of the original without the runtime's own optimizations.

    Attributes:
        sets: the input sets on which it runs.
        outputs: those of each set, by name.
        names: of the outputs that the model declares.
        unsteady: names of outputs that a second run on the same inputs does not repeat.
        shapes: of the first random input set, empty if there is none.
        limits: inputs that were left out, one line each.
    """

    sets: list[InputSet]
    outputs: list[Outputs]
    names: list[str]
    unsteady: set[str]
    shapes: Shapes
    limits: list[str]


def reference_of(original: Path, options: VerifyOptions, report: Report) -> Reference:
    """Run the original and close it again: at most two models are in memory at a time.

    Raises:
        UnverifiedError: it does not run.
        UsageError: stored inputs or shapes that do not fit it.
    """
    session = open_judged(original, options, Level.DISABLED)
    check_deployable(original, options)
    sets, shapes, limits = input_sets(session, options)
    made = next((item for item in sets if item.made_up), None)
    filled = made and filling(original, made)
    sets += [filled] if filled else []
    sets, outputs = originals(session, sets, limits, report)
    again = session.run(sets[0].feeds)
    unsteady = {
        name
        for name in output_names([outputs[0]], [again])
        if not compare(name, *both(name, outputs[0], again), options.tolerance).passed
    }
    return Reference(sets, outputs, session.outputs, unsteady, shapes, limits)


def unsteady_of(reference: Reference) -> list[str]:
    """Say why outputs cannot be judged, one line each."""
    return [f"output {printable(name)} {UNSTEADY}" for name in sorted(reference.unsteady)]


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
    reference = reference_of(original, chosen, no_report)
    if reference.unsteady:
        raise UnverifiedError(unsteady_of(reference)[0])
    return may_saturate(chosen, original)


def saturating(original: Path, folds: Sequence[Path], options: VerifyOptions) -> list[list[str]]:
    """Return why folds may not be deployed here; meant to run in `runtime.child.isolated`.

    Args:
        original: model file, for which `check_judged` returned True.
        folds: files of it, folded.
        options: as for `compare_models`.

    Returns:
        For each fold the objections if it saturates further than the original; else none.
    """
    options = resolved(options)
    reference = reference_of(original, options, no_report)
    sets, unsteady = reference.sets, reference.unsteady
    exact = attempt(original, options, Level.ALL, sets, no_report)
    found: list[list[str]] = []
    for fold in folds:
        outputs = attempt(fold, options, Level.ALL, sets, no_report)
        if isinstance(exact, str) or isinstance(outputs, str):
            found.append([])  # verification reports the failure
            continue
        models, runs = (original, fold), (exact, outputs)
        worse, told = as_deployed(models, options, sets, runs, unsteady, no_report)
        found.append([*worse, *told] if worse else [])
    return found
