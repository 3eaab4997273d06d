"""Finds input sets on which the original itself overflows.

A structural zero times Inf is NaN, so a fold spreads such a value to its neighbours, by design and
within one sample. Random inputs may be larger than the model was made for.
"""

from __future__ import annotations

import numpy as np
import onnx

from widthfold_onnx.evidence.model_runs import attempt
from widthfold_onnx.evidence.parity.reference import MAX_BYTES, Reference
from widthfold_onnx.model.loader import load_with_data
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.proto.walk import operator_of
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.runtime.sessions.session import Level


def overflow(reference: Reference, number: int) -> str:
    """Name a linear node of the main graph that reads or gives NaN or Inf on an input set.

    The sentence is "" where there is no such node, or the original does not run so.
    """
    nodes: list[onnx.NodeProto] = []

    def showing_all() -> onnx.ModelProto:
        model = load_with_data(reference.model, MAX_BYTES)
        nodes.extend(node for node in model.graph.node if operator_of(node) in OPERATORS)
        values = {name for node in model.graph.node for name in node.output}
        values &= {name for node in nodes for name in (*node.input, *node.output)}
        for name in sorted(values - {value.name for value in model.graph.output}):
            model.graph.output.add().name = name
        return model

    sets = [reference.sets[number]]
    runs = attempt(showing_all, reference.options, Level.DISABLED, sets, reference.report)
    if isinstance(runs, str):
        return ""
    for node in nodes:
        for verb, names in (("reads", node.input), ("gives", node.output)):
            for value in (runs[0][name] for name in names if name in runs[0]):
                lost = np.count_nonzero(~np.isfinite(value)) if value.dtype.kind == "f" else 0
                if lost:
                    return (
                        f"{describe_node(node)} of the original {verb} NaN or Inf there "
                        f"({lost} of {value.size} values), which a fold may spread"
                    )
    return ""
