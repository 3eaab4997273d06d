"""Runs one node on arrays by onnx's reference implementation: constants, extents and proofs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from widthfold_onnx.arrays import Array
from widthfold_onnx.model.proto.domain import domain_name, is_default

CACHED = 1024

QUANTIZING = 21
"""Operator set from which on the reference implementation has DequantizeLinear and QuantizeLinear.
They give what those of older ones gave, which have fewer attributes and types."""


def run_reference(
    node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int
) -> list[Array] | None:
    """Run a node; None where the reference implementation does not know the operator.

    Raises:
        ValueError: it fails on these inputs.
    """
    if is_default(node, "DequantizeLinear", "QuantizeLinear"):
        opset = max(opset, QUANTIZING)
    message = onnx.NodeProto()
    message.CopyFrom(node)
    message.name = ""
    message.ClearField("metadata_props")
    message.domain = domain_name(node.domain)
    message.input[:] = [f"i{i}" if a is not None else "" for i, a in enumerate(inputs)]
    message.output[:] = [f"o{i}" for i in range(len(node.output))]
    kinds = tuple(0 if a is None else helper.np_dtype_to_tensor_dtype(a.dtype) for a in inputs)
    evaluator = _evaluator(message.SerializeToString(deterministic=True), kinds, opset)
    if evaluator is None:
        return None
    feeds = {f"i{i}": a for i, a in enumerate(inputs) if a is not None}
    try:
        with np.errstate(all="ignore"):
            results = evaluator.run(None, feeds)
    except Exception as error:
        # The reference implementation raises any error of numpy on inputs that do not fit.
        shapes = ", ".join(str(list(np.shape(a))) for a in inputs if a is not None)
        raise ValueError(f"fails on inputs of {shapes}") from error
    if not all(isinstance(result, np.ndarray | np.generic) for result in results):
        return None
    return [np.asarray(result) for result in results]


@lru_cache(CACHED)
def _evaluator(message: bytes, kinds: tuple[int, ...], opset: int) -> ReferenceEvaluator | None:
    node = onnx.NodeProto.FromString(message)
    described = [
        helper.make_tensor_value_info(f"i{i}", kind, None) for i, kind in enumerate(kinds) if kind
    ]
    ends = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "node", described, ends)
    opsets = [helper.make_opsetid(node.domain, opset)]
    if node.domain:
        opsets.append(helper.make_opsetid("", 21))
    try:
        return ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))
    except Exception:
        # It raises different errors for unknown operators and versions.
        return None
