"""How far both models are from their definition where this CPU's kernels of 8 bits saturate.

The values are judged with exact kernels (`evidence.exact_kernels`); here both models run as the
caller deploys them. A fold saturates at other products than the original, which the caller is told;
and it must not be further from the definition than the original is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.parity import compare
from widthfold_onnx.evidence.rounds import CORES, Report
from widthfold_onnx.evidence.rows import SLACK, Outputs, both, figure, output_names
from widthfold_onnx.options import Tolerance, VerifyOptions
from widthfold_onnx.results import OutputParity
from widthfold_onnx.runtime.entries import PRECISION
from widthfold_onnx.runtime.session import Level, open_session
from widthfold_onnx.runtime.stored import InputSet
from widthfold_onnx.text import printable

STEP = 1.0
"""Or so much further, where outputs are integers: the original may be right by luck."""


@dataclass(frozen=True)
class Distance:
    """How far both models are from the definition of one output, at most over all input sets.

    Attributes:
        name: of the output.
        whole: whether it holds integers, so that distances are steps.
        original: largest |difference| of the original.
        rewritten: the same of the rewritten model.
        scale: largest magnitude of the output.
        slack: what the rewritten model may be further off in any case.
    """

    name: str
    whole: bool
    original: float
    rewritten: float
    scale: float
    slack: float

    @property
    def grew(self) -> bool:
        """Whether the rewritten model is further off than the original explains.

        Both saturate at products that nobody chose, so the largest differences are two draws from
        one distribution.
        """
        return self.rewritten > SLACK * self.original + self.slack

    @property
    def share(self) -> float:
        """The larger of both distances, relative to the largest magnitude."""
        return max(self.original, self.rewritten) / (self.scale or 1.0)

    def shown(self, distance: float) -> str:
        """A distance in steps, or relative to the largest magnitude."""
        if self.whole:
            return f"{distance:.0f} steps"
        return f"{figure(distance / (self.scale or 1.0))} of its largest value"


def as_deployed(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    sets: Sequence[InputSet],
    definition: Sequence[Outputs],
    report: Report,
) -> tuple[list[str], list[str]]:
    """Run both models as the caller deploys them.

    Args:
        original: model file with integers of 8 bits.
        rewritten: model file.
        options: where they run.
        sets: the input sets.
        definition: outputs of both per input set, from exact kernels at the same level.
        report: called with a line before the runs.

    Returns:
        Where the rewritten model is further from the definition than the original, and a sentence
        that says how far both are, if they are.
    """
    report("integers of 8 bits as deployed")
    models = (original, rewritten)
    first, second = (_outputs(model, options, sets) for model in models)
    if first is None or second is None:
        return [], []
    found = _distances(definition, first, second)
    if not any(distance.share for distance in found):
        return [], []
    exact = replace(options, session_options={**options.session_options, PRECISION: "1"})
    remedied = [_outputs(model, exact, sets) for model in models]
    worst = max(found, key=lambda distance: distance.share)
    sentence = (
        "this CPU's 8-bit kernels saturate (no VNNI): the original differs from its own "
        f"definition by up to {worst.shown(worst.original)} here, the rewritten model by up to "
        f"{worst.shown(worst.rewritten)} (output {printable(worst.name)}); "
        f"{_remedy(definition, remedied)}"
    )
    grown = [printable(distance.name) for distance in found if distance.grew]
    failures = [f"further from the definition than the original: output {', '.join(grown)}"]
    return (failures if grown else []), [sentence]


def _outputs(model: Path, options: VerifyOptions, sets: Sequence[InputSet]) -> list[Outputs] | None:
    """What a model computes as deployed; None where it does not run."""
    try:
        session = open_session(
            model,
            options.provider,
            Level.ALL,
            CORES,
            provider_options=options.provider_options,
            session_options=options.session_options,
        )
        return [session.run(item.feeds) for item in sets]
    except UnverifiedError:
        return None


def _distances(
    definition: Sequence[Outputs], first: Sequence[Outputs], second: Sequence[Outputs]
) -> list[Distance]:
    found = []
    for name in output_names(definition):
        sides = [_rows(name, definition, computed) for computed in (first, second)]
        if any(row.max_abs is None for rows in sides for row in rows):
            continue  # texts, other shapes, nothing finite: judged elsewhere
        arrays = [outputs[name] for outputs in definition]
        finite = [np.abs(array[np.isfinite(array)].astype(np.float64)) for array in arrays]
        scale = max((float(values.max(initial=0.0)) for values in finite), default=0.0)
        whole = arrays[0].dtype.kind in "iu"
        original, rewritten = (max(row.max_abs or 0.0 for row in rows) for rows in sides)
        slack = STEP if whole else sides[0][0].tolerance * scale
        found.append(Distance(name, whole, original, rewritten, scale, slack))
    return found


def _rows(
    name: str, definition: Sequence[Outputs], computed: Sequence[Outputs]
) -> list[OutputParity]:
    pairs = zip(definition, computed, strict=True)
    return [compare(name, *both(name, one, other), Tolerance()) for one, other in pairs]


def _remedy(definition: Sequence[Outputs], remedied: Sequence[Sequence[Outputs] | None]) -> str:
    """What makes both models exact, as it was tried."""
    if any(outputs is None for outputs in remedied):
        return (
            f"{PRECISION}=1 does not load both; weights of 7 bits, or unsigned ones, would be exact"
        )
    rows = [
        row
        for outputs in remedied
        if outputs is not None
        for name in output_names(definition)
        for row in _rows(name, definition, outputs)
    ]
    is_exact = all(row.passed for row in rows)
    return f"{PRECISION}=1 makes both exact" if is_exact else f"{PRECISION}=1 does not change that"
