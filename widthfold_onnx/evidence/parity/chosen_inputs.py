"""Choose inputs on which the original runs and shows something.

Random numbers may show nothing: scalars and small vectors are often limits, rates or switches, and
a random value of one may mask every output (`revealing_values`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import numpy as np
import onnx
from onnx import helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.parity.branches import unreached_branches
from widthfold_onnx.evidence.parity.filling import filling_set
from widthfold_onnx.evidence.parity.outputs import Outputs, why_meaningless
from widthfold_onnx.evidence.parity.products import is_light
from widthfold_onnx.evidence.parity.runs import run_once
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.model.shapes.table import Derivation, ShapeTable
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.runtime.inputs.cases import MAX_SMALL
from widthfold_onnx.runtime.inputs.feeds import InputSet, with_small_integers
from widthfold_onnx.runtime.inputs.input_sets import InputSets, input_sets
from widthfold_onnx.runtime.session import Session
from widthfold_onnx.text import printable

VALUES = (0.0, 1.0, 0.1, 10.0, 100.0, 1e4, 1e6)
"""Values that are tried for an element; of two elements all 49 pairs are tried (`TRIES`)."""

TRIES = 64
"""Combinations that are tried, chosen at random where there are more."""


def run_on_inputs(
    original: LoadedModel, session: Session, options: VerifyOptions
) -> tuple[InputSets, list[Outputs]]:
    """Choose input sets, and return them with the outputs of the model on each.

    Args:
        original: the model.
        session: a session of the model.
        options: stored inputs, shapes and seeds.

    Raises:
        UnverifiedError: it stops on the first set or on a stored one.
        UsageError: stored inputs or shapes that do not fit it.
    """
    proto, derivation = original.proto, Derivation(original.proto)
    inputs = input_sets(
        session,
        options,
        lambda shapes: all_windows_fit(proto, ShapeTable(proto, shapes, derivation)),
        lambda shapes: is_light(proto, ShapeTable(proto, shapes, derivation)),
    )
    random_set = next((item for item in inputs.sets if item.random), None)
    if random_set is not None and (item := filling_set(original, random_set)) is not None:
        inputs = replace(inputs, sets=[*inputs.sets, item])
    inputs, outputs = _run(session, inputs)
    if (
        random_set is not None
        and not any(map(meaningful_count, outputs))
        and (values := revealing_values(session, random_set.feeds))
    ):
        inputs, outputs = _run(session, _with_values(inputs, values))
    if branches := unreached_branches(original, options, inputs.sets):
        remark = f"no input set reached {', '.join(branches)}"
        inputs = replace(inputs, remarks=[*inputs.remarks, remark])
    return inputs, outputs


def _run(session: Session, inputs: InputSets) -> tuple[InputSets, list[Outputs]]:
    """Run the model on each set; each run is a step.

    A random set on which it stops runs again with integers of 0 and 1, which may be indices; where
    it stops on that, too, the set is left out.
    """
    usable_sets: list[InputSet] = []
    outputs: list[Outputs] = []
    remarks = [*inputs.remarks]
    queue = deque(inputs.sets)
    while queue:
        item = queue.popleft()
        try:
            progress(Step(f"original: {item.label}"))
            outputs.append(run_once(session, item))
        except UnverifiedError as error:
            if item.random and (tame := with_small_integers(item)) is not item:
                queue.appendleft(tame)
            elif item.random and usable_sets:
                remarks.append(f"left out {item.label}: {error}")
            else:
                raise
        else:
            usable_sets.append(item)
    return replace(inputs, sets=usable_sets, remarks=remarks), outputs


def _with_values(inputs: InputSets, values: dict[str, Array]) -> InputSets:
    """Set some inputs of all random sets to values, and say so."""
    sets = [
        replace(item, feeds=item.feeds | values) if item.random else item for item in inputs.sets
    ]
    values_text = ", ".join(f"{printable(name)} {x.tolist()}" for name, x in values.items())
    remark = f"random values of small inputs show nothing; they are {values_text}"
    return replace(inputs, sets=sets, remarks=[*inputs.remarks, remark])


def meaningful_count(outputs: Outputs) -> int:
    """Count the outputs that show something."""
    return sum(not why_meaningless(value) for value in outputs.values())


def revealing_values(session: Session, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return values of the small inputs with which most outputs show something, {} if none does.

    Args:
        session: of the original.
        feeds: a random input set.
    """
    control_names = {port.name for port in session.inputs if port.value}
    small_inputs = {
        name: x
        for name, x in feeds.items()
        if name not in control_names
        and x.ndim <= 1
        and x.size <= MAX_SMALL
        and x.dtype.kind in "fiub"
    }
    best_values: dict[str, Array] = {}
    best_count = 0
    for values in _combinations(sum(x.size for x in small_inputs.values())) if small_inputs else ():
        numbers = iter(values)
        trial = {
            name: np.array([next(numbers) for _ in range(x.size)]).reshape(x.shape).astype(x.dtype)
            for name, x in small_inputs.items()
        }
        try:
            outputs = session.run({**feeds, **trial})
        except UnverifiedError:
            continue
        if meaningful_count(outputs) > best_count:
            best_values, best_count = trial, meaningful_count(outputs)
        if best_count == len(outputs):
            break
    return best_values


def _combinations(count: int) -> Iterator[tuple[float, ...]]:
    if len(VALUES) ** count <= TRIES:
        yield from product(VALUES, repeat=count)
        return
    rng = np.random.default_rng(count)
    for _ in range(TRIES):
        yield tuple(rng.choice(VALUES, count))


def all_windows_fit(model: onnx.ModelProto, table: ShapeTable) -> bool:
    """Check that windows fit into their inputs: of all pools, and of Convs that state their kernel.

    ONNX Runtime 1.32.0 does not refuse a MaxPool whose window is longer than its data.
    """
    for node in model.graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        extents = table.extents("", node.input[0]) if "kernel_shape" in attributes else None
        if extents is None or attributes.get("auto_pad", b"").startswith(b"SAME"):
            continue
        kernel = np.array(attributes["kernel_shape"])
        pads = np.array(attributes.get("pads", [0] * 2 * kernel.size)).reshape(2, -1).sum(0)
        reach = (kernel - 1) * attributes.get("dilations", 1) + 1
        if node.op_type != "ConvTranspose" and (extents[2:] + pads < reach).any():
            return False
    return True
