"""Compares two models as they are deployed, with all of the runtime's own optimizations.

Faults of these optimizations are told apart from faults of the rewriting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from widthfold_onnx.evidence.parity.comparison import Cells, Judge, Outputs
from widthfold_onnx.evidence.parity.float64_reference import true_outputs
from widthfold_onnx.evidence.parity.outputs import compare
from widthfold_onnx.evidence.parity.runs import Report, attempt
from widthfold_onnx.options import Tolerance, VerifyOptions
from widthfold_onnx.results import OutputParity
from widthfold_onnx.runtime.inputs.recorded import InputSet
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


def deployed_cells(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    sets: Sequence[InputSet],
    plain: Sequence[Outputs],
    judge: Judge,
    report: Report,
) -> Deployed:
    """Compare at the level of deployment.

    Where the runtime's optimizations change the original, the rewritten model passes as well if
    it still computes what the original computes without them.

    Args:
        original: model file.
        rewritten: model file.
        options: where both run.
        sets: the input sets.
        plain: outputs of the original without the runtime's optimizations, per input set.
        judge: compares.
        report: called with a line before each run.
    """
    candidate = attempt(rewritten, options, Level.ALL, sets, report)
    reference = attempt(original, options, Level.ALL, sets, report)
    if isinstance(candidate, str):
        return Deployed({}, [] if isinstance(reference, str) else [candidate])
    if isinstance(reference, str):
        note = "the original does not run at this level; compared with level disabled"
        return Deployed(_noted(judge.cells("all", plain, candidate), note))
    cells = judge.cells("all", reference, candidate)
    bad = {cell.name for _, cell in judge.failed(cells)}
    if not bad:
        return Deployed(cells, original=reference, rewritten=candidate)
    steady = judge.cells("all", plain, candidate)
    wrong = {cell.name for _, cell in judge.failed(steady)}
    note = "the runtime's optimizations change the original; compared with level disabled"
    good = _noted({name: row for name, row in steady.items() if name in bad - wrong}, note)
    cells = {name: good.get(name, row) for name, row in cells.items()}
    return Deployed(cells, original=reference, rewritten=candidate)


def stepped(
    cells: Cells,
    deployed: Cells,
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
        cells: of the two models without the optimizations.
        deployed: with them.
        judge: a tolerance that the caller chose is never exceeded.
        widened: returns the float64 outputs of both models on some input sets; called if needed.

    Returns:
        The cells, and why float64 is not known, where it was needed.
    """
    tipped = {
        name: [number for number, cell in row.items() if not cell.passed]
        for name, row in cells.items()
        if _same_bits(deployed.get(name, {}))
        and not judge.is_chosen(name)
        and name not in judge.unsteady
    }
    numbers = sorted({number for row in tipped.values() for number in row})
    if not numbers:
        return cells, []
    outputs, unknown = widened(numbers)
    runs = [dict(zip(numbers, run, strict=True)) for run in outputs]
    result = {name: dict(row) for name, row in cells.items()}
    for name, number in ((name, number) for name, row in tipped.items() for number in row):
        original, rewritten = (run[number].get(name) for run in runs)
        cell = result[name][number]
        if original is None or rewritten is None or not cell.nonfinite_match:
            continue
        if compare(name, original, rewritten, Tolerance()).passed:
            allowed = max(cell.tolerance, cell.max_rel or 0.0)
            given = {"passed": True, "tolerance": allowed, "note": TIPPED}
            result[name][number] = msgspec.structs.replace(cell, **given)
    return result, unknown


def in_float64(
    models: Sequence[Path],
    names: Sequence[str],
    sets: Sequence[InputSet],
    report: Report,
    numbers: Sequence[int],
) -> Float64:
    """Run models in float64 on some of the sets; return the outputs, and why some are missing."""
    report("both models in float64")
    some = [sets[number] for number in numbers]
    runs = [true_outputs(model, names, some, STEP_SECONDS) for model in models]
    return [run for run, _ in runs], [why for _, why in runs if why]


def _same_bits(row: Mapping[int, OutputParity]) -> bool:
    equal = (c.passed and c.max_abs == 0 and c.nonfinite_match for c in row.values())
    return bool(row) and all(equal)


def _noted(cells: Cells, note: str) -> Cells:
    return {
        name: {
            number: cell if cell.note else msgspec.structs.replace(cell, note=note)
            for number, cell in row.items()
        }
        for name, row in cells.items()
    }
