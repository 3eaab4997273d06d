"""Compares two models as they are deployed, with all of the runtime's own optimizations.

Faults of these optimizations are told apart from faults of the rewriting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from widthfold_onnx.evidence.parity.comparison import Cells, Judge, Outputs, at_level
from widthfold_onnx.evidence.parity.float64_reference import true_outputs
from widthfold_onnx.evidence.parity.outputs import compare
from widthfold_onnx.evidence.parity.reference import Reference
from widthfold_onnx.options import Tolerance
from widthfold_onnx.runtime.sessions.session import Level

STEP_SECONDS = 300.0
"""Limit of the float64 runs of either model that explain steps of a quantizer: a bound against
hanging, since a verdict must not depend on how busy the machine is."""

Float64 = tuple[Sequence[Sequence[Outputs]], list[str]]
"""Outputs of both models by input set, and why some are not known."""

TIPPED = (
    "equal bit for bit as deployed, and equal in float64: without the runtime's optimizations sums "
    "of floats round, and tip a quantizer by a step"
)


@dataclass(frozen=True)
class Deployed:
    """Both models with the runtime's optimizations.

    Attributes:
        cells: their comparisons; none if one does not run.
        stopped: why the rewritten one does not run, if only the original does.
        original: outputs of the original there, per input set; none if one does not run.
        rewritten: the same of the rewritten model.
    """

    cells: Cells
    stopped: Sequence[str] = ()
    original: Sequence[Outputs] = ()
    rewritten: Sequence[Outputs] = ()


def deployed_cells(reference: Reference, rewritten: Path, judge: Judge) -> Deployed:
    """Compare at the level of deployment.

    Where the runtime's optimizations change the original, the rewritten model passes as well if
    it still computes what the original computes without them.
    """
    candidate = reference.run(rewritten, Level.ALL)
    original = reference.run(reference.model, Level.ALL)
    if isinstance(candidate, str):
        return Deployed({}, [] if isinstance(original, str) else [candidate])
    plain = judge.cells("all", reference.outputs, candidate)
    if isinstance(original, str):
        note = "the original does not run at this level; compared with level disabled"
        return Deployed(_noted(plain, note))
    cells = judge.cells("all", original, candidate)
    bad, wrong = ({name for _, name, _ in judge.failed(some)} for some in (cells, plain))
    note = "the runtime's optimizations change the original; compared with level disabled"
    good = {key: cell for key, cell in plain.items() if cell.name in bad - wrong}
    return Deployed(cells | _noted(good, note), original=original, rewritten=candidate)


def stepped(
    cells: Cells,
    judge: Judge,
    widened: Callable[[Sequence[int]], Float64],
) -> tuple[Cells, list[str]]:
    """Return cells in which quantizer steps that rounding explains pass, with a note.

    Without its optimizations the runtime computes dequantized tensors in floats, where another
    order of summation may change a result that is quantized again by a whole step. In which model
    that happens, and on which inputs, is chance: if a sum is next to half a step, one may round
    to the other side. So a difference passes, with a note, where both models return the very same
    bits as deployed, on every input set, and the same numbers in float64, where sums do not round.

    Args:
        cells: of the two models, without the optimizations and with them.
        judge: a tolerance that the caller chose is never exceeded.
        widened: returns the float64 outputs of both models on some input sets; called if needed.

    Returns:
        The cells, and why float64 is not known, where it was needed.
    """
    tipped = {
        key: cell
        for key, cell in judge.failed(cells).items()
        if cell.level == "disabled"
        and not judge.is_chosen(cell.name)
        and _same_bits(cell.name, at_level("all", cells))
    }
    if not tipped:
        return cells, []
    numbers = sorted({number for *_, number in tipped})
    outputs, unknown = widened(numbers)
    runs = [dict(zip(numbers, run, strict=True)) for run in outputs]
    result = dict(cells)
    for (level, name, number), cell in tipped.items():
        original, rewritten = (run[number].get(name) for run in runs)
        if original is None or rewritten is None or not cell.nonfinite_match:
            continue
        if compare(name, original, rewritten, Tolerance()).passed:
            allowed = max(cell.tolerance, cell.max_rel or 0.0)
            given = {"passed": True, "tolerance": allowed, "note": TIPPED}
            result[level, name, number] = msgspec.structs.replace(cell, **given)
    return result, unknown


def in_float64(reference: Reference, rewritten: Path, numbers: Sequence[int]) -> Float64:
    """Run both models in float64 on some of the sets, and say why outputs are missing."""
    reference.report("both models in float64")
    some = [reference.sets[number] for number in numbers]
    models = reference.model, rewritten
    runs = [true_outputs(model, reference.names, some, STEP_SECONDS) for model in models]
    return [run for run, _ in runs], [why for _, why in runs if why]


def _same_bits(name: str, cells: Cells) -> bool:
    row = [cell for cell in cells.values() if cell.name == name]
    return bool(row) and all(c.passed and c.max_abs == 0 and c.nonfinite_match for c in row)


def _noted(cells: Cells, note: str) -> Cells:
    return {
        key: cell if cell.note else msgspec.structs.replace(cell, note=note)
        for key, cell in cells.items()
    }
