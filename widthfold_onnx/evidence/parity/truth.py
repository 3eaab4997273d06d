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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError, WidthfoldError, note_swallowed
from widthfold_onnx.evidence.parity.outputs import Outputs
from widthfold_onnx.evidence.parity.products import PRODUCTS, products_of
from widthfold_onnx.evidence.proof.float64 import evaluator
from widthfold_onnx.model.loader import LoadedModel, copy_with_data
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.inputs.feeds import InputSet
from widthfold_onnx.text import printable

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
