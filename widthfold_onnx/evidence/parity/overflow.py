"""Finds inputs on which the original itself leaves the range of its numbers.

A structural zero times Inf is NaN, so a fold spreads a non-finite value to its neighbours, by
design and within one sample. Random inputs may be larger than the model was made for;
where they make the original overflow at a linear node, other NaN in an equal model show nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.eight_bits.exact_kernels import open_exact
from widthfold_onnx.evidence.parity.reference import MAX_BYTES, Reference
from widthfold_onnx.evidence.parity.runs import Outputs
from widthfold_onnx.model.proto.domain import operator_of
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.read.loader import load_with_data
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.runtime.sessions.session import Level


def overflowing_sets(reference: Reference, numbers: Sequence[int]) -> dict[int, str]:
    """Say for input sets where a linear node of the main graph reads or gives NaN or Inf, if so.

    Args:
        reference: the original.
        numbers: of the input sets.
    """
    try:
        model = load_with_data(reference.model, MAX_BYTES) if numbers else None
        if model is None:
            return {}
        nodes = [node for node in model.graph.node if operator_of(node) in OPERATORS]
        made = {name for node in model.graph.node for name in node.output}
        shown = {name for node in nodes for name in (*node.input, *node.output)} & made
        for name in sorted(shown - {value.name for value in model.graph.output}):
            model.graph.output.add().name = name
        reference.report(f"looking for NaN and Inf at {len(nodes)} linear nodes")
        session = open_exact(model, reference.options, Level.DISABLED)
        runs = {number: session.run(reference.sets[number].feeds) for number in numbers}
    except UnverifiedError:
        return {}
    places = {number: _place(nodes, values) for number, values in runs.items()}
    return {number: place for number, place in places.items() if place}


def _place(nodes: Sequence[onnx.NodeProto], values: Outputs) -> str:
    """Name the first node with a value that is not finite, "" if there is none."""
    for node in nodes:
        for name in (*node.input, *node.output):
            value = values.get(name)
            if value is None or value.dtype.kind != "f" or np.isfinite(value).all():
                continue
            count = value.size - np.count_nonzero(np.isfinite(value))
            return (
                f"{describe_node(node)} of the original "
                f"{'gives' if name in node.output else 'reads'} NaN or Inf there "
                f"({count} of {value.size} values), which a fold may spread"
            )
    return ""
