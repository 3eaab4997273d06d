"""Compares both models, as the caller deploys them, with their definitions where integers saturate.

The values are judged with exact kernels (`exact_kernels`). A fold saturates at other products than
the original, which is reported; it must not be further from its definition than the original is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from widthfold_onnx.evidence.exact_kernels import open_chosen
from widthfold_onnx.evidence.model_runs import Outputs, attempt, pairs
from widthfold_onnx.evidence.parity.judgement import SLACK
from widthfold_onnx.evidence.parity.outputs import DEFAULT_RTOL, Distance, measure
from widthfold_onnx.evidence.parity.reference import Reference
from widthfold_onnx.runtime.sessions.session import Level
from widthfold_onnx.runtime.sessions.session_options import PRECISION
from widthfold_onnx.text import printable


def as_deployed(
    reference: Reference, rewritten: Path, exact: Sequence[Outputs] | str
) -> tuple[list[str], list[str]]:
    """Run both models as the caller deploys them.

    `exact` are the outputs of the rewritten model by exact kernels at the same level. If they
    or `reference.optimized` are missing, both lists are empty: verification reports that itself.

    Returns:
        Failures: the rewritten model does not run, or is further from its exact outputs than the
        original; and a sentence on the distances of both, if any, or that the original does not
        run.
    """
    if isinstance(reference.optimized, str) or isinstance(exact, str):
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
    grown: list[str] = []
    deviations: dict[str, float] = {}
    sides = [
        [pairs(*run) for run in zip(*runs, strict=True)]
        for runs in ((reference.optimized, first), (exact, second))
    ]
    arrays = {name: array for run in sides[0] for name, (array, _) in run.items()}
    for name, array in arrays.items():
        figures = [[measure(*run[name]) for run in side if name in run] for side in sides]
        is_judged = all(figures) and all(f.match for side in figures for f in side)
        if name in reference.unsteady or array.dtype.kind in "OUS" or not is_judged:
            continue  # texts, missing outputs and NaN elsewhere are judged by parity
        old, new = (max((f.distance or Distance()).largest for f in side) for side in figures)
        scale, is_whole = max(f.scale for f in figures[0]) or 1.0, array.dtype.kind in "iu"
        # The original may be right by luck.
        slack = 1.0 if is_whole else DEFAULT_RTOL.get(array.dtype.name, 0.0) * scale
        if new > SLACK * old + slack:
            grown.append(printable(name))
        if max(old, new) > slack:
            old_text, new_text = (
                f"{far:.0f} steps" if is_whole else f"{far / scale:.3g} of its largest value"
                for far in (old, new)
            )
            text = f"{old_text} away here, the rewritten model {new_text}"
            deviations[f"{text} (output {printable(name)})"] = max(old, new) / scale
    if not deviations:
        return [], []
    largest = max(deviations, key=deviations.__getitem__)
    sentence = (
        "this CPU's 8-bit kernels saturate (no VNNI): from its own definition the original is at "
        f"most {largest}; {PRECISION}=1, weights of 7 bits, or unsigned "
        "ones, may be exact"
    )
    failures = [f"further from the definition than the original: output {', '.join(grown)}"]
    return (failures if grown else []), [sentence]
