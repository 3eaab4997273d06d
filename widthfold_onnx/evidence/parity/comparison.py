"""Compares runs in rows of a report: one per output and level, the worst over all input sets.

Every input set is judged by itself: one on which the original is ill-conditioned must not excuse
a difference on another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.parity.outputs import DEFAULT_RTOL, LevelName, compare, worst
from widthfold_onnx.options import Tolerance
from widthfold_onnx.results import OutputParity
from widthfold_onnx.runtime.inputs.recorded import InputSet
from widthfold_onnx.text import printable

Outputs = dict[str, Array]
"""Outputs of one run by name."""

Cells = dict[tuple[LevelName, str, int], OutputParity]
"""Comparisons by level, output and input set."""

SLACK = 2.0
"""The rewritten model may be this many times as far from stored outputs as the original is."""

NOISE_FACTOR = 10.0
"""A rewrite rounds elsewhere, in several layers; each may move an output as far as one rounding
of the inputs does. Where this allows more than the tolerance, it was measured, not chosen."""

NOISE_LIMIT = 0.3
"""An output that needs more than this, relative to its largest value, is not forgiven."""

TRUTH_FACTOR = 4.0
"""The rewritten model may be this many times as far from the truth as the original is.

A fold adds the same products in another order, so both errors are drawn from one distribution.
Measured over 580 pairs of outputs of three small networks, the ratio was 1.0 in the median and
2.9 at most. A weight that went through float16 gives some hundreds.
"""

TRUTH_ULPS = 4
"""Or this many units in the last place of the largest value: the original may be right by luck."""

UNSTEADY = "cannot be judged: the original itself gives other values when it runs again"


@dataclass(frozen=True)
class Judge:
    """Compares runs, without outputs that the original itself does not repeat.

    Attributes:
        tolerance: differences that are accepted.
        unsteady: outputs that cannot be judged.
        truths: per input set the float64 outputs that are known and can be used.
    """

    tolerance: Tolerance
    unsteady: set[str]
    truths: Sequence[Outputs]

    def cells(
        self, level: LevelName, references: Sequence[Outputs], candidates: Sequence[Outputs]
    ) -> Cells:
        """Compare every output on every input set."""
        runs = [*enumerate(zip(references, candidates, self.truths, strict=True))]
        found = {
            (level, name, number): compare(
                name, *both(name, one, other), self.tolerance, level, truth.get(name)
            )
            for name in output_names(references, candidates)
            for number, (one, other, truth) in runs
            if name in one or name in other
        }
        return {key: self._checked(cell) for key, cell in found.items()}

    def _checked(self, cell: OutputParity) -> OutputParity:
        if cell.name in self.unsteady:
            return msgspec.structs.replace(cell, passed=False, note=UNSTEADY, caveat="unsteady")
        return msgspec.structs.replace(cell, passed=cell.passed and not self._strays(cell, 0.0))

    def failed(self, cells: Cells) -> Cells:
        """Return the failed cells of the outputs that repeat."""
        return {
            key: cell
            for key, cell in cells.items()
            if not cell.passed and cell.name not in self.unsteady
        }

    def differences(self, cells: Cells, sets: Sequence[InputSet]) -> list[str]:
        """Describe the first failed cell of each output that repeats."""
        first: dict[str, str] = {}
        for (_, name, number), cell in self.failed(cells).items():
            first.setdefault(name, difference(cell, sets[number].label))
        return list(first.values())

    def forgiven(self, cells: Cells, noise: Sequence[Mapping[str, float | None]]) -> Cells:
        """Return the cells; a difference that is no more than rounding passes, with a note.

        Some outputs are so ill-conditioned that a change of the inputs by one unit in the last
        place moves them by percents; no default can be right for them. A tolerance that the
        caller gave is never exceeded.

        Args:
            cells: from `cells`.
            noise: by input set and output, `max_rel` of the original against itself on inputs so
                changed.
        """
        return cells | {
            (level, name, number): self._forgiven(cell, noise[number].get(name) or 0.0)
            for (level, name, number), cell in self.failed(cells).items()
        }

    def _forgiven(self, cell: OutputParity, noise: float) -> OutputParity:
        if self.is_chosen(cell.name):
            return cell
        if cell.dtype not in DEFAULT_RTOL or not cell.nonfinite_match or cell.max_rel is None:
            return cell
        allowed = max(NOISE_FACTOR * noise, cell.tolerance)
        if not cell.max_rel <= allowed <= NOISE_LIMIT or self._strays(cell, noise):
            return cell
        note = (
            f"ill-conditioned: the original itself moves by {noise:.2g} of its largest value "
            f"when every input is rounded once, so a difference up to {allowed:.2g} is rounding"
        )
        given = {"passed": True, "tolerance": allowed, "note": note, "caveat": "ill-conditioned"}
        return msgspec.structs.replace(cell, **given)

    def is_chosen(self, name: str) -> bool:
        """Check whether the caller chose the tolerance of an output."""
        return self.tolerance.rtol is not None or name in self.tolerance.per_output

    def _strays(self, cell: OutputParity, noise: float) -> bool:
        """Check whether the rewritten model is further from truth than the original explains."""
        if cell.truth_original is None or cell.truth_rewritten is None:
            return False
        if self.is_chosen(cell.name) or self.tolerance.atol:
            return False
        floor = TRUTH_ULPS * float(np.finfo(cell.dtype).eps)
        allowed = max(TRUTH_FACTOR * max(cell.truth_original, noise), floor)
        return cell.truth_rewritten > allowed


def at_level(level: LevelName, cells: Cells) -> Cells:
    """Return the cells of one level."""
    return {key: cell for key, cell in cells.items() if cell.level == level}


def merged(cells: Cells) -> list[OutputParity]:
    """Merge cells into one row per level and output: the worst over all input sets."""
    rows: dict[tuple[LevelName, str], OutputParity] = {}
    for (level, name, _), cell in cells.items():
        row = level, name
        rows[row] = worst(rows[row], cell) if row in rows else cell
    return list(rows.values())


def output_names(*runs: Sequence[Outputs]) -> list[str]:
    """Return every output of any run, in order of appearance."""
    return list(dict.fromkeys(name for side in runs for outputs in side for name in outputs))


def both(name: str, reference: Outputs, candidate: Outputs) -> tuple[Array, Array]:
    """Return both values; one that a side lacks (sequences differ in length) is empty there."""
    present = reference[name] if name in reference else candidate[name]
    absent = np.empty((0, *present.shape), present.dtype)
    return reference.get(name, absent), candidate.get(name, absent)


def difference(cell: OutputParity, label: str = "") -> str:
    """Describe a comparison that failed, and on which inputs if `label` says so."""
    if cell.max_rel is None or not cell.nonfinite_match:
        detail = cell.note or "values differ"
    elif cell.max_rel > cell.tolerance:
        detail = f"max_rel {figure(cell.max_rel)}, allowed {cell.tolerance:g}"
    else:
        detail = (
            f"{figure(cell.truth_rewritten)} away from float64, "
            f"the original {figure(cell.truth_original)}"
        )
    return f"output {printable(cell.name)}: {detail}" + (f" ({label})" if label else "")


def figure(value: float | None) -> str:
    """Format a relative error in three digits."""
    return "an unknown amount" if value is None else f"{value:.3g}"
