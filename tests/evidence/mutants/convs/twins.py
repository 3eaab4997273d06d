"""Faults between two sites: what belongs to one is used for the other."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from tests.evidence.mutants.folded import Fault, Folded, line


def twin(folded: Folded) -> list[onnx.NodeProto]:
    """The line of the second site, if there is one."""
    for conv in folded.others:
        before, after = line(folded.graph, conv)
        return [*before, conv, *after]
    return []


def with_twin(change: Callable[[Folded, list[onnx.NodeProto]], object]) -> Fault:
    def fault(folded: Folded) -> bool:
        other = twin(folded)
        if other:
            change(folded, other)
        return bool(other)

    return fault


def conv_in(nodes: list[onnx.NodeProto]) -> onnx.NodeProto:
    return next(n for n in nodes if n.op_type == "Conv")


def shared_weight(folded: Folded, other: list[onnx.NodeProto]) -> None:
    conv_in(other).input[1] = folded.conv.input[1]


def shared_bias(folded: Folded, other: list[onnx.NodeProto]) -> None:
    conv_in(other).input[2] = folded.conv.input[2]


def shared_fold(folded: Folded, other: list[onnx.NodeProto]) -> None:
    """The second Conv reads the packed tensor of the first."""
    conv_in(other).input[0] = folded.conv.input[0]


def crossed_weights(folded: Folded, other: list[onnx.NodeProto]) -> None:
    mine, its = folded.conv, conv_in(other)
    mine.input[1], its.input[1] = its.input[1], mine.input[1]


def crossed_outputs(folded: Folded, other: list[onnx.NodeProto]) -> None:
    mine, its = folded.chain[-1], other[-1]
    mine.output[0], its.output[0] = its.output[0], mine.output[0]


def crossed_inputs(folded: Folded, other: list[onnx.NodeProto]) -> None:
    mine, its = folded.chain[0], other[0]
    mine.input[0], its.input[0] = its.input[0], mine.input[0]


def crossed_unfolds(folded: Folded, other: list[onnx.NodeProto]) -> None:
    mine, its = folded.after[0], other[other.index(conv_in(other)) + 1]
    mine.input[0], its.input[0] = its.input[0], mine.input[0]
    nodes = sorted(folded.graph.node, key=lambda n: n in folded.after or n.name == "last")
    del folded.graph.node[:]
    folded.graph.node.extend(nodes)


FAULTS: dict[str, Fault] = {
    "twin.shared_weight": with_twin(shared_weight),
    "twin.shared_bias": with_twin(shared_bias),
    "twin.shared_fold": with_twin(shared_fold),
    "twin.crossed_weights": with_twin(crossed_weights),
    "twin.crossed_outputs": with_twin(crossed_outputs),
    "twin.crossed_inputs": with_twin(crossed_inputs),
    "twin.crossed_unfolds": with_twin(crossed_unfolds),
}
