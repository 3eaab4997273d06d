"""An op that was carried: is it the original op, on the same values in another state?

It is the same operator with the same attributes. Each input is either packed, and claims to be the
same value in the same state as the output; or a constant, which must give every element of the
packed output the number that it gives the same element of the natural one. Operators that act on
each element alone then return what they claim. Concat and Split are done to labels. Those that act
along some axes are run on integers, and what they return is compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.carried_along import along, concat, split
from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.claims import Claim, concrete, content
from widthfold_onnx.evidence.rewritten import Rewritten
from widthfold_onnx.evidence.step import Step, check_others
from widthfold_onnx.model.graph import Node
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.rules.along import ALONG
from widthfold_onnx.rules.carry import BROADCASTING, UNARY
from widthfold_onnx.text import printable

Array = npt.NDArray[Any]


def check_passenger(graph: Rewritten, node: Node, options: VerifyOptions) -> None:
    """Check that a carried op returns what it claims.

    Raises:
        Mismatch: it does not; the message says why.
        UnverifiedError: it would need too much memory.
    """
    before = graph.original(node)
    if before is None:
        raise Mismatch("the original has no such node")
    if graph.old.opset != graph.new.opset:
        raise UnverifiedError("the models are of different operator sets")
    rule = RULES.get(node.op_type)
    if rule is None or _signature(graph.old, before) != _signature(graph.new, node):
        raise Mismatch(f"{printable(node.op_type)} is not what the original has there")
    results = [graph.claim(value) for value in node.outputs]
    names = [value.name for value in before.outputs]
    if [r and r.value for r in results] != names or results[0] is None or not results[0].state:
        raise Mismatch("it does not return the values of the original")
    state = results[0].state
    if any(r is None or r.state != state for r in results):
        raise Mismatch("it does not return all values in one state")
    data: dict[int, Claim] = {}
    for index, (old, new) in enumerate(zip(before.inputs, node.inputs, strict=True)):
        if (old is None) != (new is None):
            raise Mismatch(f"input {index} is left out on one side")
        claim = None if new is None else graph.claim(new)
        if old is None or new is None or (claim is not None and claim.state is None):
            continue
        if claim is None or (claim.value, claim.state) != (old.name, state):
            raise Mismatch(f"input {index} is not {printable(old.name or '')} in the same state")
        data[index] = claim
    if not data:
        raise Mismatch("none of its inputs is packed")
    known = [r for r in results if r is not None]
    rule(Step(graph, before, node, data, known, state, concrete(known[0].shape), options))


def _signature(document: Any, node: Node) -> list[object]:
    """All of a node but its names."""
    message = document.message(node)
    attributes = sorted(a.SerializeToString(deterministic=True) for a in message.attribute)
    return [node.op_type, node.domain, attributes, len(node.inputs), len(node.outputs)]


def _pointwise(step: Step) -> None:
    """Input 0 is data; all others are scalars by definition."""
    if set(step.data) != {0} or step.data[0].shape != step.result.shape:
        raise Mismatch("its input has other extents than its output")
    check_others(step)


def _broadcasting(step: Step) -> None:
    for index in range(len(step.before.inputs)):
        if index not in step.data:
            _check_constant(step, index, *step.constants(index))
        elif step.data[index].shape != step.result.shape:
            raise Mismatch(f"input {index} has other extents than the output")


def _per_channel(step: Step, axis: int) -> None:
    """All inputs but the first hold one number, or one per position of an axis, on both sides."""
    if set(step.data) != {0} or step.data[0].shape != step.result.shape:
        raise Mismatch("its input has other extents than its output")
    columns = [
        tuple(-1 if i == axis % rank else 1 for i in range(rank))
        for rank in (len(step.shape), len(step.packed_shape))
    ]
    for index, value in enumerate(step.before.inputs):
        if index and value is not None:
            pair = zip(step.constants(index), columns, strict=True)
            _check_constant(step, index, *(a if a.size == 1 else a.reshape(c) for a, c in pair))


def _check_constant(step: Step, index: int, old: Array, new: Array) -> None:
    """Every element of the packed output meets the number that it meets in the original."""
    try:
        numbers = step.state.packed(np.broadcast_to(old, step.shape))
        if content(numbers) == content(np.broadcast_to(new, step.packed_shape)):
            return
    except ValueError as error:
        raise Mismatch(f"constant {index} has other extents than the data") from error
    raise Mismatch(f"constant {index} is not the original's, packed like the data")


def _normalization(step: Step) -> None:
    if step.integer("training_mode", 0) or not step.integer("spatial", 1):
        raise Mismatch("it computes statistics")
    _per_channel(step, 1)
    channels = step.packed_shape[1]
    if any(step.constants(i)[1].shape != (channels,) for i in range(1, 5)):
        raise Mismatch("its statistics are of other channels")


def _quantization(step: Step) -> None:
    if step.integer("block_size", 0):
        raise Mismatch("its scale differs along blocks")
    _per_channel(step, step.integer("axis", 1))


Rule = Callable[[Step], None]
RULES: dict[str, Rule] = {
    **dict.fromkeys(UNARY, _pointwise),
    **dict.fromkeys(BROADCASTING, _broadcasting),
    **dict.fromkeys(ALONG, along),
    "BatchNormalization": _normalization,
    "Clip": _pointwise,
    "Concat": concat,
    "DequantizeLinear": _quantization,
    "QuantizeLinear": _quantization,
    "Split": split,
}
"""By operator: what makes it the same in every state."""
