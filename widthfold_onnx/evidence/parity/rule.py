"""Judges all outputs by one rule, and merges the comparisons of all input sets into rows.

Every input set is judged by itself: one on which the original is ill-conditioned must not excuse
a difference on another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from widthfold_onnx.evidence.parity.outputs import (
    DEFAULT_RTOL,
    EXACT_RTOL,
    Distance,
    LevelName,
    compare,
    distance,
    figure,
    is_chosen,
)
from widthfold_onnx.evidence.parity.reference import UNSTEADY, Reference
from widthfold_onnx.evidence.parity.runs import Outputs, both, output_names
from widthfold_onnx.options import Tolerance
from widthfold_onnx.results import OutputParity
from widthfold_onnx.text import printable

COPIES = (1, 1, 10, 10)
"""Units in the last place by which copies are shaken: the first is run always, the others while an
output is too far. Larger steps find sums that are near half a step of a quantizer."""

MULTIPLE = 10.0
"""A model that is proved equal may be so many times as far off as rounding moves the original."""

STRICT = 4.0
"""The same for a model that is not proved equal. The errors of both are drawn from about the same
distribution: over 580 pairs of outputs of small networks their ratio was 2.9 at most."""

OPTIMIZED = "the runtime's optimizations change the original; compared with it at this level"

_ORDER = ("meaningless", "", "ill-conditioned", "unsteady")
"""Caveats; of two comparisons of one output the later one is reported."""

Cells = dict[tuple[LevelName, str, int], OutputParity]
"""Comparisons by level, output and input set."""


@dataclass
class Rule:
    """The rule, with its measurements.

    Attributes:
        reference: the original.
        truths: its outputs in float64 by input set, as far as they are known.
        is_proved: whether both models are proved to be the same function.
        moved: how far rounding moves each output, by input set; where the truth is known, at least
            as far as the original is from it.
        unused: why truths are not used, by output: how far the original is from them.
    """

    reference: Reference
    truths: Sequence[Outputs]
    is_proved: bool
    moved: list[dict[str, Distance]] = field(default_factory=list)
    unused: dict[str, float | None] = field(default_factory=dict)

    def measure(self, copy: int) -> str:
        """Run one more shaken copy of the original; return why it does not run, or ""."""
        moved = self.reference.moved(copy, COPIES[copy])
        if isinstance(moved, str):
            return moved
        self.moved = self.moved or [{} for _ in moved]
        for distances, new, run in zip(self.moved, moved, self.reference.outputs, strict=True):
            for name, apart in new.items():
                unit = apart.times(1 / COPIES[copy])
                if run[name].dtype.name not in DEFAULT_RTOL:  # whole steps of integers
                    unit = unit._replace(largest=apart.largest)
                distances[name] = unit.joined(distances.get(name, unit))
        return ""

    def cells(
        self,
        plain: Sequence[Outputs],
        deployed: Sequence[Outputs] | str,
        original_deployed: Callable[[], Sequence[Outputs] | str],
    ) -> Cells:
        """Compare every output of the rewritten model on every input set.

        Outputs as deployed may also equal the outputs of the original as deployed: the runtime's
        optimizations change some models.

        Args:
            plain: outputs without the runtime's optimizations, by input set.
            deployed: the same with them, or why there are none.
            original_deployed: gives the distance of the original; called if it is needed.
        """
        exact = self._exact()
        cells = self._compared("disabled", self.reference.outputs, plain, exact)
        if isinstance(deployed, str):
            return cells
        optimized = self._compared("all", self.reference.outputs, deployed, exact)
        wrong = {cell.name for cell in failed(optimized).values()}
        original = original_deployed() if wrong else ""
        if not isinstance(original, str):
            alike = self._compared("all", original, deployed)
            wrong -= {cell.name for cell in failed(alike).values()}
            changed = {key: cell for key, cell in alike.items() if cell.name in wrong}
            optimized |= {k: msgspec.structs.replace(c, note=OPTIMIZED) for k, c in changed.items()}
        return cells | optimized

    def _exact(self) -> list[Outputs]:
        """Return the truths to which the original is as near as the rule demands.

        Elsewhere either of both is wrong. onnx's reference implementation has faults of its own:
        the BatchNormalization of onnx 1.23.2 at opset 9 was 41 % off behind the first Conv of a
        ResNet. So has the runtime: the Sigmoid of ONNX Runtime 1.31.1 on the CPU is 7 % off at -14.
        """
        usable: list[Outputs] = [{} for _ in self.truths]
        self.unused.clear()
        tolerance = self.reference.options.tolerance
        for number, truth in enumerate(self.truths):
            own = self.reference.outputs[number]
            for name in [n for n in truth if n in own and own[n].dtype.name in DEFAULT_RTOL]:
                if is_chosen(name, tolerance):  # by a caller who compares both models
                    continue
                with np.errstate(over="ignore"):
                    rounded = truth[name].astype(own[name].dtype)
                moved = self._moved(number, name)
                row = compare(name, rounded, own[name], Tolerance(), "disabled", moved, MULTIPLE)
                apart = distance(rounded, own[name])
                if not row.passed or apart is None:
                    far = max(self.unused.get(name) or 0.0, row.max_rel or 0.0)
                    self.unused[name] = far or None
                    continue
                usable[number][name] = rounded
                if moved is not None:
                    self.moved[number][name] = moved.joined(apart)
        return usable

    def _compared(
        self,
        level: LevelName,
        originals: Sequence[Outputs],
        candidates: Sequence[Outputs],
        exact: Sequence[Outputs] = (),
    ) -> Cells:
        """Compare with the original, or with its exact outputs where there are any."""
        unsteady = {"passed": False, "note": UNSTEADY, "caveat": "unsteady"}
        cells: Cells = {}
        for number, (original, other) in enumerate(zip(originals, candidates, strict=True)):
            truth = exact[number] if exact else {}
            for name in output_names([original], [other]):
                cell = compare(
                    name,
                    *both(name, {**original, **truth}, other),
                    self.reference.options.tolerance,
                    level,
                    self._moved(number, name),
                    MULTIPLE if self.is_proved else STRICT,
                    EXACT_RTOL if name in truth and not self.is_proved else DEFAULT_RTOL,
                )
                if name in self.reference.unsteady:
                    cell = msgspec.structs.replace(cell, **unsteady)
                cells[level, name, number] = cell
        return cells

    def _moved(self, number: int, name: str) -> Distance | None:
        return self.moved[number].get(name) if self.moved else None

    def limits(self) -> list[str]:
        """Say which truths are not used, and why."""
        names = ", ".join(printable(name) for name in self.unused)
        far = figure(max((d for d in self.unused.values() if d), default=None))
        return [
            f"float64 reference not used for output {names}: the original is {far} away from it, "
            "more than rounding explains"
        ] * bool(names)

    def is_settled(self, cells: Cells) -> bool:
        """Check whether more copies can make no more outputs pass."""
        tolerance = self.reference.options.tolerance
        return all(is_chosen(cell.name, tolerance) for cell in failed(cells).values())


def failed(cells: Cells) -> Cells:
    """Return the failed cells of the outputs that repeat."""
    return {k: cell for k, cell in cells.items() if not cell.passed and cell.caveat != "unsteady"}


def merged(cells: Cells) -> list[OutputParity]:
    """Return a row for each level and output: the input set on which it was nearest to failing."""
    rows: dict[tuple[LevelName, str], OutputParity] = {}
    for (level, name, _), cell in cells.items():
        rows[level, name] = max(rows.get((level, name), cell), cell, key=_nearness)
    return list(rows.values())


def _nearness(row: OutputParity) -> tuple[bool, bool, int, float]:
    ratio = math.inf if row.max_rel else 0.0
    if row.max_rel and row.tolerance:
        ratio = row.max_rel / row.tolerance
    return not row.passed, not row.nonfinite_match, _ORDER.index(row.caveat), ratio
