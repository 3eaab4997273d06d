"""Compare two models as they are deployed, with all of the runtime's own optimizations.

Those have faults of their own, which are told apart from faults of the rewriting.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from widthfold_onnx.evidence.rounds import Report, attempt
from widthfold_onnx.evidence.rows import Cells, Judge, Outputs
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.runtime.session import Level
from widthfold_onnx.runtime.stored import InputSet


def deployed_cells(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    sets: Sequence[InputSet],
    plain: Sequence[Outputs],
    judge: Judge,
    report: Report,
) -> tuple[Cells, list[str]]:
    """Cells at the level of deployment, and why there are none if only the rewritten stops there.

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
        return {}, [] if isinstance(reference, str) else [candidate]
    if isinstance(reference, str):
        note = "the original does not run at this level; compared with level disabled"
        return _noted(judge.cells("all", plain, candidate), note), []
    cells = judge.cells("all", reference, candidate)
    bad = {cell.name for _, cell in judge.failed(cells)}
    if not bad:
        return cells, []
    steady = judge.cells("all", plain, candidate)
    wrong = {cell.name for _, cell in judge.failed(steady)}
    note = "the runtime's optimizations change the original; compared with level disabled"
    good = _noted({name: row for name, row in steady.items() if name in bad - wrong}, note)
    return {name: good.get(name, row) for name, row in cells.items()}, []


def _noted(cells: Cells, note: str) -> Cells:
    return {
        name: {
            number: cell if cell.note else msgspec.structs.replace(cell, note=note)
            for number, cell in row.items()
        }
        for name, row in cells.items()
    }
