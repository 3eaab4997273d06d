"""How far rounding moves the outputs of the original, as far as that was measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.parity.original_runs import OriginalRuns
from widthfold_onnx.evidence.parity.outputs import (
    MULTIPLE_IF_PROVED,
    Allowance,
    Distance,
    Movements,
    Outputs,
    compare,
)
from widthfold_onnx.evidence.parity.truth import true_outputs
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.results import OutputParity
from widthfold_onnx.text import printable


@dataclass(frozen=True)
class Rounding:
    """What was measured of the rounding of the original; nothing is at first.

    Attributes:
        original: its runs.
        truths: its outputs in float64, by input set; {} where they are not known.
        movements: how far shaken copies move each output, by input set.
        truth_remark: why the truth is not known on some input sets, "" if it is, or was not needed.
        copy_remark: why a copy does not run, "" if all do; no further copies run then.
    """

    original: OriginalRuns
    truths: Sequence[Outputs]
    movements: Movements
    truth_remark: str = ""
    copy_remark: str = ""

    @classmethod
    def unknown(cls, original: OriginalRuns) -> Self:
        """Return what is known before anything was measured."""
        sets = original.inputs.sets
        return cls(original, [{} for _ in sets], [{} for _ in sets])

    def with_copy(self, set_indices: Collection[int], copy_index: int) -> Self:
        """Run a shaken copy on some input sets."""
        if self.copy_remark:
            return self
        movements, remark = self.original.movements(copy_index, set_indices)
        larger_movements = [
            old | {name: gap.joined(old.get(name, gap)) for name, gap in new.items()}
            for old, new in zip(self.movements, movements, strict=True)
        ]
        return replace(self, movements=larger_movements, copy_remark=remark)

    def with_truth(self, set_indices: Collection[int]) -> Self:
        """Run the original in float64 on some input sets.

        Raises:
            UnverifiedError: it hangs or crashes.
        """
        original, indices = self.original, sorted(set_indices)
        progress(Step("float64 truth"))
        sets = [original.inputs.sets[index] for index in indices]
        work = original.options.truth_work
        results, remark = true_outputs(original.model, original.names, sets, work)
        truths = [*self.truths]
        for index, truth in zip(indices, results, strict=True):
            truths[index] = truth
        return replace(self, truths=truths, truth_remark=remark)

    def usable(self) -> tuple[list[Outputs], Movements, str]:
        """Select the truths to which the original is as near as equal models must be.

        If they are further apart, one of them is wrong. onnx's reference implementation has faults:
        the BatchNormalization of onnx 1.23.2 at opset 9 was 41 % off behind the first Conv of a
        ResNet. So has the runtime: the Sigmoid of ONNX Runtime 1.31.1 on the CPU is 7 % off at -14.

        Returns:
            The usable truths, in the types of the outputs. The movements; where a truth is usable,
            at least the distance of the original from it. Which truths are not used and why, "" if
            all are.
        """
        truths: list[Outputs] = [{} for _ in self.truths]
        movements = [dict(movement) for movement in self.movements]
        unused_gaps: dict[str, float] = {}
        for index, truth in enumerate(self.truths):
            outputs, movement = self.original.outputs[index], movements[index]
            for name, values in truth.items():
                if self.original.options.tolerance.is_chosen(name):  # it compares both models
                    continue
                true_values, row = self._compared(outputs[name], values, name, movement.get(name))
                if row.passed:
                    truths[index][name] = true_values
                    if name in movement:
                        gap = Distance(row.max_abs or 0.0, row.mean_abs or 0.0)
                        movement[name] = movement[name].joined(gap)
                else:
                    unused_gaps[name] = max(unused_gaps.get(name, 0.0), row.max_rel or 0.0)
        return truths, movements, _remark(unused_gaps)

    def _compared(
        self, output: Array, truth: Array, name: str, movement: Distance | None
    ) -> tuple[Array, OutputParity]:
        """Return a truth in the type of an output, and how far the output is from it."""
        with np.errstate(over="ignore"):
            true_values = truth.astype(output.dtype)
        allowance = Allowance(movement, MULTIPLE_IF_PROVED)
        tolerance = self.original.options.tolerance
        return true_values, compare(name, true_values, output, tolerance, allowance)


def _remark(unused_gaps: Mapping[str, float]) -> str:
    """Name outputs whose truth is not used, with the distance of the original; 0 if unknown."""
    if not unused_gaps:
        return ""
    names, largest = ", ".join(map(printable, unused_gaps)), max(unused_gaps.values())
    amount = f"{largest:.3g}" if largest else "an unknown amount"
    text = f"float64 truth not used for output {names}: the original is {amount} away from it"
    return f"{text}, more than rounding explains"
