"""Compare two whole models on the same inputs, output by output, by one rule.

Two distances from the reference are allowed: the default tolerance, and a small multiple of the
distance by which rounding moves the original (`OriginalRuns.movements`). An output passes within
the larger distance. The reference is the truth where that is usable, else the original without the
runtime's optimizations. Every input set is judged by itself: an ill-conditioned set must not excuse
a difference on another.

Models that are proved equal are compared by the default tolerance first. What is beyond it gets
shaken copies, and if these do not explain it, the truth.

Both models run without the optimizations of the runtime, as these have faults, and with all of them
on, as they would be deployed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.exact_kernels import holds_bytes, open_chosen, saturates
from widthfold_onnx.evidence.findings import Findings
from widthfold_onnx.evidence.parity.original_runs import COPIES, UNSTEADY_NOTE, OriginalRuns
from widthfold_onnx.evidence.parity.outputs import (
    DEFAULT_RTOL,
    MULTIPLE_IF_PROVED,
    MULTIPLE_IF_UNPROVED,
    SLACK,
    Allowance,
    Distance,
    Movements,
    Outputs,
    compare,
    grain_of,
    measure,
    pairs,
)
from widthfold_onnx.evidence.parity.runs import Runs, attempt
from widthfold_onnx.evidence.parity.truth import true_outputs, usable_truths
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.progress import Step, progress, progress_to, silent
from widthfold_onnx.results import LevelName, OutputParity
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.providers import PRECISION
from widthfold_onnx.text import printable

EXACT_RTOL = DEFAULT_RTOL | {
    **dict.fromkeys(("float64", "complex128"), 2.0**-50),
    **dict.fromkeys(("float32", "complex64"), 2.0**-21),
}
"""Takes the place of the default tolerance where nothing is proved and the truth is the reference:
four units in the last place, as the original may be right by luck."""

OPTIMIZED_NOTE = "the runtime's optimizations change the original; compared with it at this level"

UNDEPLOYED = "not compared as deployed, as neither model runs with the runtime's own optimizations"

_CAVEATS = ("meaningless", "saturated", "", "ill-conditioned", "unsteady")
"""All caveats. Of two comparisons of an output that are alike otherwise, the one is reported whose
caveat stands later here."""


class RowKey(NamedTuple):
    """Level, output and input set of a comparison."""

    level: LevelName
    output: str
    input_set: int


Rows = dict[RowKey, OutputParity]


def judge(
    original: OriginalRuns, runs: Mapping[LevelName, Runs], *, is_proved: bool
) -> tuple[Rows, list[str]]:
    """Compare all outputs, and measure how far rounding moves them as far as that is needed.

    `runs` has the runs of the rewritten model, by level.

    Returns:
        The comparisons, and what limits them, one line each.

    Raises:
        UnverifiedError: the run in float64 hangs or crashes.
    """
    movement = _Movement(original)
    every_set = set(range(len(original.inputs.sets)))
    copies: list[Callable[[set[int]], None]]
    copies = [partial(movement.add_copy, index) for index in range(len(COPIES))]
    truth = movement.add_truth
    first, later = ([], [*copies, truth]) if is_proved else ([truth, copies[0]], copies[1:])
    for step in first:
        step(every_set)
    rows, unused_remark = movement.rows(runs, is_proved=is_proved)
    for step in later:
        # No movement makes an output pass whose tolerance the caller chose.
        failed = [
            k for k in failed_rows(rows) if not original.options.tolerance.is_chosen(k.output)
        ]
        if not failed:
            break
        step({key.input_set for key in failed})
        rows, unused_remark = movement.rows(runs, is_proved=is_proved)
    lines = (movement.truth_remark, unused_remark, movement.copy_remark)
    return rows, [line for line in lines if line]


class _Movement:
    """How far rounding moves the original, as far as that was measured.

    Attributes:
        truth_remark: why the truth is not known on some input sets, "" if it is, or was not needed.
        copy_remark: why a copy does not run, "" if all do; no further copies run then.
    """

    def __init__(self, original: OriginalRuns) -> None:
        self._original = original
        self._truths: list[Outputs] = [{} for _ in original.inputs.sets]
        self._movements: Movements = [{} for _ in original.inputs.sets]
        self.truth_remark = ""
        self.copy_remark = ""

    def add_copy(self, copy_index: int, set_indices: set[int]) -> None:
        """Run a shaken copy on some input sets."""
        if not self.copy_remark:
            movements, self.copy_remark = self._original.movements(copy_index, set_indices)
            self._movements = _joined(self._movements, movements)

    def add_truth(self, set_indices: set[int]) -> None:
        """Run the original in float64 on some input sets.

        Raises:
            UnverifiedError: it hangs or crashes.
        """
        original, indices = self._original, sorted(set_indices)
        progress(Step("float64 truth"))
        sets = [original.inputs.sets[index] for index in indices]
        truths, self.truth_remark = true_outputs(
            original.model, original.names, sets, original.options.truth_work
        )
        for index, truth in zip(indices, truths, strict=True):
            self._truths[index] = truth

    def rows(self, runs: Mapping[LevelName, Runs], *, is_proved: bool) -> tuple[Rows, str]:
        """Compare all outputs; return which truths are not used and why, too, "" if all are."""
        usable, movements, remark = usable_truths(self._original, self._truths, self._movements)
        return Judgement(self._original, usable, movements, is_proved).rows(runs), remark


def _joined(first: Movements, second: Movements) -> Movements:
    """Return the larger movement of each output."""
    return [
        old | {name: gap.joined(old.get(name, gap)) for name, gap in new.items()}
        for old, new in zip(first, second, strict=True)
    ]


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
    """Return the failed rows of the outputs that repeat."""
    return {k: row for k, row in rows.items() if not row.passed and row.caveat != "unsteady"}


def faults(rows: Rows, original: OriginalRuns, level: LevelName) -> list[str]:
    """Describe the first failed row at a level of each output that repeats."""
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
    else:
        detail = row.note or "values differ"
    return f"output {printable(row.name)}: {detail}" + (f" ({label})" if label else "")


def report_rows(rows: Rows) -> list[OutputParity]:
    """Return a row for each level and output: the input set on which it was nearest to failing."""
    nearest: dict[tuple[LevelName, str], OutputParity] = {}
    for (level, name, _), row in rows.items():
        nearest[level, name] = max(nearest.get((level, name), row), row, key=_nearness)
    return list(nearest.values())


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


def compare_as_deployed(original: OriginalRuns, rewritten: LoadedModel, exact: Runs) -> Findings:
    """Run both models as the caller deploys them, with kernels that saturate on this CPU.

    All other comparisons are of exact products. A fold adds other pairs of products than the
    original, so it saturates at other ones; it must not be further from its definition than the
    original is.

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


def model_parity(original: OriginalRuns, rewritten: LoadedModel, *, is_proved: bool) -> ModelParity:
    """Run a rewritten model and judge its outputs.

    Args:
        original: the runs of the original.
        rewritten: the rewritten model.
        is_proved: True if both are proved to be the same function. Then rounding and overflow
            explain more, and outputs that show nothing are no obstacle.
    """
    plain_runs = original.run(rewritten, Level.DISABLED)
    if plain_runs.failure:
        reason = f"the original runs, the rewritten model does not: {plain_runs.failure}"
        return ModelParity(Findings(failures=(reason,)))
    optimized_runs = original.run(rewritten, Level.ALL)
    runs: dict[LevelName, Runs] = {"disabled": plain_runs, "all": optimized_runs}
    rows, remarks = judge(original, runs, is_proved=is_proved)
    left_out = _overflows(original, rows) if is_proved else {}
    rows = {key: row for key, row in rows.items() if key.input_set not in left_out}
    remarks = [*original.inputs.remarks, *remarks]
    remarks += [f"left out {original.inputs.sets[i].label}: {line}" for i, line in left_out.items()]
    failures = faults(rows, original, "disabled") + stored_faults(original, plain_runs.outputs)
    if not failures:
        lines = faults(rows, original, "all")
        if optimized_runs.failure and original.optimized_runs.failure:
            remarks.append(f"{UNDEPLOYED}: {original.optimized_runs.failure}")
        elif optimized_runs.failure:
            lines.insert(0, optimized_runs.failure)
        failures = [f"only with the runtime's own optimizations: {line}" for line in lines]
    deployed_findings = Findings()
    protos = original.model.proto, rewritten.proto
    if not failures and saturates(original.options.provider) and holds_bytes(*protos):
        deployed_findings = compare_as_deployed(original, rewritten, optimized_runs)
        failures += deployed_findings.failures
        remarks += deployed_findings.remarks
    doubts, outputs = [*original.doubts], report_rows(rows)
    if not any(row.level == "disabled" and row.caveat != "meaningless" for row in outputs):
        overflows = "the original overflows on every input set"
        reason = overflows if left_out else "no output shows anything on these inputs"
        if is_proved:
            remarks.append(f"{reason}: the proof alone decides")
        else:
            doubts.append(f"{reason}; pass --inputs with real ones")
    return ModelParity(
        Findings(failures=tuple(failures), doubts=tuple(doubts), remarks=tuple(remarks)),
        outputs=tuple(outputs),
        input_sets=len(original.inputs.sets) - len(left_out),
        saturates_further=bool(deployed_findings.failures),
    )


def _overflows(original: OriginalRuns, rows: Rows) -> dict[int, str]:
    """Return the random input sets on which Inf or NaN of the original explains a difference."""
    suspects = {k.input_set for k, row in failed_rows(rows).items() if not row.nonfinite_match}
    random = [index for index in sorted(suspects) if original.inputs.sets[index].random]
    return {index: reason for index in random if (reason := original.overflow(index))}
