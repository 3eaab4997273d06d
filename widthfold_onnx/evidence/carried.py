"""An op that was carried: is it the original op, on the same values in another state?

It is the same operator with the same attributes. Each input is either packed, and claims to be the
same value in the same state as the output; or a constant, which must give every element of the
packed output the number that it gives the same element of the natural one. Operators that act on
each element alone then return what they claim. Concat is run on labels. Those that act along some
axes are run on integers, and what they return is compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.claims import Claim, concrete, content, read
from widthfold_onnx.evidence.probe import EXACT_BELOW, LARGEST, Side, run_side
from widthfold_onnx.evidence.rewritten import Rewritten
from widthfold_onnx.fold.state import State
from widthfold_onnx.model.graph import Node, Value
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.rules.along import ALONG
from widthfold_onnx.rules.carry import BROADCASTING, UNARY
from widthfold_onnx.text import printable

Array = npt.NDArray[Any]

LONG = 37
"""For an open extent along which an op may act: more than most kernels cover."""


@dataclass(frozen=True)
class _Step:
    """A node of the original and the one that stands for it.

    Attributes:
        data: claims of the packed inputs, by index.
        result: claim of the first output.
        shape: its natural extents at which it is checked.
    """

    graph: Rewritten
    before: Node
    after: Node
    data: dict[int, Claim]
    result: Claim
    state: State
    shape: tuple[int, ...]
    options: VerifyOptions

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """Extents of the packed output."""
        return tuple(self.state.packed(np.broadcast_to(np.int8(0), self.shape)).shape)

    def constants(self, index: int) -> tuple[Array, Array]:
        """The numbers of an input, before and after."""
        one, other = self.before.inputs[index], self.after.inputs[index]
        assert one is not None
        assert other is not None
        return read(self.graph.old, one), read(self.graph.new, other)

    def integer(self, name: str, default: int) -> int:
        """An attribute; both nodes have the same."""
        found = self.before.attributes.get(name)
        return default if found is None else found.as_int()


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
    rule(_Step(graph, before, node, data, results[0], state, concrete(results[0].shape), options))


def _signature(document: Any, node: Node) -> list[object]:
    """All of a node but its names."""
    message = document.message(node)
    attributes = sorted(a.SerializeToString(deterministic=True) for a in message.attribute)
    return [node.op_type, node.domain, attributes, len(node.inputs), len(node.outputs)]


def _pointwise(step: _Step) -> None:
    """Input 0 is data; all others are scalars by definition."""
    if set(step.data) != {0} or step.data[0].shape != step.result.shape:
        raise Mismatch("its input has other extents than its output")
    _check_others(step)


def _check_others(step: _Step) -> None:
    """All inputs but the first are the same on both sides."""
    for old, new in list(zip(step.before.inputs, step.after.inputs, strict=True))[1:]:
        if old is not None and new is not None and not _alike(step.graph, old, new):
            raise Mismatch(f"{printable(old.name or '')} is another on both sides")


def _alike(graph: Rewritten, old: Value, new: Value) -> bool:
    """Whether a value that is read as it is is the same on both sides."""
    try:
        return content(read(graph.old, old)) == content(read(graph.new, new))
    except Mismatch:
        return old.name == new.name


def _broadcasting(step: _Step) -> None:
    for index in range(len(step.before.inputs)):
        if index not in step.data:
            _check_constant(step, index, *step.constants(index))
        elif step.data[index].shape != step.result.shape:
            raise Mismatch(f"input {index} has other extents than the output")


def _per_channel(step: _Step, axis: int) -> None:
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


def _check_constant(step: _Step, index: int, old: Array, new: Array) -> None:
    """Every element of the packed output meets the number that it meets in the original."""
    try:
        numbers = step.state.packed(np.broadcast_to(old, step.shape))
        if content(numbers) == content(np.broadcast_to(new, step.packed_shape)):
            return
    except ValueError as error:
        raise Mismatch(f"constant {index} has other extents: {printable(str(error))}") from error
    raise Mismatch(f"constant {index} is not the original's, packed like the data")


def _normalization(step: _Step) -> None:
    if step.integer("training_mode", 0) or not step.integer("spatial", 1):
        raise Mismatch("it computes statistics")
    _per_channel(step, 1)
    channels = step.packed_shape[1]
    if any(step.constants(i)[1].shape != (channels,) for i in range(1, 5)):
        raise Mismatch("its statistics are of other channels")


def _quantization(step: _Step) -> None:
    if step.integer("block_size", 0):
        raise Mismatch("its scale differs along blocks")
    _per_channel(step, step.integer("axis", 1))


def _concat(step: _Step) -> None:
    """Move elements: it is run on labels that differ between inputs."""
    if len(step.data) != len(step.before.inputs):
        raise Mismatch("an input is not packed")
    axis = step.integer("axis", 0)
    natural: list[Array] = []
    for claim in step.data.values():
        shape = concrete(claim.shape)
        first = sum(a.size for a in natural)
        natural.append(np.arange(first, first + int(np.prod(shape))).reshape(shape))
    try:
        wanted = step.state.packed(np.concatenate(natural, axis))
        found = np.concatenate([step.state.packed(a) for a in natural], axis)
    except ValueError as error:
        raise Mismatch(f"the inputs do not fit: {printable(str(error))}") from error
    if np.concatenate(natural, axis).shape != step.shape or content(wanted) != content(found):
        raise Mismatch("it joins along a folded axis")


def _along(step: _Step) -> None:
    """Act along axes: the same node is run on integers, natural and packed."""
    if set(step.data) != {0}:
        raise Mismatch("another input than the first is packed")
    _check_others(step)
    shape = concrete(step.data[0].shape, LONG)
    sides = []
    for document, node in ((step.graph.old, step.before), (step.graph.new, step.after)):
        constants = {v.name or "": read(document, v) for v in node.inputs[1:] if v is not None}
        sides.append(Side([document.message(node)], constants, document.opset, []))
    after = replace(sides[1], reads=step.state, returns=step.state)
    kinds = [a.dtype for a in sides[0].constants.values() if a.dtype.name in EXACT_BELOW]
    data = np.random.default_rng(0).integers(-LARGEST, LARGEST, shape)
    data = data.astype(kinds[0] if kinds and step.before.op_type == "Pad" else np.float32)
    wanted = run_side(sides[0], [], data, step.options)
    try:
        found = run_side(after, [], data, step.options)
        alike = content(after.packed(wanted)) == content(found)
    except (UnverifiedError, ValueError) as error:
        raise Mismatch(f"it does not run packed: {printable(str(error))}") from error
    fits = [e in (None, size) for e, size in zip(step.result.shape, wanted.shape, strict=True)]
    if not all(fits) or not alike:
        raise Mismatch("it acts along a folded axis")


Rule = Callable[[_Step], None]
RULES: dict[str, Rule] = {
    **dict.fromkeys(UNARY, _pointwise),
    **dict.fromkeys(BROADCASTING, _broadcasting),
    **dict.fromkeys(ALONG, _along),
    "BatchNormalization": _normalization,
    "Clip": _pointwise,
    "Concat": _concat,
    "DequantizeLinear": _quantization,
    "QuantizeLinear": _quantization,
}
"""By operator: what makes it the same in every state."""
