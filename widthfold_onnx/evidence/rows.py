"""The rows of a report: one per output and level, the worst over all input sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import msgspec
import numpy as np

from widthfold_onnx.evidence.parity import DEFAULT_RTOL, LevelName, compare, worst
from widthfold_onnx.options import Tolerance
from widthfold_onnx.results import OutputParity
from widthfold_onnx.runtime.session import Array
from widthfold_onnx.runtime.stored import InputSet
from widthfold_onnx.text import printable

Outputs = dict[str, Array]
"""What one run computed, by output name."""

SLACK = 2.0
"""The rewritten model may be this many times as far from stored outputs as the original is."""

NOISE_FACTOR = 10.0
"""A rewrite rounds elsewhere, in several layers; each may move an output as far as one rounding
of the inputs does. Where this allows more than the tolerance, it was measured, not chosen."""

NOISE_LIMIT = 0.3
"""An output that needs more than this, relative to its largest value, is not forgiven."""

ILL_CONDITIONED = "ill-conditioned"
"""How the note of an output begins that was judged by its own sensitivity."""

UNSTEADY = "cannot be judged: the original itself gives other values when it runs again"


@dataclass(frozen=True)
class Judge:
    """Compares runs, and keeps out what the original itself does not repeat.

    Attributes:
        tolerance: what counts as equal.
        unsteady: outputs that cannot be judged.
    """

    tolerance: Tolerance
    unsteady: set[str]

    def rows(
        self, level: LevelName, references: Sequence[Outputs], candidates: Sequence[Outputs]
    ) -> list[OutputParity]:
        """One row per output: the worst over all input sets."""
        pairs = list(zip(references, candidates, strict=True))
        return [self._row(name, level, pairs) for name in output_names(references, candidates)]

    def _row(
        self, name: str, level: LevelName, pairs: Iterable[tuple[Outputs, Outputs]]
    ) -> OutputParity:
        row = reduce(
            worst,
            (
                compare(name, *both(name, reference, candidate), self.tolerance, level)
                for reference, candidate in pairs
                if name in reference or name in candidate
            ),
        )
        if name in self.unsteady:
            return msgspec.structs.replace(row, passed=False, note=UNSTEADY)
        return row

    def failed(self, rows: Iterable[OutputParity]) -> list[OutputParity]:
        """The rows that show a difference."""
        return [row for row in rows if not row.passed and row.name not in self.unsteady]

    def forgiven(
        self, rows: Iterable[OutputParity], noise: Mapping[str, float | None]
    ) -> list[OutputParity]:
        """The rows again; a difference that is no more than rounding passes, with a note.

        Some outputs are so ill-conditioned that a change of the inputs by one unit in the last
        place moves them by percents; no default can be right for them. A tolerance that the
        caller gave is never exceeded.

        Args:
            rows: from `rows`.
            noise: by output, `max_rel` of the original against itself on inputs so changed.
        """
        return [self._forgiven(row, NOISE_FACTOR * (noise.get(row.name) or 0.0)) for row in rows]

    def _forgiven(self, row: OutputParity, allowed: float) -> OutputParity:
        chosen = self.tolerance.rtol is not None or row.name in self.tolerance.per_output
        if row.passed or chosen or row.name in self.unsteady or row.dtype not in DEFAULT_RTOL:
            return row
        if not row.nonfinite_match or row.max_rel is None:
            return row
        if not row.max_rel <= allowed <= NOISE_LIMIT:
            return row
        note = (
            f"{ILL_CONDITIONED}: one rounding of the inputs moves the original by "
            f"{figure(allowed / NOISE_FACTOR)}, so {figure(allowed)} is allowed"
        )
        return msgspec.structs.replace(row, passed=True, tolerance=allowed, note=note)


def output_names(*runs: Sequence[Outputs]) -> list[str]:
    """Every output of any run, in order of appearance."""
    return list(dict.fromkeys(name for side in runs for outputs in side for name in outputs))


def both(name: str, reference: Outputs, candidate: Outputs) -> tuple[Array, Array]:
    """Both values; one that only one side has (sequences differ in length) is empty there."""
    present = reference[name] if name in reference else candidate[name]
    absent = np.empty((0, *present.shape), present.dtype)
    return reference.get(name, absent), candidate.get(name, absent)


def stored_differences(
    names: Sequence[str],
    sets: Sequence[InputSet],
    truth: Sequence[Outputs],
    computed: Sequence[Outputs],
    tolerance: Tolerance,
) -> list[str]:
    """Where the rewritten model is further from stored outputs than it may be.

    Args:
        names: outputs in graph order, as stored outputs are.
        sets: the input sets.
        truth: the original's outputs per set.
        computed: the rewritten model's outputs per set.
        tolerance: within it, or within `SLACK` times the original's own distance, is well.
    """
    lines = []
    for item, before, after in zip(sets, truth, computed, strict=True):
        for name, expected in zip(names, item.expected, strict=False):
            if name not in before or name not in after:
                continue
            old = compare(name, expected, before[name], tolerance)
            new = compare(name, expected, after[name], tolerance)
            far = new.max_abs is None or old.max_abs is None or new.max_abs > SLACK * old.max_abs
            if not new.passed and (far or (old.nonfinite_match and not new.nonfinite_match)):
                lines.append(f"{item.label}: stored {difference(new)}")
    return lines


def difference(row: OutputParity) -> str:
    """What is wrong with a row that failed."""
    if row.max_rel is None or not row.nonfinite_match:
        detail = row.note or "values differ"
    else:
        detail = f"max_rel {figure(row.max_rel)}, allowed {row.tolerance:g}"
    return f"output {printable(row.name)}: {detail}"


def figure(value: float | None) -> str:
    """A relative error in three digits."""
    return "an unknown amount" if value is None else f"{value:.3g}"
