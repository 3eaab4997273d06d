"""Compare two whole models on the same inputs, output by output, by one rule.

Two distances from the reference are allowed: the default tolerance, and a small multiple of the
distance by which rounding moves the original (`OriginalRuns.movements`). An output passes within
the larger distance. The reference is the truth where that is usable, else the original without the
runtime's optimizations. Every input set is judged by itself: an ill-conditioned set must not excuse
a difference on another.

Both models run without the optimizations of the runtime, as these have faults, and with all of them
on, as they would be deployed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from widthfold_onnx.evidence.exact_kernels import holds_bytes, saturates
from widthfold_onnx.evidence.findings import Findings
from widthfold_onnx.evidence.parity.original_runs import COPIES, UNSTEADY, Movements, OriginalRuns
from widthfold_onnx.evidence.parity.outputs import (
    DEFAULT_RTOL,
    SLACK,
    Allowance,
    Distance,
    Outputs,
    compare,
    pairs,
)
from widthfold_onnx.evidence.parity.truth import true_outputs
from widthfold_onnx.evidence.runs import Runs
from widthfold_onnx.evidence.saturation import compare_as_deployed
from widthfold_onnx.options import Step
from widthfold_onnx.results import LevelName, OutputParity
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.text import printable

MULTIPLE_IF_PROVED = 10.0
"""Allowed distance of a model that is proved equal, as a multiple of the original's movement."""

MULTIPLE_IF_UNPROVED = 4.0
"""Allowed multiple for a model that is not proved equal: over 580 pairs of outputs of small
networks the ratio of its errors to the errors of the original was 2.9 at most."""

EXACT_RTOL = DEFAULT_RTOL | {
    **dict.fromkeys(("float64", "complex128"), 2.0**-50),
    **dict.fromkeys(("float32", "complex64"), 2.0**-21),
}
"""Takes the place of the default tolerance where nothing is proved and the truth is the reference:
four units in the last place, as the original may be right by luck."""

OPTIMIZED = "the runtime's optimizations change the original; compared with it at this level"

_CAVEATS = ("meaningless", "", "ill-conditioned", "unsteady")
"""Caveats; of two comparisons of one output the later one is reported."""


class CellKey(NamedTuple):
    """Level, output and input set of a comparison."""

    level: LevelName
    output: str
    input_set: int


Cells = dict[CellKey, OutputParity]


def judge(
    original: OriginalRuns, runs: Mapping[LevelName, Runs], *, is_proved: bool
) -> tuple[Cells, list[str]]:
    """Compare all outputs, with as many shaken copies as that takes.

    `runs` has the runs of the rewritten model, by level.

    Returns:
        The comparisons, and what limits them, one line each.
    """
    options = original.options
    original.on_progress(Step("float64 truth"))
    truths, remark = true_outputs(
        original.model, original.names, original.inputs.sets, options.truth_budget
    )
    movements: Movements = [{} for _ in truths]
    for copy_index in range(len(COPIES)):
        copy_movements, reason = original.movements(copy_index)
        movements = _joined(movements, copy_movements)
        judgement, unused = judgement_of(original, truths, movements, is_proved=is_proved)
        cells = judgement.cells(runs)
        # More copies make no output pass whose tolerance the caller chose.
        if reason or all(options.tolerance.is_chosen(c.name) for c in failed_cells(cells).values()):
            break
    return cells, [line for line in (remark, unused, reason) if line]


def _joined(first: Movements, second: Movements) -> Movements:
    """Return the larger movement of each output."""
    return [
        old | {name: gap.joined(old.get(name, gap)) for name, gap in new.items()}
        for old, new in zip(first, second, strict=True)
    ]


def judgement_of(
    original: OriginalRuns, truths: Sequence[Outputs], movements: Movements, *, is_proved: bool
) -> tuple[Judgement, str]:
    """Select the truths to which the original is as near as equal models must be.

    If they are further apart, one of them is wrong. onnx's reference implementation has faults: the
    BatchNormalization of onnx 1.23.2 at opset 9 was 41 % off behind the first Conv of a ResNet. So
    has the runtime: the Sigmoid of ONNX Runtime 1.31.1 on the CPU is 7 % off at -14.

    Args:
        original: the runs of the original.
        truths: the truth by input set, as far as it is known.
        movements: how far the shaken copies move each output, by input set.
        is_proved: whether both models are proved to be the same function.

    Returns:
        The judgement, and which truths are not used and why; "" if all are.
    """
    usable: list[Outputs] = [{} for _ in truths]
    movements, tolerance = [dict(movement) for movement in movements], original.options.tolerance
    unused: dict[str, float] = {}
    for index, truth in enumerate(truths):
        outputs, movement = original.outputs[index], movements[index]
        for name, values in truth.items():
            if tolerance.is_chosen(name):  # it compares both models
                continue
            with np.errstate(over="ignore"):
                true_values = values.astype(outputs[name].dtype)
            arrays, moved = (true_values, outputs[name]), movement.get(name)
            row = compare(name, *arrays, tolerance, Allowance(moved, MULTIPLE_IF_PROVED))
            if row.passed:
                usable[index][name] = true_values
                if moved is not None:
                    gap = Distance(row.max_abs or 0.0, row.mean_abs or 0.0)
                    movement[name] = moved.joined(gap)
            else:
                unused[name] = max(unused.get(name, 0.0), row.max_rel or 0.0)
    return Judgement(original, usable, movements, is_proved), _remark(unused)


def _remark(unused: Mapping[str, float]) -> str:
    """Name the outputs whose truth is not used, with the distance of the original; 0 if unknown."""
    if not unused:
        return ""
    names, largest = ", ".join(map(printable, unused)), max(unused.values())
    amount = f"{largest:.3g}" if largest else "an unknown amount"
    text = f"float64 truth not used for output {names}: the original is {amount} away from it"
    return f"{text}, more than rounding explains"


@dataclass(frozen=True)
class Judgement:
    """The comparison of all outputs.

    Attributes:
        original: the runs of the original.
        truths: the usable truth, by input set and name.
        movements: how far rounding moves each output, by input set; where a truth is usable, at
            least the distance of the original from it.
        is_proved: whether both models are proved to be the same function.
    """

    original: OriginalRuns
    truths: Sequence[Outputs]
    movements: Movements
    is_proved: bool

    def cells(self, runs: Mapping[LevelName, Runs]) -> Cells:
        """Compare every output of the rewritten model, at each level and on every input set."""
        return {
            key: msgspec.structs.replace(self._cell(key, candidate), level=level)
            for level, runs_at_level in runs.items()
            for index, candidate in enumerate(runs_at_level.outputs)
            for name in pairs(self.original.outputs[index], candidate)
            for key in [CellKey(level, name, index)]
        }

    def _cell(self, key: CellKey, new: Outputs) -> OutputParity:
        """Compare an output with the truth if that is usable, else with the original.

        At level `all` it may match the original at that level instead: the runtime's optimizations
        change some models.
        """
        level, name, index = key
        original, truth = self.original, self.truths[index]
        tolerance, movement = original.options.tolerance, self.movements[index].get(name)
        multiple = MULTIPLE_IF_PROVED if self.is_proved else MULTIPLE_IF_UNPROVED
        defaults = EXACT_RTOL if name in truth and not self.is_proved else DEFAULT_RTOL
        arrays = pairs(original.outputs[index] | truth, new)[name]
        cell = compare(name, *arrays, tolerance, Allowance(movement, multiple, defaults))
        if name in original.unsteady:
            return msgspec.structs.replace(cell, passed=False, note=UNSTEADY, caveat="unsteady")
        if cell.passed or level == "disabled" or original.optimized_runs.failure:
            return cell
        arrays = pairs(original.optimized_runs.outputs[index], new)[name]
        second_cell = compare(name, *arrays, tolerance, Allowance(movement, multiple))
        return msgspec.structs.replace(second_cell, note=OPTIMIZED) if second_cell.passed else cell


def failed_cells(cells: Cells) -> Cells:
    """Return the failed cells of the outputs that repeat."""
    return {k: cell for k, cell in cells.items() if not cell.passed and cell.caveat != "unsteady"}


def faults(cells: Cells, original: OriginalRuns, level: LevelName) -> list[str]:
    """Describe the first failed cell at a level of each output that repeats."""
    lines: dict[str, str] = {}
    for key, cell in failed_cells(cells).items():
        if key.level == level:
            lines.setdefault(
                key.output, _difference(cell, original.inputs.sets[key.input_set].label)
            )
    return list(lines.values())


def _difference(row: OutputParity, label: str = "") -> str:
    """Describe a comparison that failed, and on which inputs if `label` says so."""
    if row.max_rel is not None and row.nonfinite_match and row.max_rel > row.tolerance:
        detail = f"max_rel {row.max_rel:.3g}, allowed {row.tolerance:.3g}"
    else:
        detail = row.note or "values differ"
    return f"output {printable(row.name)}: {detail}" + (f" ({label})" if label else "")


def output_rows(cells: Cells) -> list[OutputParity]:
    """Return a row for each level and output: the input set on which it was nearest to failing."""
    rows: dict[tuple[LevelName, str], OutputParity] = {}
    for (level, name, _), cell in cells.items():
        rows[level, name] = max(rows.get((level, name), cell), cell, key=_nearness)
    return list(rows.values())


def _nearness(row: OutputParity) -> tuple[bool, bool, int, float]:
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


@dataclass(frozen=True)
class ModelParity:
    """The comparison of the outputs of two models.

    Attributes:
        findings: the outputs that differ, and what limits the comparison.
        outputs: one row per output and level.
        input_sets: how many sets were judged.
        saturates_further: as `VerifyReport.saturates_further`.
    """

    findings: Findings
    outputs: Sequence[OutputParity] = ()
    input_sets: int = 0
    saturates_further: bool = False


def model_parity(original: OriginalRuns, rewritten: Path, *, is_proved: bool) -> ModelParity:
    """Run a rewritten model and judge its outputs.

    Args:
        original: the runs of the original.
        rewritten: model file.
        is_proved: whether both are proved to be the same function. Then rounding and overflow
            explain more, and outputs that show nothing are no obstacle.
    """
    plain_runs = original.run(rewritten, Level.DISABLED)
    if plain_runs.failure:
        reason = f"the original runs, the rewritten model does not: {plain_runs.failure}"
        return ModelParity(Findings(failures=(reason,)))
    optimized_runs = original.run(rewritten, Level.ALL)
    runs: dict[LevelName, Runs] = {"disabled": plain_runs, "all": optimized_runs}
    cells, remarks = judge(original, runs, is_proved=is_proved)
    left_out = _overflows(original, cells) if is_proved else {}
    cells = {key: cell for key, cell in cells.items() if key.input_set not in left_out}
    remarks = [*original.inputs.remarks, *remarks]
    remarks += [f"left out {original.inputs.sets[i].label}: {line}" for i, line in left_out.items()]
    failures = faults(cells, original, "disabled") + stored_faults(original, plain_runs.outputs)
    if not failures:
        lines = faults(cells, original, "all")
        if optimized_runs.failure and not original.optimized_runs.failure:
            lines.insert(0, optimized_runs.failure)
        failures = [f"only with the runtime's own optimizations: {line}" for line in lines]
    byte_failures: list[str] = []
    if not failures and saturates(original.options) and holds_bytes(original.model, rewritten):
        byte_failures, byte_remarks = compare_as_deployed(original, rewritten, optimized_runs)
        failures += byte_failures
        remarks += byte_remarks
    doubts, rows = [*original.doubts], output_rows(cells)
    if not any(row.level == "disabled" and row.caveat != "meaningless" for row in rows):
        overflows = "the original overflows on every input set"
        reason = overflows if left_out else "no output shows anything on these inputs"
        if is_proved:
            remarks.append(f"{reason}: the proof alone decides")
        else:
            doubts.append(f"{reason}; pass --inputs with real ones")
    return ModelParity(
        Findings(failures=tuple(failures), doubts=tuple(doubts), remarks=tuple(remarks)),
        outputs=tuple(rows),
        input_sets=len(original.inputs.sets) - len(left_out),
        saturates_further=bool(byte_failures),
    )


def _overflows(original: OriginalRuns, cells: Cells) -> dict[int, str]:
    """Return the random input sets on which Inf or NaN of the original explains a difference."""
    suspects = {k.input_set for k, c in failed_cells(cells).items() if not c.nonfinite_match}
    random = [index for index in sorted(suspects) if original.inputs.sets[index].random]
    return {index: reason for index in random if (reason := original.overflow(index))}
