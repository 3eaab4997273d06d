"""Judges all outputs by one rule, and merges the comparisons of all input sets into rows.

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
from widthfold_onnx.results import LevelName, OutputParity
from widthfold_onnx.text import printable

MULTIPLE = 10.0
"""Allowed distance of a model that is proved equal, by how far rounding moves the original."""

STRICT = 4.0
"""The same for a model that is not proved equal. Its errors and the original's have about the same
distribution: over 580 pairs of outputs of small networks their ratio was 2.9 at most."""

SLACK = 2.0
"""Allowed distance from stored outputs, or from the definition where integers saturate, by the
distance of the original."""

EXACT_RTOL = DEFAULT_RTOL | {
    **dict.fromkeys(("float64", "complex128"), 2.0**-50),
    **dict.fromkeys(("float32", "complex64"), 2.0**-21),
}
"""Takes the place of the default tolerance where nothing is proved and the reference does not
round: four units in the last place, as the original may be right by luck."""

OPTIMIZED = "the runtime's optimizations change the original; compared with it at this level"

_ORDER = ("meaningless", "", "ill-conditioned", "unsteady")
"""Caveats; of two comparisons of one output the later one is reported."""

Key = tuple[LevelName, str, int]
"""Level, output and input set of a comparison."""
Cells = dict[Key, OutputParity]


def judge(
    reference: Reference, runs: Mapping[LevelName, Sequence[Outputs] | str], *, is_proved: bool
) -> tuple[Cells, list[str]]:
    """Compare all outputs, with as many shaken copies as that takes, and say what limits that."""
    options = reference.options
    reference.report("float64 truth")
    budget = options.truth_budget if options.thorough else 0.0
    truths, missing = true_outputs(reference.model, reference.names, reference.sets, budget)
    judgement = Judgement(reference, truths, is_proved, [{} for _ in truths])
    for number in range(len(COPIES)):
        unmoved = judgement.measure(number)
        cells = judgement.cells(runs)
        # More copies make no output pass whose tolerance the caller chose.
        if unmoved or all(options.tolerance.is_chosen(c.name) for c in failed(cells).values()):
            break
    if unmoved:
        unmoved = f"how far rounding moves the original is not known: {unmoved}"
    return cells, [line for line in (missing, *judgement.remarks(), unmoved) if line]


@dataclass
class Judgement:
    """The comparison of all outputs, with its measurements.

    Attributes:
        reference: the original.
        truths: the truth by input set, as far as it is known.
        is_proved: whether both models are proved to be the same function.
        moved: how far rounding moves each output, by input set; where the truth is known, at least
            as far as the original is from it.
        unused: how far the original is from truths that are not used, by output; 0 if not known.
    """

    reference: Reference
    truths: Sequence[Outputs]
    is_proved: bool
    moved: list[dict[str, Distance]]
    unused: dict[str, float] = field(default_factory=dict)

    def measure(self, number: int) -> str:
        """Run one more shaken copy of the original; return why it does not run, or ""."""
        movement = self.reference.movement(number)
        if isinstance(movement, str):
            return movement
        for moved, new in zip(self.moved, movement, strict=True):
            moved |= {name: apart.joined(moved.get(name, apart)) for name, apart in new.items()}
        return ""

    def cells(self, runs: Mapping[LevelName, Sequence[Outputs] | str]) -> Cells:
        """Compare every output of the rewritten model, at each level and on every input set."""
        truths = self._usable()
        return {
            key: self._cell(key, other, truths[number])
            for level, outputs in runs.items()
            for number, other in enumerate(() if isinstance(outputs, str) else outputs)
            for key in [(level, n, number) for n in pairs(self.reference.outputs[number], other)]
        }

    def _cell(self, key: Key, other: Outputs, truth: Outputs) -> OutputParity:
        """Compare with the original, or its truth; as deployed also with the original as deployed.

        The second comparison is needed because the runtime's optimizations change some models.
        """
        level, name, number = key
        multiple = MULTIPLE if self.is_proved else STRICT
        defaults = EXACT_RTOL if name in truth and not self.is_proved else DEFAULT_RTOL
        expected = self.reference.outputs[number] | truth
        cell = self._compared(key, expected, other, multiple, defaults)
        if name in self.reference.unsteady:
            return msgspec.structs.replace(cell, passed=False, note=UNSTEADY, caveat="unsteady")
        if cell.passed or level == "disabled" or isinstance(self.reference.optimized, str):
            return cell
        alike = self._compared(key, self.reference.optimized[number], other, multiple)
        return msgspec.structs.replace(alike, note=OPTIMIZED) if alike.passed else cell

    def _usable(self) -> list[Outputs]:
        """Return the truths to which the original is as near as equal models must be.

        Elsewhere either of both is wrong. onnx's reference implementation has faults of its own:
        the BatchNormalization of onnx 1.23.2 at opset 9 was 41 % off behind the first Conv of a
        ResNet. So has the runtime: the Sigmoid of ONNX Runtime 1.31.1 on the CPU is 7 % off at -14.
        """
        usable: list[Outputs] = [{} for _ in self.truths]
        self.unused.clear()
        for number, truth in enumerate(self.truths):
            own, moved = self.reference.outputs[number], self.moved[number]
            for name, wide in truth.items():
                if self.reference.options.tolerance.is_chosen(name):  # to compare both models
                    continue
                with np.errstate(over="ignore"):
                    rounded = wide.astype(own[name].dtype)
                row = self._compared(("disabled", name, number), {name: rounded}, own, MULTIPLE)
                apart = distance(rounded, own[name])
                if row.passed and apart is not None:
                    usable[number][name] = rounded
                    if name in moved:
                        moved[name] = moved[name].joined(apart)
                else:
                    self.unused[name] = max(self.unused.get(name, 0.0), row.max_rel or 0.0)
        return usable

    def _compared(
        self,
        key: Key,
        original: Outputs,
        other: Outputs,
        multiple: float,
        defaults: Mapping[str, float] = DEFAULT_RTOL,
    ) -> OutputParity:
        level, name, number = key
        tolerance, moved = self.reference.options.tolerance, self.moved[number].get(name)
        pair = pairs(original, other)[name]
        return compare(name, *pair, tolerance, level, moved, multiple, defaults)

    def remarks(self) -> list[str]:
        """Say which truths are not used, and why."""
        if not self.unused:
            return []
        names, far = ", ".join(map(printable, self.unused)), max(self.unused.values())
        amount = f"{far:.3g}" if far else "an unknown amount"
        return [
            f"float64 truth not used for output {names}: the original is {amount} away from "
            "it, more than rounding explains"
        ]


def failed(cells: Cells) -> Cells:
    """Return the failed cells of the outputs that repeat."""
    return {k: cell for k, cell in cells.items() if not cell.passed and cell.caveat != "unsteady"}


def faults(cells: Cells, reference: Reference, level: LevelName) -> list[str]:
    """Describe the first failed cell at a level of each output that repeats."""
    first: dict[str, str] = {}
    for (at, name, number), cell in failed(cells).items():
        if at == level:
            first.setdefault(name, _difference(cell, reference.sets[number].label))
    return list(first.values())


def _difference(row: OutputParity, label: str = "") -> str:
    """Describe a comparison that failed, and on which inputs if `label` says so."""
    if row.max_rel is not None and row.nonfinite_match and row.max_rel > row.tolerance:
        detail = f"max_rel {row.max_rel:.3g}, allowed {row.tolerance:.3g}"
    else:
        detail = row.note or "values differ"
    return f"output {printable(row.name)}: {detail}" + (f" ({label})" if label else "")


def merged(cells: Cells) -> list[OutputParity]:
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

    `SLACK` times the original's own distance is allowed beside the tolerance.
    """
    tolerance, lines = reference.options.tolerance, []
    for item, *runs in zip(reference.sets, reference.outputs, computed, strict=True):
        for name, expected in zip(reference.names, item.expected, strict=False):
            if not all(name in run for run in runs):
                continue
            old, new = (compare(name, expected, run[name], tolerance) for run in runs)
            far = new.max_abs is None or old.max_abs is None or new.max_abs > SLACK * old.max_abs
            if not new.passed and (far or (old.nonfinite_match and not new.nonfinite_match)):
                lines.append(f"{item.label}: stored {_difference(new)}")
    return lines
