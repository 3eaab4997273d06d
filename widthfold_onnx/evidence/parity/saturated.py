"""Measures how far both models are from their definition where 8-bit kernels saturate.

The values are judged with exact kernels (`exact_kernels`); here both models run as the caller
deploys them. A fold saturates at other products than the original, which is reported; it must
not be further from the definition than the original is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from widthfold_onnx.evidence.parity.exact_kernels import open_chosen
from widthfold_onnx.evidence.parity.outputs import DEFAULT_RTOL, SLACK, Distance, figure, measure
from widthfold_onnx.evidence.parity.reference import Reference, reference_of
from widthfold_onnx.evidence.parity.runs import Outputs, attempt, both, output_names
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.progress import quiet
from widthfold_onnx.runtime.sessions.session import Level, resolved
from widthfold_onnx.runtime.sessions.session_options import PRECISION
from widthfold_onnx.text import printable

Runs = Sequence[Outputs] | str
"""Outputs of a model by input set, or why there are none."""


@dataclass(frozen=True)
class Deviation:
    """Distances of both models from the definition of one output, the largest over all input sets.

    Attributes:
        name: of the output.
        whole: whether it holds integers, so that distances are steps.
        original: largest |difference| of the original.
        rewritten: the same of the rewritten model.
        scale: largest magnitude of the output.
        slack: distance that is always allowed: a step of integers, as the original may be lucky.
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
    def largest(self) -> float:
        """The larger of both distances."""
        return max(self.original, self.rewritten)

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
        options: as for `run_models`.

    Returns:
        For each fold the objections if it saturates further than the original; else none.
    """
    reference = reference_of(original, resolved(options), quiet)
    exact = reference.run(original, Level.ALL)
    pairs = [as_deployed(reference, f, (exact, reference.run(f, Level.ALL))) for f in folds]
    return [[*worse, *remarks] if worse else [] for worse, remarks in pairs]


def as_deployed(
    reference: Reference, rewritten: Path, exact: tuple[Runs, Runs]
) -> tuple[list[str], list[str]]:
    """Run both models as the caller deploys them.

    Args:
        reference: the original, with integers of 8 bits.
        rewritten: model file.
        exact: results of each model by exact kernels at the same level; where there are none,
            verification reports the failure.

    Returns:
        Failures: the rewritten model does not run, or is further from its exact outputs than the
        original; and a sentence on the distances of both, if any, or that the original does not
        run.
    """
    before, after = exact
    if isinstance(before, str) or isinstance(after, str):
        return [], []
    reference.report("integers of 8 bits as deployed")
    first, second = (
        attempt(model, reference.options, Level.ALL, reference.sets, opened=open_chosen)
        for model in (reference.model, rewritten)
    )
    if isinstance(first, str):
        return [], [f"as deployed the original does not run: {first}"]
    if isinstance(second, str):
        return [f"as deployed the original runs, the rewritten model does not: {second}"], []
    names = [name for name in output_names(before, after) if name not in reference.unsteady]
    deviations = _deviations(names, [(before, first), (after, second)])
    beyond = [deviation for deviation in deviations if deviation.largest > deviation.slack]
    if not beyond:
        return [], []
    worst = max(beyond, key=lambda deviation: deviation.largest / (deviation.scale or 1.0))
    sentence = (
        "this CPU's 8-bit kernels saturate (no VNNI): from its own definition the original is at "
        f"most {worst.shown(worst.original)} away here, the rewritten model "
        f"{worst.shown(worst.rewritten)} (output {printable(worst.name)}); {PRECISION}=1, weights "
        "of 7 bits, or unsigned ones, may be exact"
    )
    grown = [printable(deviation.name) for deviation in beyond if deviation.grew]
    failures = [f"further from the definition than the original: output {', '.join(grown)}"]
    return (failures if grown else []), [sentence]


def _deviations(
    names: Sequence[str], sides: Sequence[tuple[Sequence[Outputs], Sequence[Outputs]]]
) -> Iterator[Deviation]:
    """Yield the deviations of each output for which both models return numbers.

    Args:
        names: of the outputs.
        sides: of each model the outputs by definition and as deployed.
    """
    for name in names:
        pairs = [[both(name, *runs) for runs in zip(*side, strict=True)] for side in sides]
        kinds = {array.dtype.name for side in pairs for pair in side for array in pair}
        if any(a.shape != b.shape for side in pairs for a, b in side) or len(kinds) > 1:
            continue  # judged by the rule, as are texts and NaN elsewhere
        kind = pairs[0][0][0].dtype
        figures = [[measure(*pair) for pair in side] for side in pairs]
        if kind.kind in "OUS" or not all(f.nonfinite_match for side in figures for f in side):
            continue
        old, new = (max((f.distance or Distance()).largest for f in side) for side in figures)
        scale = max(f.scale for f in figures[0])
        slack = 1.0 if kind.kind in "iu" else DEFAULT_RTOL.get(kind.name, 0.0) * scale
        yield Deviation(name, kind.kind in "iu", old, new, scale, slack)
