"""Compare both models, as the caller deploys them, with their definitions where integers saturate.

The values are judged with exact kernels (`exact_kernels`). A fold saturates at other products than
the original, which is reported; it must not be further from its definition than the original is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from widthfold_onnx.evidence.exact_kernels import open_chosen
from widthfold_onnx.evidence.model_outputs import Outputs, attempt, pairs
from widthfold_onnx.evidence.parity.original_runs import OriginalRuns
from widthfold_onnx.evidence.parity.outputs import DEFAULT_RTOL, SLACK, Distance, measure
from widthfold_onnx.options.progress import Step
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.providers import PRECISION
from widthfold_onnx.text import printable


def compare_as_deployed(
    original: OriginalRuns, rewritten: Path, exact: Sequence[Outputs] | str
) -> tuple[list[str], list[str]]:
    """Run both models as the caller deploys them.

    Args:
        original: the runs of the original. Without outputs both results are empty; verification
            says so.
        rewritten: file of the rewritten model.
        exact: its outputs by exact kernels at the same level; without them the results are empty.

    Returns:
        The failures: the rewritten model does not run, or is further from its exact outputs than
        the original. And a remark: the distances of both models, or why the original does not run.
    """
    if isinstance(original.optimized_outputs, str) or isinstance(exact, str):
        return [], []
    original.on_progress(Step("integers of 8 bits as deployed"))
    original_runs, rewritten_runs = (
        attempt(model, original.options, Level.ALL, original.inputs.sets, open_model=open_chosen)
        for model in (original.model, rewritten)
    )
    if isinstance(original_runs, str):
        return [], [f"as deployed the original does not run: {original_runs}"]
    if isinstance(rewritten_runs, str):
        failure = f"as deployed the original runs, the rewritten model does not: {rewritten_runs}"
        return [failure], []
    failed_names: list[str] = []
    deviations: list[tuple[float, str]] = []
    sides = [
        [pairs(*run) for run in zip(*runs, strict=True)]
        for runs in ((original.optimized_outputs, original_runs), (exact, rewritten_runs))
    ]
    arrays = {name: array for run in sides[0] for name, (array, _) in run.items()}
    for name, array in arrays.items():
        figures = [[measure(*run[name]) for run in side if name in run] for side in sides]
        is_judged = all(figures) and all(f.match for side in figures for f in side)
        if name in original.unsteady or array.dtype.kind in "OUS" or not is_judged:
            continue  # parity judges texts, missing outputs, and NaN at other places
        old, new = (max((f.distance or Distance()).largest for f in side) for side in figures)
        scale, is_whole = max(f.scale for f in figures[0]) or 1.0, array.dtype.kind in "iu"
        # The original may be right by luck.
        slack = 1.0 if is_whole else DEFAULT_RTOL.get(array.dtype.name, 0.0) * scale
        if new > SLACK * old + slack:
            failed_names.append(printable(name))
        if max(old, new) > slack:
            old_text, new_text = (
                f"{gap:.0f} steps" if is_whole else f"{gap / scale:.3g} of its largest value"
                for gap in (old, new)
            )
            line = f"{old_text} away here, the rewritten model {new_text}"
            deviations.append((max(old, new) / scale, f"{line} (output {printable(name)})"))
    if not deviations:
        return [], []
    _, largest = max(deviations, key=lambda item: item[0])
    sentence = (
        "this CPU's 8-bit kernels saturate (no VNNI): from its own definition the original is at "
        f"most {largest}; {PRECISION}=1, weights of 7 bits, or unsigned ones, may be exact"
    )
    failure = f"further from the definition than the original: output {', '.join(failed_names)}"
    return ([failure] if failed_names else []), [sentence]
