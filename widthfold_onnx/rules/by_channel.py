"""What can be computed channel by channel: a Conv as sums of Convs that have one channel.

Rule: y[m] = b[m] + sum over c of W[m, c] * x[c], a Conv of one channel each, so that every channel
    is a tensor [N, 1, *spatial] of its own, and a batch fold makes a depthwise Conv of each.
Requires: a Conv with one group; ops between such Convs in which no channel meets another.
Rewrites: nothing here; `rewrite.by_channel` does.
Refuses: every other op, before which channels are joined again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.domain import is_default
from widthfold_onnx.model.graph import Document, Graph, Node, Value
from widthfold_onnx.model.order import nodes_of
from widthfold_onnx.rules.carry import BROADCASTING, MIN_OPSET, UNARY
from widthfold_onnx.rules.reading import group_of

RANK = 4
"""Axes of the tensors: the CPU's depthwise kernels exist for two spatial axes only."""

MAX_PARTS = 64
"""Convs of one channel in the place of one Conv: each is a pass over a channel. Chains of 8 -> 8
3x3 and 5x5 at batch 16 ran at 0.8x to 1.2x so (ONNX Runtime 1.31.1, AVX-512), of 4 -> 4 at 1.6x to
2.0x."""

ELEMENTWISE = UNARY | BROADCASTING | {"Clip"}


def is_single(document: Document, node: Node) -> bool:
    """Whether a node is a small Conv of one group over two axes, its weight and bias constant."""
    if not is_default(node, "Conv") or node.device_configurations or group_of(node) != 1:
        return False
    known = [document.constant(value) for value in node.inputs[1:] if value is not None]
    shapes = [constant.shape for constant in known if isinstance(constant, Constant)]
    return (
        len(shapes) == len(known) > 0
        and len(shapes[0]) == RANK
        and math.prod(shapes[0][:2]) <= MAX_PARTS
    )


def members(document: Document, graph: Graph, convs: Collection[Node]) -> dict[Node, int]:
    """The nodes that are computed channel by channel, with the channels that they return.

    Args:
        document: the model.
        graph: holds the nodes.
        convs: those for which `is_single` holds and that are to be.
    """
    found: dict[Node, int] = {}
    known: dict[Value, int] = {}
    for node in nodes_of(graph):
        channels = _outputs(document, node) if node in convs else _kept(document, node, known)
        if channels is not None:
            found[node] = known[node.outputs[0]] = channels
    return found


def _outputs(document: Document, conv: Node) -> int:
    """Output channels of a Conv."""
    weight = conv.inputs[1]
    assert weight is not None
    constant = document.constant(weight)
    assert isinstance(constant, Constant)
    return constant.shape[0]


def _kept(document: Document, node: Node, known: Mapping[Value, int]) -> int | None:
    """The channels of all data of an elementwise op; None where it is none, or they differ."""
    fits = (
        is_default(node, *ELEMENTWISE)
        and document.opset >= MIN_OPSET
        and len(node.outputs) == 1
        and not node.device_configurations
    )
    values = [value for value in node.inputs if value is not None] if fits else []
    counts = {known[value] for value in values if value in known}
    rest = (document.constant(value) for value in values if value not in known)
    alike = all(
        isinstance(c, Constant) and math.prod(c.shape) == 1 and len(c.shape) <= RANK for c in rest
    )
    return counts.pop() if len(counts) == 1 and alike else None
