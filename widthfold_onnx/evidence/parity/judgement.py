"""Compare two whole models on the same inputs, output by output, by one rule.

Two distances from the reference are allowed: the default tolerance, and a small multiple of the
distance by which rounding moves the original (`rounding`). An output passes within the larger one.
The reference is the truth where that is usable, else the original without the runtime's
optimizations. Every input set is judged by itself: an ill-conditioned set must not excuse a
difference on another.

Models that are proved equal are compared by the default tolerance first. What is beyond it gets
shaken copies, and if these do not explain it, the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from widthfold_onnx.evidence.parity.original_runs import UNSTEADY_NOTE, OriginalRuns
from widthfold_onnx.evidence.parity.outputs import (
    DEFAULT_RTOL,
    MULTIPLE_IF_PROVED,
    MULTIPLE_IF_UNPROVED,
    SLACK,
    Allowance,
    Movements,
    Outputs,
    compare,
    grain_of,
    pairs,
)
from widthfold_onnx.evidence.parity.rounding import COPIES, Rounding
from widthfold_onnx.evidence.parity.runs import Runs
from widthfold_onnx.results import LevelName, OutputParity
from widthfold_onnx.text import printable

EXACT_RTOL = DEFAULT_RTOL | {
    **dict.fromkeys(("float64", "complex128"), 2.0**-50),
    **dict.fromkeys(("float32", "complex64"), 2.0**-21),
}
"""Takes the place of the default tolerance where nothing is proved and the truth is the reference:
four units in the last place, as the original may be right by luck."""

OPTIMIZED_NOTE = "the runtime's optimizations change the original; compared with it at this level"

_CAVEATS = ("meaningless", "saturated", "", "ill-conditioned", "unsteady")
"""All caveats, the most important one last: of comparisons of an output that are alike otherwise,
that with the last caveat is reported."""


class RowKey(NamedTuple):
    """Level, output and input set of a comparison."""

    level: LevelName
    output: str
    input_set: int


Rows = dict[RowKey, OutputParity]


def judge(
    original: OriginalRuns, runs: Mapping[LevelName, Runs], *, is_proved: bool
) -> tuple[Rows, list[str]]:
    """Compare all outputs; measure what rounding does step by step, while some of them fail.

    `runs` has the runs of the rewritten model, by level.

    Returns:
        The comparisons, and what limits them, one line each.

    Raises:
        UnverifiedError: the run in float64 hangs or crashes.
    """
    tolerance, every_set = original.options.tolerance, range(len(original.inputs.sets))
    rounding = Rounding.unknown(original)
    steps: list[Callable[[Rounding, Collection[int]], Rounding]]
    steps = [partial(Rounding.with_copy, copy_index=index) for index in range(len(COPIES))]
    if is_proved:
        steps.append(Rounding.with_truth)
    else:
        rounding = steps.pop(0)(rounding.with_truth(every_set), every_set)
    further = iter(steps)
    while True:
        truths, movements, unused_remark = rounding.usable()
        rows = Judgement(original, truths, movements, is_proved).rows(runs)
        # An output with a tolerance of the caller is judged by that alone, not by movements.
        failed_sets = {k.input_set for k in failed_rows(rows) if not tolerance.is_chosen(k.output)}
        step = next(further, None) if failed_sets else None
        if step is None:
            lines = (rounding.truth_remark, unused_remark, rounding.copy_remark)
            return rows, [line for line in lines if line]
        rounding = step(rounding, failed_sets)


@dataclass(frozen=True)
class Judgement:
    """The comparison of all outputs.

    Attributes:
        original: the runs of the original.
        truths: the usable truth, by input set and name.
        movements: how far rounding moves each output, by input set; where a truth is usable, at
            least the distance of the original from it.
        is_proved: True if both models are proved to be the same function.
    """

    original: OriginalRuns
    truths: Sequence[Outputs]
    movements: Movements
    is_proved: bool

    def rows(self, runs: Mapping[LevelName, Runs]) -> Rows:
        """Compare every output of the rewritten model, at each level and on every input set."""
        return {
            key: self._row(key, tested)
            for level, runs_at_level in runs.items()
            for index, tested in enumerate(runs_at_level.outputs)
            for name in pairs(self.original.outputs[index], tested)
            for key in [RowKey(level, name, index)]
        }

    def _row(self, key: RowKey, tested: Outputs) -> OutputParity:
        """Compare an output with the truth if that is usable, else with the original.

        At level `all` it may match the original at that level instead: the runtime's optimizations
        change some models.
        """
        level, name, index = key
        original, truth = self.original, self.truths[index]
        tolerance, movement = original.options.tolerance, self.movements[index].get(name)
        multiple = MULTIPLE_IF_PROVED if self.is_proved else MULTIPLE_IF_UNPROVED
        defaults = EXACT_RTOL if name in truth and not self.is_proved else DEFAULT_RTOL
        arrays = pairs(original.outputs[index] | truth, tested)[name]
        allowance = Allowance(movement, multiple, defaults)
        row = compare(name, *arrays, tolerance, allowance, level)
        if self.is_proved and not row.passed:
            values = [run[name] for run in (original.outputs[index], tested) if name in run]
            allowance = allowance._replace(grain=grain_of(*values))
            row = compare(name, *arrays, tolerance, allowance, level)
        if name in original.unsteady_outputs:
            return msgspec.structs.replace(row, passed=False, note=UNSTEADY_NOTE, caveat="unsteady")
        if row.passed or level == "disabled" or original.optimized_runs.failure:
            return row
        arrays = pairs(original.optimized_runs.outputs[index], tested)[name]
        allowance = Allowance(movement, multiple, grain=allowance.grain)
        row_at_level = compare(name, *arrays, tolerance, allowance, level)
        if not row_at_level.passed:
            return row
        return msgspec.structs.replace(row_at_level, note=OPTIMIZED_NOTE)


def failed_rows(rows: Rows) -> Rows:
    """Return the failed rows, except those of unsteady outputs."""
    return {k: row for k, row in rows.items() if not row.passed and row.caveat != "unsteady"}


def faults(rows: Rows, original: OriginalRuns, level: LevelName) -> list[str]:
    """Describe the first failed row of each output at a level, except of unsteady outputs."""
    lines: dict[str, str] = {}
    for key, row in failed_rows(rows).items():
        if key.level == level:
            lines.setdefault(
                key.output, _difference(row, original.inputs.sets[key.input_set].label)
            )
    return list(lines.values())


def _difference(row: OutputParity, label: str = "") -> str:
    """Describe a comparison that failed, and on which inputs if `label` says so."""
    if row.max_rel is not None and row.nonfinite_match and row.max_rel > row.tolerance:
        detail = f"max_rel {row.max_rel:.3g}, allowed {row.tolerance:.3g}"
    elif row.worst is not None and not row.note:  # relative to zeros there is no figure
        detail = f"at {row.worst.change}"
    else:
        detail = row.note or "values differ"
    return f"output {printable(row.name)}: {detail}" + (f" ({label})" if label else "")


def report_rows(rows: Rows) -> list[OutputParity]:
    """Return a row for each level and output: the input set on which it was nearest to failing."""
    nearest: dict[tuple[LevelName, str], OutputParity] = {}
    for (level, name, _), row in rows.items():
        nearest[level, name] = max(nearest.get((level, name), row), row, key=nearness)
    return list(nearest.values())


def nearness(row: OutputParity) -> tuple[bool, bool, int, float]:
    """Order comparisons by how near they are to failing, or how far beyond; the last is worst."""
    return not row.passed, not row.nonfinite_match, _CAVEATS.index(row.caveat), row.share_of_allowed


def stored_faults(original: OriginalRuns, computed: Sequence[Outputs]) -> list[str]:
    """Say where the rewritten model is further from stored outputs than it may be.

    It may be within the tolerance, or within `SLACK` times the distance of the original.
    """
    tolerance, lines = original.options.tolerance, []
    for item, *runs in zip(original.inputs.sets, original.outputs, computed, strict=True):
        for name, expected in zip(original.names, item.expected, strict=False):
            if not all(name in run for run in runs):
                continue
            old, new = (compare(name, expected, run[name], tolerance) for run in runs)
            limit = None if old.max_abs is None else SLACK * old.max_abs
            is_far = new.max_abs is None or limit is None or new.max_abs > limit
            if not new.passed and (is_far or (old.nonfinite_match and not new.nonfinite_match)):
                lines.append(f"{item.label}: stored {_difference(new)}")
    return lines
