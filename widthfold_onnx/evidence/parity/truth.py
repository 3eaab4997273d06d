"""Compute the truth, the results of the original without rounding to its own element types.

All floats of the model are widened to float64 (weights, casts, generated values) and onnx's
reference implementation runs it, with some operators of our own (`proof.float64`). It does not know
every operator and version, so there may be no truth. Then the report says why, and no claim rests
on a truth. Nor does one on a truth from which the original is further away than rounding explains.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError, WidthfoldError
from widthfold_onnx.evidence.parity.outputs import (
    MULTIPLE_IF_PROVED,
    Allowance,
    Distance,
    Movements,
    Outputs,
    compare,
)
from widthfold_onnx.evidence.proof.float64 import evaluator
from widthfold_onnx.model.loader import load_with_data
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.inputs.feeds import InputSet
from widthfold_onnx.text import printable

if TYPE_CHECKING:
    from widthfold_onnx.evidence.parity.original_runs import OriginalRuns

GRACE = 5.0
"""Seconds on top of the budget until the process is killed: it must start, and one node of the
reference implementation may run for minutes."""

MAX_WIDENED_BYTES = 1 << 28
"""Largest model that is widened; it is held several times."""


def true_outputs(
    model: Path, outputs: Sequence[str], sets: Sequence[InputSet], budget: float
) -> tuple[list[Outputs], str]:
    """Return what the model computes in float64 on each input set, {} if that is not known.

    A process of its own computes them, and ends when the budget of seconds is spent; a budget of 0
    computes nothing. Small sets go first, so that there is time for as many as possible.

    Returns:
        One item per input set, and why some of them are empty; "" if none is, or none was wanted.
    """
    results: list[Outputs] = [{} for _ in sets]
    if budget <= 0:
        return results, ""
    order = sorted(range(len(sets)), key=lambda i: sum(x.size for x in sets[i].feeds.values()))
    feeds = [sets[i].feeds for i in order]
    try:
        runs, reason = isolated(evaluate, model, [*outputs], feeds, budget, timeout=budget + GRACE)
    except UnverifiedError as error:
        return results, f"no float64 truth: {error}"
    for i, run in zip(order, runs, strict=False):
        results[i] = run
    remark = f"float64 truth for {len(runs)} of {len(sets)} input sets only: {reason}"
    return results, remark if reason else ""


def usable_truths(
    original: OriginalRuns, truths: Sequence[Outputs], movements: Movements
) -> tuple[list[Outputs], Movements, str]:
    """Select the truths to which the original is as near as equal models must be.

    If they are further apart, one of them is wrong. onnx's reference implementation has faults: the
    BatchNormalization of onnx 1.23.2 at opset 9 was 41 % off behind the first Conv of a ResNet. So
    has the runtime: the Sigmoid of ONNX Runtime 1.31.1 on the CPU is 7 % off at -14.

    Args:
        original: the runs of the original.
        truths: the truth by input set, as far as it is known.
        movements: how far the shaken copies move each output.

    Returns:
        The usable truths, in the types of the outputs. The movements; where a truth is usable, at
        least the distance of the original from it. Which truths are not used and why, "" if all
        are.
    """
    usable_outputs: list[Outputs] = [{} for _ in truths]
    movements, tolerance = [dict(movement) for movement in movements], original.options.tolerance
    unused_gaps: dict[str, float] = {}
    for index, truth in enumerate(truths):
        outputs, movement = original.outputs[index], movements[index]
        for name, values in truth.items():
            if tolerance.is_chosen(name):  # it compares both models
                continue
            with np.errstate(over="ignore"):
                true_values = values.astype(outputs[name].dtype)
            known_movement = movement.get(name)
            allowance = Allowance(known_movement, MULTIPLE_IF_PROVED)
            row = compare(name, true_values, outputs[name], tolerance, allowance)
            if row.passed:
                usable_outputs[index][name] = true_values
                if known_movement is not None:
                    gap = Distance(row.max_abs or 0.0, row.mean_abs or 0.0)
                    movement[name] = known_movement.joined(gap)
            else:
                unused_gaps[name] = max(unused_gaps.get(name, 0.0), row.max_rel or 0.0)
    return usable_outputs, movements, _remark(unused_gaps)


def _remark(unused_gaps: Mapping[str, float]) -> str:
    """Name outputs whose truth is not used, with the distance of the original; 0 if unknown."""
    if not unused_gaps:
        return ""
    names, largest = ", ".join(map(printable, unused_gaps)), max(unused_gaps.values())
    amount = f"{largest:.3g}" if largest else "an unknown amount"
    text = f"float64 truth not used for output {names}: the original is {amount} away from it"
    return f"{text}, more than rounding explains"


def evaluate(
    model: Path, outputs: Sequence[str], feeds: Sequence[dict[str, Array]], budget: float
) -> tuple[list[Outputs], str]:
    """Compute outputs in float64 for the first input sets, as many as start within the budget.

    Returns:
        The outputs of each set that ran, and why the others did not.

    Raises:
        UnverifiedError: no set runs.
    """
    end = time.monotonic() + budget
    pace = 0.0  # seconds per element of the largest set so far
    results: list[Outputs] = []
    try:
        evaluation = evaluator(load_with_data(model, MAX_WIDENED_BYTES))
        with np.errstate(all="ignore"):
            for item in feeds:
                start, size = time.monotonic(), sum(array.size for array in item.values())
                if results and start + pace * size > end:
                    return results, f"the budget of {budget:g} s is spent"
                values = evaluation.run(list(outputs), {n: _wide(x) for n, x in item.items()})
                pairs = zip(outputs, values, strict=True)  # float64 results were not rounded
                results.append({n: v for n, v in pairs if getattr(v, "dtype", None) == np.float64})
                pace = (time.monotonic() - start) / max(size, 1)
    except Exception as error:
        # Operators raise different errors on unknown versions; there is no common base.
        reason = str(error) if isinstance(error, WidthfoldError) else _failing_node(error)
        if not results:
            raise UnverifiedError(reason) from error
        return results, reason
    return results, ""


def _failing_node(error: BaseException) -> str:
    """Name the node at which onnx's reference implementation fails: the innermost node that ran.

    The message of its error is about arrays and classes, and mostly does not name a node.
    """
    while error.__cause__ is not None:  # it raises anew at every node that holds a body
        error = error.__cause__
    subject = "this model"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        node = getattr(frame.f_locals.get("self"), "onnx_node", frame.f_locals.get("node"))
        if isinstance(node, onnx.NodeProto):
            subject = f"{node.op_type} {node.name or node.output[0]}"
    return printable(f"onnx's reference implementation fails at {subject}")


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
