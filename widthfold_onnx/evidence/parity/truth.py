"""Compute the truth, the results of the original without rounding to its own element types.

All floats of the model are widened to float64 (weights, casts, generated values) and onnx's
reference implementation runs it, with some operators of our own (`proof.float64`). It does not know
every operator and version, so there may be no truth. Then the report says why, and no claim rests
on a truth. Nor does one on a truth from which the original is further away than rounding explains.

How many input sets have a truth follows from the models and the inputs alone: work is counted in
elements, not in seconds, so that a busy machine judges as an idle one.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError, WidthfoldError, note_swallowed
from widthfold_onnx.evidence.parity.outputs import (
    MULTIPLE_IF_PROVED,
    Allowance,
    Distance,
    Movements,
    Outputs,
    compare,
)
from widthfold_onnx.evidence.parity.products import PRODUCTS, products_of
from widthfold_onnx.evidence.proof.float64 import evaluator
from widthfold_onnx.model.loader import LoadedModel, copy_with_data
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.inputs.feeds import InputSet
from widthfold_onnx.text import printable

if TYPE_CHECKING:
    from widthfold_onnx.evidence.parity.original_runs import OriginalRuns

MAX_SECONDS = 900.0
"""Seconds until the process is killed; then nothing is judged. The default work takes some 3 s of a
core, and a single node is not stopped."""

NODE_WORK = 1 << 13
"""Work of a node on top of its elements: Python needs some microseconds for each."""

PRODUCTS_PER_ELEMENT = 16
"""Products that BLAS adds while another node computes an element."""

SLOW_WORK = 1000
"""Work for an element of a `SLOW` node."""

SLOW = (
    *("AveragePool", "Col2Im", "DeformConv", "GridSample", "LpPool", "MaxRoiPool", "MaxUnpool"),
    *("NonMaxSuppression", "RoiAlign", "ScatterND"),
)
"""Operators that onnx's reference implementation computes element by element, in Python."""

MAX_WIDENED_BYTES = 1 << 28
"""Largest model that is widened; it is held several times."""


def true_outputs(
    model: LoadedModel, outputs: Sequence[str], sets: Sequence[InputSet], millions: float
) -> tuple[list[Outputs], str]:
    """Return what the model computes in float64 on each input set, {} if that is not known.

    A process of its own computes them, as far as the work of so many million elements goes; 0
    computes nothing. Small sets go first, so that as many as possible have a truth.

    Returns:
        One item per input set, and why some of them are empty; "" if none is, or none was wanted.

    Raises:
        UnverifiedError: the process hangs or crashes.
        InvalidModelError: a file of external data that changed since it was checked.
    """
    results: list[Outputs] = [{} for _ in sets]
    if millions <= 0:
        return results, ""
    order = sorted(range(len(sets)), key=lambda i: sum(x.size for x in sets[i].feeds.values()))
    feeds = [sets[i].feeds for i in order]
    try:
        copy = copy_with_data(model, MAX_WIDENED_BYTES)  # of what the other checks see
    except UnverifiedError as error:
        return results, f"no float64 truth: {error}"
    try:
        runs, reason = isolated(evaluate, copy, [*outputs], feeds, millions, timeout=MAX_SECONDS)
    except UnverifiedError as error:
        raise UnverifiedError(f"the truth, a run of the original in float64: {error}") from error
    for i, run in zip(order, runs, strict=False):
        results[i] = run
    if not runs:
        return results, f"no float64 truth: {reason}"
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


class _SpentError(Exception):
    """The work is spent."""


@dataclass
class _Work:
    """The work of an evaluation, in elements.

    Attributes:
        most: the work that may be done.
        done: the work of all nodes that ran.
    """

    most: float
    done: float = 0.0

    def evaluator(self, model: onnx.ModelProto) -> ReferenceEvaluator:
        """Return an evaluator of a model that counts its work, also of bodies and functions.

        A node that exceeds the work raises `_SpentError` when it ends.
        """
        work = self

        class Counted(ReferenceEvaluator):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                for node in self.rt_nodes_:
                    node.run = partial(work.run, node.onnx_node, node.run)

        return evaluator(model, Counted)

    def run(
        self, node: onnx.NodeProto, call: Callable[..., Any], *inputs: Any, **options: Any
    ) -> Any:
        """Run a node and count its work."""
        outputs = call(*inputs, **options)
        self.done += work_of(node, inputs, outputs)
        if self.done > self.most:
            raise _SpentError
        return outputs


def work_of(node: onnx.NodeProto, inputs: Sequence[Any], outputs: Sequence[Any]) -> float:
    """Return the work of a node that ran, in elements."""
    size = sum(array.size for array in outputs if isinstance(array, np.ndarray))
    work = NODE_WORK + size * (SLOW_WORK if node.op_type in SLOW else 1)
    if node.op_type in PRODUCTS:
        shapes = [np.shape(array) for array in inputs[:2]]
        work += products_of(node, shapes, size) // PRODUCTS_PER_ELEMENT
    return float(work)


def evaluate(
    model: onnx.ModelProto,
    outputs: Sequence[str],
    feeds: Sequence[dict[str, Array]],
    millions: float,
) -> tuple[list[Outputs], str]:
    """Compute outputs in float64 for the first input sets, as far as the work goes.

    Args:
        model: the model, with all its data inside; it is changed.
        outputs: names of the outputs.
        feeds: the input sets.
        millions: the work, in millions of elements. A set is not begun if it would exceed that at
            the work per element of the set before it.

    Returns:
        The outputs of each set that ran, and why the others did not.
    """
    work = _Work(millions * 1e6)
    pace = 0.0  # work per element of the last set
    results: list[Outputs] = []
    try:
        evaluation = work.evaluator(model)
        with np.errstate(all="ignore"):
            for item in feeds:
                before, size = work.done, max(sum(array.size for array in item.values()), 1)
                if before + pace * size > work.most:
                    raise _SpentError
                values = evaluation.run(list(outputs), {n: _wide(x) for n, x in item.items()})
                pairs = zip(outputs, values, strict=True)  # float64 results were not rounded
                results.append({n: v for n, v in pairs if getattr(v, "dtype", None) == np.float64})
                pace = (work.done - before) / size
    except _SpentError:
        return results, f"the work of {millions:g} million elements is spent"
    except Exception as error:
        # Operators raise different errors on unknown versions; there is no common base.
        note_swallowed("no float64 truth")
        return results, str(error) if isinstance(error, WidthfoldError) else _failing_node(error)
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
