"""The new nodes of a site: moves of elements, one Conv, moves of elements.

The proof rests on that: a node that moves elements does to labels what it does to numbers. Any
other node, a Pad with a value or a Slice of padding in the wrong place is a mismatch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.fold.conv_axis import ConvAxis
from widthfold_onnx.fold.state import State
from widthfold_onnx.model.domain import is_default
from widthfold_onnx.model.inference import infer_shapes
from widthfold_onnx.text import printable, quoted

Labels = npt.NDArray[np.signedinteger[Any]]

MAX_ELEMENTS = 1 << 28
"""Of one array that the proof makes."""

MOVES_BEFORE = ("Reshape", "Transpose", "Pad")
MOVES_AFTER = ("Reshape", "Transpose", "DepthToSpace", "Slice")


@dataclass(frozen=True)
class Geometry:
    """A Conv: extents of its input [N, C, *spatial], its spatial axes, its groups."""

    shape: tuple[int, ...]
    axes: tuple[ConvAxis, ...]
    group: int


@dataclass(frozen=True)
class Chain:
    """The new nodes of a site.

    Attributes:
        before: nodes before the Conv.
        axes: geometry of the Conv for an input of given extents.
        group: groups of the Conv.
        after: nodes behind it.
        constants: what the nodes read besides the data.
        opset: of the default domain.
        reads: the state in which the first node finds the input; None for natural.
        returns: the state in which the last node leaves the output.
        zero: the value that stands for 0 in the data, which a Pad appends; "" for 0 itself.
    """

    before: Sequence[onnx.NodeProto]
    axes: Callable[[tuple[int, ...]], tuple[ConvAxis, ...]]
    group: int
    after: Sequence[onnx.NodeProto]
    constants: dict[str, npt.NDArray[Any]]
    opset: int
    reads: State | None = None
    returns: State | None = None
    zero: str = ""


class Mismatch(Exception):  # noqa: N818 - it is a finding, not a fault
    """Where the two sets of products differ."""


def too_large() -> UnverifiedError:
    """What is raised where a proof would need too much memory."""
    return UnverifiedError(f"the probe would need more than {MAX_ELEMENTS} elements")


def replay(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, npt.NDArray[Any]],
    opset: int,
    labels: Labels,
) -> Labels:
    """Run moves on labels, by onnx's reference implementation; what a Pad appends is label 0.

    Raises:
        Mismatch: they do not fit together, or what tells one how to move is no list of integers.
        UnverifiedError: what one returns would need too much memory.
    """
    if not nodes:
        return labels
    nodes = [_plain(node) for node in nodes]
    start, end = nodes[0].input[0], nodes[-1].output[0]
    used = {name for node in nodes for name in node.input[1:]}
    for name in sorted(used):
        told = constants.get(name)
        if told is None or told.ndim != 1 or told.dtype.kind != "i":
            raise Mismatch(f"{quoted(name)} is no list of integers, and tells a move what to do")
    kind = helper.np_dtype_to_tensor_dtype(labels.dtype)
    graph = helper.make_graph(
        nodes,
        "labels",
        [helper.make_tensor_value_info(start, kind, labels.shape)],
        [helper.make_tensor_value_info(end, kind, None)],
        [numpy_helper.from_array(constants[name], name) for name in sorted(used)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made = infer_shapes(model).graph
    for value in (*made.value_info, *made.output):
        if math.prod(d.dim_value for d in value.type.tensor_type.shape.dim) > MAX_ELEMENTS:
            raise too_large()
    try:
        (result,) = ReferenceEvaluator(model).run(None, {start: labels})
    except (ValueError, IndexError, RuntimeError) as error:  # the last of a Transpose
        raise Mismatch(f"the new nodes do not fit together: {printable(str(error))}") from error
    return np.asarray(result)


def packed(labels: Labels, state: State) -> Labels:
    """Natural labels in a state.

    Raises:
        Mismatch: it is none of their extents.
    """
    if not state.fits(labels.shape):
        raise Mismatch(f"an input of {list(labels.shape)} does not fit its state")
    return state.packed(labels)


def unpacked(labels: Labels, state: State, shape: tuple[int, ...]) -> Labels:
    """The natural labels, of extents `shape`, of labels in a state.

    Raises:
        Mismatch: they are not packed from these extents.
    """
    if state.fits(shape):
        empty = state.packed(np.broadcast_to(np.int8(0), shape))
        if empty.shape == labels.shape:
            return state.unpacked(labels, shape)
    raise Mismatch(f"an output of {list(labels.shape)} does not fit its state")


def _plain(move: onnx.NodeProto) -> onnx.NodeProto:
    """A move under the one spelling of its domain, a Pad without the value that it appends."""
    plain = onnx.NodeProto()
    plain.CopyFrom(move)
    plain.domain = ""
    if move.op_type == "Pad":
        del plain.input[2:]
    return plain


def check_moves(nodes: Sequence[onnx.NodeProto], allowed: Collection[str], zero: str = "") -> None:
    """Check that nodes are a straight line of moves.

    Args:
        nodes: the nodes.
        allowed: their operators.
        zero: the value that a Pad appends; "" for 0.

    Raises:
        Mismatch: one of them is something else.
    """
    for node in nodes:
        if not is_default(node, *allowed):
            raise Mismatch(f"{printable(node.op_type)} does more than move elements")
        if node.op_type == "Pad" and not _appends(node, zero):
            raise Mismatch("a Pad adds something else than zeros")
    for first, second in pairwise(nodes):
        if list(first.output) != [second.input[0]]:
            raise Mismatch("the new nodes do not follow each other")


def _appends(node: onnx.NodeProto, zero: str) -> bool:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    plain = attributes.get("mode", b"constant") == b"constant" and not attributes.get("value", 0.0)
    return plain and list(filter(None, node.input[2:])) == list(filter(None, [zero]))


def labels_of(shape: tuple[int, ...]) -> Labels:
    """Consecutive numbers from 1, in 32 bits: a proof costs memory.

    Raises:
        UnverifiedError: they are too many.
    """
    size = math.prod(shape)
    if size > MAX_ELEMENTS:
        raise too_large()
    return np.arange(1, size + 1, dtype=np.int32).reshape(shape)
