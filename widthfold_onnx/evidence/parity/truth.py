"""Compute the truth: the results of the original without rounding to its own element types.

All floats of the model are widened to float64 (weights, casts, generated values) and onnx's
reference implementation runs it, with some operators of our own (`proof.float64`). It does not know
every operator and version, so there may be no truth. Then the report says why, and no claim rests
on a truth.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError, WidthfoldError
from widthfold_onnx.evidence.proof.float64 import evaluator
from widthfold_onnx.model.loader import load_with_data
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.inputs.recorded import InputSet
from widthfold_onnx.text import printable

GRACE = 5.0
"""Seconds on top of the budget until the process is killed: it must start, and one node of the
reference implementation may run for minutes."""

MAX_WIDENED_BYTES = 1 << 28
"""Largest model that is widened; it is held several times."""


def true_outputs(
    model: Path, outputs: Sequence[str], sets: Sequence[InputSet], budget: float
) -> tuple[list[dict[str, Array]], str]:
    """Return what the model computes in float64 on each input set, {} if that is not known.

    A process of its own computes them, and ends when the budget of seconds is spent; a budget of 0
    computes nothing. Small sets go first, so that there is time for as many as possible.

    Returns:
        One item per input set, and why some of them are empty; "" if none is, or none was wanted.
    """
    results: list[dict[str, Array]] = [{} for _ in sets]
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


def evaluate(
    model: Path, outputs: Sequence[str], feeds: Sequence[dict[str, Array]], budget: float
) -> tuple[list[dict[str, Array]], str]:
    """Compute outputs in float64 for the first input sets, as many as start within the budget.

    Returns:
        The outputs of each set that ran, and why the others did not.

    Raises:
        UnverifiedError: no set runs.
    """
    end = time.monotonic() + budget
    pace = 0.0  # seconds per element of the largest set so far
    results: list[dict[str, Array]] = []
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
