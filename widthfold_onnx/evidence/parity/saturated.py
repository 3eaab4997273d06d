"""Measures how far both models are from their definition where 8-bit kernels saturate.

The values are judged with exact kernels (`exact_kernels`); here both models run as the caller
deploys them. A fold saturates at other products than the original, which is reported; it must
not be further from the definition than the original is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from widthfold_onnx.evidence.eight_bits.exact_kernels import open_chosen
from widthfold_onnx.evidence.parity.figures import distance
from widthfold_onnx.evidence.parity.outputs import DEFAULT_RTOL, SLACK, figure
from widthfold_onnx.evidence.parity.reference import Reference, reference_of
from widthfold_onnx.evidence.parity.runs import Outputs, attempt, both, output_names
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.progress import quiet
from widthfold_onnx.runtime.inputs.recorded import InputSet
from widthfold_onnx.runtime.sessions.session import Level, resolved
from widthfold_onnx.runtime.sessions.session_options import PRECISION
from widthfold_onnx.text import printable

STEP = 1.0
"""Slack where outputs are integers, in steps: the original may be right by luck."""


@dataclass(frozen=True)
class Distance:
    """Distances of both models from the definition of one output, the largest over all input sets.

    Attributes:
        name: of the output.
        whole: whether it holds integers, so that distances are steps.
        original: largest |difference| of the original.
        rewritten: the same of the rewritten model.
        scale: largest magnitude of the output.
        slack: distance by which the rewritten model may always be further off.
    """

    name: str
    whole: bool
    original: float
    rewritten: float
    scale: float
    slack: float

    @property
    def grew(self) -> bool:
        """True if the rewritten model is further off than the original explains.

        Both saturate at arbitrary products, so the largest differences are two draws from one
        distribution.
        """
        return self.rewritten > SLACK * self.original + self.slack

    @property
    def beyond(self) -> bool:
        """True if a model is further off than it may be in any case."""
        return max(self.original, self.rewritten) > self.slack

    @property
    def share(self) -> float:
        """The larger of both distances, relative to the largest magnitude."""
        return max(self.original, self.rewritten) / (self.scale or 1.0)

    def shown(self, distance: float) -> str:
        """Format a distance in steps, or relative to the largest magnitude."""
        if self.whole:
            return f"{distance:.0f} steps"
        return f"{figure(distance / (self.scale or 1.0))} of its largest value"


def saturating(original: Path, folds: Sequence[Path], options: VerifyOptions) -> list[list[str]]:
    """Return why folds may not be deployed here; meant to run in `runtime.child.isolated`.

    Args:
        original: model file, for which `check_judged` returned True.
        folds: files of it, folded.
        options: as for `compare_models`.

    Returns:
        For each fold the objections if it saturates further than the original; else none.
    """
    reference = reference_of(original, resolved(options), quiet)
    exact = reference.run(original, Level.ALL)
    found: list[list[str]] = []
    for fold in folds:
        outputs = reference.run(fold, Level.ALL)
        if isinstance(exact, str) or isinstance(outputs, str):
            found.append([])  # verification reports the failure
            continue
        worse, told = as_deployed(reference, fold, (exact, outputs))
        found.append([*worse, *told] if worse else [])
    return found


def as_deployed(
    reference: Reference, rewritten: Path, exact: Sequence[Sequence[Outputs]]
) -> tuple[list[str], list[str]]:
    """Run both models as the caller deploys them.

    Args:
        reference: the original, with integers of 8 bits.
        rewritten: model file.
        exact: results of each model by exact kernels at the same level, per input set.

    Returns:
        Failures: the rewritten model does not run, or is further from its exact outputs than the
        original; and a sentence on the distances of both, if any, or that the original does not
        run.
    """
    reference.report("integers of 8 bits as deployed")
    models, options, sets = (reference.model, rewritten), reference.options, reference.sets
    first, second = (_outputs(model, options, sets) for model in models)
    if isinstance(first, str):
        return [], [f"as deployed the original does not run: {first}"]
    if isinstance(second, str):
        return [f"as deployed the original runs, the rewritten model does not: {second}"], []
    names = [name for name in output_names(*exact) if name not in reference.unsteady]
    found = [d for d in _distances(names, exact, (first, second)) if d.beyond]
    if not found:
        return [], []
    worst = max(found, key=lambda distance: distance.share)
    chosen = replace(options, session_options={**options.session_options, PRECISION: "1"})
    sentence = (
        "this CPU's 8-bit kernels saturate (no VNNI): from its own definition the original is at "
        f"most {worst.shown(worst.original)} away here, the rewritten model "
        f"{worst.shown(worst.rewritten)} (output {printable(worst.name)}); "
        f"{_remedy(names, exact, [_outputs(model, chosen, sets) for model in models])}"
    )
    grown = [printable(distance.name) for distance in found if distance.grew]
    failures = [f"further from the definition than the original: output {', '.join(grown)}"]
    return (failures if grown else []), [sentence]


def _outputs(model: Path, options: VerifyOptions, sets: Sequence[InputSet]) -> list[Outputs] | str:
    """Return the outputs of a model as deployed, or why it does not run."""
    return attempt(model, options, Level.ALL, sets, opened=open_chosen)


def _distances(
    names: Iterable[str], exact: Sequence[Sequence[Outputs]], computed: Sequence[Sequence[Outputs]]
) -> Iterator[Distance]:
    """Yield the distances of each output for which both models return numbers."""
    for name in names:
        pairs = [zip(*pair, strict=True) for pair in zip(exact, computed, strict=True)]
        apart = [[distance(*both(name, a, b)) for a, b in pair] for pair in pairs]
        arrays = [outputs[name] for outputs in exact[0] if name in outputs]
        texts = any(array.dtype.kind in "OUS" for array in arrays)
        if texts or not arrays or None in apart[0] + apart[1]:
            continue  # texts, other shapes, NaN elsewhere: judged by the rule
        original, rewritten = (max(d.largest for d in side if d is not None) for side in apart)
        finite = (np.abs(array[np.isfinite(array)].astype(np.float64)) for array in arrays)
        scale = max((float(array.max(initial=0.0)) for array in finite), default=0.0)
        whole = all(array.dtype.kind in "iu" for array in arrays)
        slack = STEP if whole else DEFAULT_RTOL.get(arrays[0].dtype.name, 0.0) * scale
        yield Distance(name, whole, original, rewritten, scale, slack)


def _remedy(
    names: Iterable[str],
    exact: Sequence[Sequence[Outputs]],
    remedied: Sequence[list[Outputs] | str],
) -> str:
    """Say whether `PRECISION` makes both models exact, as tried."""
    computed = [outputs for outputs in remedied if not isinstance(outputs, str)]
    if len(computed) < len(remedied):
        return (
            f"{PRECISION}=1 does not load both; weights of 7 bits, or unsigned ones, would be exact"
        )
    if any(distance.share for distance in _distances(names, exact, computed)):
        return f"{PRECISION}=1 does not make both exact"
    return f"{PRECISION}=1 makes both exact"
