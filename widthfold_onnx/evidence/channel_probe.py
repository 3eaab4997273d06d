"""A Conv and the Convs of one channel that stand for it, run on small integers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx
from onnx import helper

from widthfold_onnx.evidence.claims import FREE_POSITIONS, FREE_SAMPLES, read
from widthfold_onnx.evidence.probe import Array, Side, first_difference
from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.rules.reading import integers

DATA, RESULT = "widthfold_data", "widthfold_result"

Product = tuple[int, int]
"""Output and input channel of a Conv of one channel."""


def probe_channels(
    old: Document,
    conv: Node,
    new: Document,
    nodes: Mapping[Node, Product | None],
    options: VerifyOptions,
) -> str:
    """Where a Conv and the nodes in its place differ on integers, "" if nowhere.

    Args:
        old: the original.
        conv: a Conv of it.
        new: the model written channel by channel.
        nodes: the Convs there, and as None the Adds, in an order in which they can run.
        options: where they run.

    Raises:
        UnverifiedError: the runtime cannot run the Conv.
        NoKernelError: it has no kernel for it.
    """
    values = [value for value in conv.inputs[1:] if value is not None]
    names = [value.name or "" for value in values]
    arrays = [read(old, value) for value in values]
    products = {node: product for node, product in nodes.items() if product is not None}

    def split(parameters: list[Array]) -> list[Array]:
        weight, *bias = parameters
        result = []
        for node, (m, c) in products.items():
            given = [weight[m : m + 1, c : c + 1], *(b[m : m + 1] for b in bias)]
            result += given[: len(node.inputs) - 1]
        return result

    one = Side([old.message(conv)], dict(zip(names, arrays, strict=True)), old.opset, names)
    parameters = [v.name or "" for node in products for v in node.inputs[1:] if v is not None]
    constants = dict(zip(parameters, split(arrays), strict=True))
    inputs = arrays[0].shape[1]
    other = Side(_nodes(new, nodes, inputs), constants, new.opset, parameters)
    return first_difference(
        one,
        other,
        fold=split,
        shape=_extents(conv, arrays[0]),
        terms=math.prod(arrays[0].shape[1:]) + 1,
        options=options,
    )


def _extents(conv: Node, weight: Array) -> tuple[int, ...]:
    """Of data of which every weight meets some."""
    rank = weight.ndim - 2
    spans = zip(
        weight.shape[2:],
        integers(conv, "dilations", [1] * rank),
        integers(conv, "strides", [1] * rank),
        strict=True,
    )
    sizes = (d * k + 2 * s + FREE_POSITIONS[0] for k, d, s in spans)
    return (FREE_SAMPLES[0], weight.shape[1], *sizes)


def _nodes(
    new: Document, nodes: Mapping[Node, Product | None], inputs: int
) -> list[onnx.NodeProto]:
    """The nodes between one tensor of all input channels and one of all output channels."""
    channels = [f"{DATA}_{c}" for c in range(inputs)] if inputs > 1 else [DATA]
    first = helper.make_node("Split", [DATA], channels, axis=1)
    if new.opset >= 18:
        first.attribute.append(helper.make_attribute("num_outputs", inputs))
    result = [first] if inputs > 1 else []
    ends: dict[str, None] = {}
    for node, product in nodes.items():
        message = onnx.NodeProto()
        message.CopyFrom(new.message(node))
        if product is not None:
            message.input[0] = channels[product[1]]
        for name in message.input:
            ends.pop(name, None)
        ends[message.output[0]] = None
        result.append(message)
    return [*result, helper.make_node("Concat", list(ends), [RESULT], axis=1)]
