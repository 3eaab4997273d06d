"""Compare two models as they are deployed, with all of the runtime's own optimizations.

Those have faults of their own, which are told apart from faults of the rewriting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from widthfold_onnx.evidence.parity import compare
from widthfold_onnx.evidence.rounds import Report, attempt
from widthfold_onnx.evidence.rows import NOISE_LIMIT, TRUTH_FACTOR, Cells, Judge, Outputs, both
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.results import OutputParity
from widthfold_onnx.runtime.session import Level
from widthfold_onnx.runtime.stored import InputSet


@dataclass(frozen=True)
class Deployed:
    """Both models with the runtime's optimizations.

    Attributes:
        cells: how they compare; none where one does not run.
        stopped: why, if only the rewritten one does not.
        original: what the original computes there, per input set; none if one does not run.
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
        plain: what the original computes without the runtime's optimizations, per input set.
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


def stepped(cells: Cells, plain: Sequence[Outputs], deployed: Deployed, judge: Judge) -> Cells:
    """Cells without the runtime's optimizations; steps of a quantizer that rounding tips pass.

    Without its optimizations the runtime computes dequantized tensors in floats, where another
    order of summation may move what is quantized again by a whole step. The same happens to the
    original between two levels. So a difference passes, with a note, where at the level of
    deployment the two models return the very same bits on every input set, and the difference is
    of the size by which the original differs from itself between the levels.

    Args:
        cells: of the two models without the optimizations.
        plain: what the original computes so, per input set.
        deployed: both with the optimizations.
        judge: a tolerance that the caller chose is never exceeded.
    """
    result = dict(cells)
    for name, row in cells.items():
        same = deployed.cells.get(name, {})
        exact = all(c.passed and c.max_abs == 0 and c.nonfinite_match for c in same.values())
        if not same or not exact or judge.is_chosen(name) or name in judge.unsteady:
            continue
        if all(cell.passed for cell in row.values()) or not deployed.original:
            continue
        moved = [
            compare(name, *both(name, a, b), judge.tolerance).max_rel
            for a, b in zip(plain, deployed.original, strict=True)
        ]
        own = max((rel for rel in moved if rel is not None), default=0.0)
        result[name] = {number: _allowed(cell, own) for number, cell in row.items()}
    return result


def _allowed(cell: OutputParity, own: float) -> OutputParity:
    limit = TRUTH_FACTOR * own  # sums in another order move both, by one distribution
    if cell.passed or not cell.nonfinite_match or cell.max_rel is None:
        return cell
    if not cell.max_rel <= limit <= NOISE_LIMIT:
        return cell
    note = (
        f"equal bit for bit as deployed; without the runtime's optimizations the original itself "
        f"moves by {own:.2g} of its largest value, so a difference up to {limit:.2g} is rounding"
    )
    return msgspec.structs.replace(cell, passed=True, tolerance=limit, note=note)


def _noted(cells: Cells, note: str) -> Cells:
    return {
        name: {
            number: cell if cell.note else msgspec.structs.replace(cell, note=note)
            for number, cell in row.items()
        }
        for name, row in cells.items()
    }
