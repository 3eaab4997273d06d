"""Write a Conv and a Split of its channels as one Conv for each part.

ONNX Runtime fuses an activation with the Conv before it, and keeps tensors between Convs in its
blocked layout; a Split between them prevents both. Gated layers (WaveNet, Demucs, a Conformer) have
one: Tanh of the first half times Sigmoid of the second.

    before:  x - Pad - Conv C -> 2*O - Split -+- Tanh
                                              +- Sigmoid
    after:   x -+- Pad - Conv C -> O, weight[:O] - Tanh
                +- Pad - Conv C -> O, weight[O:] - Sigmoid

Matches: a Split of channels behind a Conv of one group with constant weights, which nothing else
    reads.
Rewrites: to Convs that read the same data; each has the weights of its channels, and a copy of the
    Pad before the Conv, if nothing else reads that.
Exact: a channel of a Conv depends on the weights of this channel alone, and is the same sum of the
    same products. A runtime may add them up in another order if it computes fewer channels.
Leaves alone: weights from a DequantizeLinear, which a runtime may compute in integers, and parts of
    unknown size.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from widthfold_onnx.model.document import Document, Node, Value, graph_of
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.companions.companion import Exchange, NodeSpec
from widthfold_onnx.rules.quantization import dequantizer


def split(document: Document, node: Node) -> Exchange | None:
    """Return the Convs that compute the parts of a Split; None where it splits no Conv."""
    data, *sizes = node.inputs
    assert data is not None
    if any(isinstance(document.constant(size), Refusal) for size in sizes if size is not None):
        return None
    conv = _sole_maker(document, "Conv", data, node)
    if conv is None or conv.attributes.get_int("group", 1) != 1:
        return None
    signal, *operands = conv.inputs
    assert signal is not None
    weights = [value for value in operands if value is not None]
    constants = [document.constant(value) for value in weights]
    numbers = [document.read(c) for c in constants if not isinstance(c, Refusal)]
    if len(numbers) < len(constants) or any(map(document.is_annotated, weights)):
        return None
    rank = numbers[0].ndim
    shapes = [document.dims(graph_of(node), output) for output in node.outputs]
    parts = [shape[1] or 0 for shape in shapes if shape is not None and len(shape) == rank >= 3]
    if len(parts) < len(shapes) or {array.shape[:1] for array in numbers} != {(sum(parts),)}:
        return None
    axis = node.attributes.get_int("axis", 0)
    if axis not in (1, 1 - rank) or any(map(dequantizer, (signal, *weights))):
        return None
    pads = _pad(document, signal, conv) * len(parts)
    bounds = pairwise(accumulate(parts, initial=0))
    convs = [
        NodeSpec("Conv", (i if pads else signal, *(a[begin:end] for a in numbers)), conv.attributes)
        for i, (begin, end) in enumerate(bounds)
    ]
    return Exchange(node, (*pads, *convs))


def _pad(document: Document, signal: Value, conv: Node) -> list[NodeSpec]:
    """Return a copy of the Pad that only one Conv reads, for each new Conv.

    The runtime merges a Pad with a Conv if nothing else reads it.
    """
    pad = _sole_maker(document, "Pad", signal, conv)
    if pad is None:
        return []
    inputs = tuple(value for value in pad.inputs if value is not None)
    return [NodeSpec("Pad", inputs, pad.attributes)] if len(inputs) == len(pad.inputs) else []


def _sole_maker(document: Document, op_type: str, value: Value, reader: Node) -> Node | None:
    """Return the operator of the same graph that computes a value for one reader alone."""
    maker = value.producer()
    if maker is None or not is_default(maker, op_type) or maker.graph is not reader.graph:
        return None
    is_needed = len(value.uses()) > 1 or document.must_stay(value) or maker.device_configurations
    return None if is_needed else maker
