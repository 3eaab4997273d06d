"""Compare two models as they are deployed, where 8-bit kernels of this CPU saturate.

All other comparisons run with `exact_kernels`. A fold pairs other products than the original, so
other sums saturate; it may be `SLACK` times as far from its exact outputs as the original is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.exact_kernels import open_chosen
from widthfold_onnx.evidence.findings import Findings
from widthfold_onnx.evidence.parity.original_runs import OriginalRuns
from widthfold_onnx.evidence.parity.outputs import (
    DEFAULT_RTOL,
    SLACK,
    Distance,
    measure,
    pairs,
)
from widthfold_onnx.evidence.parity.runs import Runs, attempt
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.progress import Step, progress, progress_to, silent
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.providers import PRECISION
from widthfold_onnx.text import printable


def compare_as_deployed(original: OriginalRuns, rewritten: LoadedModel, exact: Runs) -> Findings:
    """Run both models as the caller deploys them, with kernels that saturate on this CPU.

    Args:
        original: the runs of the original. If it does not run, nothing is found; verification says
            so.
        rewritten: the rewritten model.
        exact: its runs by exact kernels at the same level; if they fail, nothing is found.

    Returns:
        A failure if the rewritten model does not run, or is further from its exact outputs than the
        original; and a remark with the distances of both, or why the original does not run.
    """
    if original.optimized_runs.failure or exact.failure:
        return Findings()
    progress(Step("integers of 8 bits as deployed"))
    with progress_to(silent):  # its steps would be named as those of the exact runs
        original_runs, rewritten_runs = (
            attempt(model, original.options, Level.ALL, original.inputs.sets, open_chosen)
            for model in (original.model, rewritten)
        )
    if original_runs.failure:
        line = "as deployed the original does not run"
        return Findings(remarks=(f"{line}: {original_runs.failure}",))
    if rewritten_runs.failure:
        line = "as deployed the original runs, the rewritten model does not"
        return Findings(failures=(f"{line}: {rewritten_runs.failure}",))
    sides = [
        [pairs(*run) for run in zip(exact_runs.outputs, runs.outputs, strict=True)]
        for exact_runs, runs in ((original.optimized_runs, original_runs), (exact, rewritten_runs))
    ]
    return _judge_saturation(sides, original.unsteady_outputs)


def _judge_saturation(
    sides: Sequence[Sequence[Mapping[str, tuple[Array, Array]]]], unsteady_outputs: Collection[str]
) -> Findings:
    """Judge how far two models that saturate are from their definitions.

    Args:
        sides: the runs of the original, and of the rewritten model: each output with exact kernels
            and as deployed.
        unsteady_outputs: names of the outputs that are not judged.
    """
    failed_names: list[str] = []
    deviations: list[tuple[float, str]] = []
    arrays = {name: array for run in sides[0] for name, (array, _) in run.items()}
    for name, array in arrays.items():
        figures = [[measure(*run[name]) for run in side if name in run] for side in sides]
        is_judged = all(figures) and all(f.match for side in figures for f in side)
        if name in unsteady_outputs or array.dtype.kind in "OUS" or not is_judged:
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
        return Findings()
    _, largest = max(deviations, key=lambda item: item[0])
    sentence = (
        "this CPU's 8-bit kernels saturate (no VNNI): from its own definition the original is at "
        f"most {largest}; {PRECISION}=1, weights of 7 bits, or unsigned ones, may be exact"
    )
    failure = f"further from the definition than the original: output {', '.join(failed_names)}"
    return Findings(failures=(failure,) if failed_names else (), remarks=(sentence,))
