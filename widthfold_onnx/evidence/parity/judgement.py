"""Judge all outputs by one rule, and merge the comparisons of all input sets into rows.

Two distances from the reference are allowed: the default tolerance, and a small multiple of the
distance by which rounding moves the original (`shaken`). An output passes within the larger of
them. The reference is the truth where that is usable, else the original without the runtime's
optimizations. Every input set is judged by itself: an ill-conditioned set must not excuse a
difference on another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from widthfold_onnx.evidence.model_runs import Outputs, pairs
from widthfold_onnx.evidence.parity.outputs import DEFAULT_RTOL, Distance, compare, distance
from widthfold_onnx.evidence.parity.reference import UNSTEADY, Reference
from widthfold_onnx.evidence.parity.shaken import COPIES
from widthfold_onnx.evidence.parity.truth import true_outputs
from widthfold_onnx.options.progress import Step
from widthfold_onnx.results import LevelName, OutputParity
from widthfold_onnx.text import printable

MULTIPLE_IF_PROVED = 10.0
"""Allowed distance of a model that is proved equal, as a multiple of the original's movement."""

MULTIPLE_IF_UNPROVED = 4.0
"""Allowed multiple for a model that is not proved equal: over 580 pairs of outputs of small
networks the ratio of its errors to the errors of the original was 2.9 at most."""

SLACK = 2.0
"""Allowed distance from stored outputs, or from the definition where integers saturate, as a
multiple of the distance of the original."""

EXACT_RTOL = DEFAULT_RTOL | {
    **dict.fromkeys(("float64", "complex128"), 2.0**-50),
    **dict.fromkeys(("float32", "complex64"), 2.0**-21),
}
"""Takes the place of the default tolerance where nothing is proved and the truth is the reference:
four units in the last place, as the original may be right by luck."""

OPTIMIZED = "the runtime's optimizations change the original; compared with it at this level"

_ORDER = ("meaningless", "", "ill-conditioned", "unsteady")
"""Caveats; of two comparisons of one output the later one is reported."""

CellKey = tuple[LevelName, str, int]
"""Level, output and input set of a comparison."""
Cells = dict[CellKey, OutputParity]
Rtol = Mapping[str, float]


def judge(
    reference: Reference, runs: Mapping[LevelName, Sequence[Outputs] | str], *, is_proved: bool
) -> tuple[Cells, list[str]]:
    """Compare all outputs, with as many shaken copies as that takes.

    Returns:
        The comparisons, and what limits them, one line each.
    """
    options = reference.options
    reference.on_progress(Step("float64 truth"))
    budget = options.truth_budget if options.thorough else 0.0
    truths, remark = true_outputs(reference.model, reference.names, reference.sets, budget)
    judgement = Judgement(reference, truths, is_proved, [{} for _ in truths])
    for number in range(len(COPIES)):
        reason = judgement.measure(number)
        cells = judgement.cells(runs)
        # More copies make no output pass whose tolerance the caller chose.
        if reason or all(options.tolerance.is_chosen(c.name) for c in failed_cells(cells).values()):
            break
    if reason:
        reason = f"how far rounding moves the original is not known: {reason}"
    return cells, [line for line in (remark, *judgement.remarks(), reason) if line]


@dataclass
class Judgement:
    """The comparison of all outputs, with its measurements.

    Attributes:
        reference: the original.
        truths: the truth by input set, as far as it is known.
        is_proved: whether both models are proved to be the same function.
        movements: how far rounding moves each output, by input set; where the truth is known, at
            least the distance of the original from it.
        truth_distances: by output, the distance of the original from an unused truth; 0 if unknown.
    """

    reference: Reference
    truths: Sequence[Outputs]
    is_proved: bool
    movements: list[dict[str, Distance]]
    truth_distances: dict[str, float] = field(default_factory=dict)

    def measure(self, number: int) -> str:
        """Run one more shaken copy of the original; return why it does not run, or ""."""
        distances = self.reference.movement(number)
        if isinstance(distances, str):
            return distances
        for total, copy in zip(self.movements, distances, strict=True):
            total |= {name: gap.joined(total.get(name, gap)) for name, gap in copy.items()}
        return ""

    def cells(self, runs: Mapping[LevelName, Sequence[Outputs] | str]) -> Cells:
        """Compare every output of the rewritten model, at each level and on every input set."""
        truths = self._usable_truths()
        return {
            key: self._cell(key, candidate, truths[number])
            for level, outputs in runs.items()
            for number, candidate in enumerate(() if isinstance(outputs, str) else outputs)
            for name in pairs(self.reference.outputs[number], candidate)
            for key in [(level, name, number)]
        }

    def _cell(self, key: CellKey, new: Outputs, truth: Outputs) -> OutputParity:
        """Compare an output with the truth if that is usable, else with the original.

        At level `all` it may match the original at that level instead: the runtime's optimizations
        change some models.
        """
        level, name, number = key
        multiple = MULTIPLE_IF_PROVED if self.is_proved else MULTIPLE_IF_UNPROVED
        defaults = EXACT_RTOL if name in truth and not self.is_proved else DEFAULT_RTOL
        expected = self.reference.outputs[number] | truth
        cell = self._comparison(key, expected, new, multiple, defaults)
        if name in self.reference.unsteady:
            return msgspec.structs.replace(cell, passed=False, note=UNSTEADY, caveat="unsteady")
        if cell.passed or level == "disabled" or isinstance(self.reference.optimized_outputs, str):
            return cell
        second_cell = self._comparison(key, self.reference.optimized_outputs[number], new, multiple)
        return msgspec.structs.replace(second_cell, note=OPTIMIZED) if second_cell.passed else cell

    def _usable_truths(self) -> list[Outputs]:
        """Return the truths to which the original is as near as equal models must be.

        If they are further apart, one of them is wrong. onnx's reference implementation has faults:
        the BatchNormalization of onnx 1.23.2 at opset 9 was 41 % off behind the first Conv of a
        ResNet. So has the runtime: the Sigmoid of ONNX Runtime 1.31.1 on the CPU is 7 % off at -14.
        """
        usable: list[Outputs] = [{} for _ in self.truths]
        distances = self.truth_distances = dict[str, float]()
        for number, truth in enumerate(self.truths):
            outputs, movements = self.reference.outputs[number], self.movements[number]
            for name, values in truth.items():
                if self.reference.options.tolerance.is_chosen(name):  # it compares both models
                    continue
                with np.errstate(over="ignore"):
                    rounded_values = values.astype(outputs[name].dtype)
                key: CellKey = ("disabled", name, number)
                row = self._comparison(key, {name: rounded_values}, outputs, MULTIPLE_IF_PROVED)
                gap = distance(rounded_values, outputs[name])
                if row.passed and gap is not None:
                    usable[number][name] = rounded_values
                    if name in movements:
                        movements[name] = movements[name].joined(gap)
                else:
                    distances[name] = max(distances.get(name, 0.0), row.max_rel or 0.0)
        return usable

    def _comparison(
        self, key: CellKey, old: Outputs, new: Outputs, multiple: float, rtol: Rtol = DEFAULT_RTOL
    ) -> OutputParity:
        level, name, number = key
        tolerance, movement = self.reference.options.tolerance, self.movements[number].get(name)
        return compare(name, *pairs(old, new)[name], tolerance, level, movement, multiple, rtol)

    def remarks(self) -> list[str]:
        """Say which truths are not used, and why."""
        if not self.truth_distances:
            return []
        names = ", ".join(map(printable, self.truth_distances))
        largest = max(self.truth_distances.values())
        amount = f"{largest:.3g}" if largest else "an unknown amount"
        text = f"float64 truth not used for output {names}: the original is {amount} away from it"
        return [f"{text}, more than rounding explains"]


def failed_cells(cells: Cells) -> Cells:
    """Return the failed cells of the outputs that repeat."""
    return {k: cell for k, cell in cells.items() if not cell.passed and cell.caveat != "unsteady"}


def faults(cells: Cells, reference: Reference, level: LevelName) -> list[str]:
    """Describe the first failed cell at a level of each output that repeats."""
    lines: dict[str, str] = {}
    for (cell_level, name, number), cell in failed_cells(cells).items():
        if cell_level == level:
            lines.setdefault(name, _difference(cell, reference.sets[number].label))
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
    ratio = (row.max_rel or 0.0) / max(row.tolerance, 1e-300)
    return not row.passed, not row.nonfinite_match, _ORDER.index(row.caveat), ratio


def stored_faults(reference: Reference, computed: Sequence[Outputs]) -> list[str]:
    """Say where the rewritten model is further from stored outputs than it may be.

    It may be within the tolerance, or within `SLACK` times the distance of the original.
    """
    tolerance, lines = reference.options.tolerance, []
    for item, *runs in zip(reference.sets, reference.outputs, computed, strict=True):
        for name, expected in zip(reference.names, item.expected, strict=False):
            if not all(name in run for run in runs):
                continue
            old, new = (compare(name, expected, run[name], tolerance) for run in runs)
            limit = None if old.max_abs is None else SLACK * old.max_abs
            is_far = new.max_abs is None or limit is None or new.max_abs > limit
            if not new.passed and (is_far or (old.nonfinite_match and not new.nonfinite_match)):
                lines.append(f"{item.label}: stored {_difference(new)}")
    return lines
