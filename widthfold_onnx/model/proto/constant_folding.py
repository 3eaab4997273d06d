"""Run single nodes by onnx's reference implementation, and evaluate nodes on constants.

`run_reference` runs one node on arrays: constants, extents and proofs need it.

`evaluated` computes constants that become part of the new model. So it takes only operators and
element types for which ONNX Runtime computes the very same bits (compared in
tests/model/test_constants.py). Moves of elements take any type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import note_swallowed
from widthfold_onnx.model.proto.tensors import has_arrays, is_external
from widthfold_onnx.model.proto.walk import copy_of, domain_name, is_default
from widthfold_onnx.refusal import Code, Refusal

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

CACHED_EVALUATORS = 1024

QUANTIZING_OPSET = 21
"""First operator set in which the reference implementation has DequantizeLinear and QuantizeLinear.
Nodes of older ones are run in it: they have fewer attributes and types, and return the same."""


def run_reference(
    node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int
) -> list[Array] | None:
    """Run a node; None where the reference implementation does not know the operator.

    Raises:
        ValueError: it fails on these inputs.
    """
    if is_default(node, "DequantizeLinear", "QuantizeLinear"):
        opset = max(opset, QUANTIZING_OPSET)
    message = copy_of(node)
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
        note_swallowed(f"{node.op_type} cannot be computed")
        shapes = ", ".join(str(list(np.shape(a))) for a in inputs if a is not None)
        raise ValueError(f"fails on inputs of {shapes}") from error
    if not all(isinstance(result, np.ndarray | np.generic) for result in results):
        return None
    return [np.asarray(result) for result in results]


@lru_cache(CACHED_EVALUATORS)
def _evaluator(message: bytes, kinds: tuple[int, ...], opset: int) -> ReferenceEvaluator | None:
    from onnx.reference import ReferenceEvaluator  # takes long to import; timing needs none

    node = onnx.NodeProto.FromString(message)
    declarations = [
        helper.make_tensor_value_info(f"i{i}", kind, None) for i, kind in enumerate(kinds) if kind
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "node", declarations, outputs)
    opsets = [helper.make_opsetid(node.domain, opset)]
    if node.domain:
        opsets.append(helper.make_opsetid("", 21))
    try:
        return ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))
    except Exception:
        # It raises different errors for unknown operators and versions.
        note_swallowed(f"{node.op_type} is not known to the reference implementation")
        return None


MAX_CONSTANT_ELEMENTS = 1 << 26
"""Most elements of all results in one model: 256 MiB in float32, as the largest folded weight."""
PLAIN_MOVES = ("Reshape", "Squeeze", "Transpose", "Unsqueeze")
FOLDABLE = frozenset({*PLAIN_MOVES, "Cast", "DequantizeLinear", "QuantizeLinear"})
"""Operators that are evaluated for weights, besides Constant and Identity."""

_INTEGERS = ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "BOOL")
_FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")
_QUANTIZED = ("INT8", "UINT8", "INT16", "UINT16")

LITERALS: Mapping[str, type[np.generic]] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}
"""Attributes of a Constant node that hold numbers without a tensor, with their types."""


Content = onnx.TensorProto | onnx.SparseTensorProto | Array


def literal(node: onnx.NodeProto) -> Content | None:
    """Return the content of a Constant node: a tensor, or its numbers; None if it holds strings."""
    content: Content | None = None
    for attribute in node.attribute:
        if attribute.name == "value":
            content = attribute.t
        elif attribute.name == "sparse_value":
            content = attribute.sparse_tensor
        elif attribute.name in LITERALS:
            content = np.array(helper.get_attribute_value(attribute), LITERALS[attribute.name])
    return content


def too_large() -> Refusal:
    """Return the refusal to evaluate more than `MAX_CONSTANT_ELEMENTS`."""
    return Refusal(
        Code.TOO_LARGE, f"constants of more than {MAX_CONSTANT_ELEMENTS} elements are not evaluated"
    )


def dense(sparse: onnx.SparseTensorProto) -> Array | Refusal:
    """Return a sparse tensor of at most `MAX_CONSTANT_ELEMENTS` as a dense array.

    Its indices count the elements, or are one index per axis (ONNX, SparseTensorProto).
    """
    shape = tuple(sparse.dims)
    if math.prod(shape) > MAX_CONSTANT_ELEMENTS:
        return too_large()
    if is_external(sparse.values) or is_external(sparse.indices):
        return Refusal(Code.NOT_CONSTANT, "a sparse tensor lies in another file")
    try:
        values = numpy_helper.to_array(sparse.values)
        indices = numpy_helper.to_array(sparse.indices)
        if indices.ndim == 2:
            indices = np.ravel_multi_index(tuple(indices.T), shape)
        array = np.zeros(shape, values.dtype)
        array.reshape(-1)[indices] = values
    except (ValueError, IndexError, TypeError):
        reason = "a sparse tensor is broken: its indices or values do not fit its shape"
        return Refusal(Code.NOT_CONSTANT, reason)
    return array


def evaluated(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> Array | Refusal:
    """Evaluate a node on constants, as the runtime does.

    Args:
        node: an operator of `FOLDABLE` of the default domain, or a Constant.
        inputs: by position; None where an optional one is left out.
        opset: of the default domain.
    """
    if node.op_type == "Constant":
        content = literal(node)
        if isinstance(content, onnx.SparseTensorProto):
            return dense(content)
        if isinstance(content, np.ndarray):
            return content
        return Refusal(Code.NOT_CONSTANT, "a Constant holds no numbers")
    objection = _objection(node, inputs)
    if objection:
        return Refusal(Code.NOT_CONSTANT, f"{node.op_type} {objection} is not evaluated")
    try:
        results = run_reference(node, inputs, opset)
    except ValueError as error:
        return Refusal(Code.NOT_CONSTANT, f"{node.op_type} {error}")
    return results[0] if results else Refusal(Code.NOT_CONSTANT, f"{node.op_type} is not evaluated")


def _objection(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> str:
    """Return why a node is not evaluated, "" if it is."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    data = inputs[0] if inputs else None
    if data is None or any(a.ref_attr_name for a in node.attribute):
        return "without input, or with an attribute of a function"
    kind = _dtype(data)
    if node.op_type == "Cast":
        to = onnx.TensorProto.DataType.Name(attributes.get("to", 0))
        is_known = kind in (*_INTEGERS, *_FLOATS) and to in (*_INTEGERS, *_FLOATS)
        is_known = is_known and has_arrays(attributes["to"])
        # Floats out of the range of integers are undefined. From double to float16 the runtime
        # rounds twice, by way of float.
        is_inexact = (kind in _FLOATS and to in _INTEGERS) or (kind, to) == ("DOUBLE", "FLOAT16")
        return f"from {kind} to {to}" if is_inexact or not is_known else ""
    if node.op_type in PLAIN_MOVES:
        return ""
    scale, zero = (*inputs[1:], None, None)[:2]
    vectors = [array for array in (scale, zero) if array is not None]
    if scale is None or not all(_fits(v, data, attributes.get("axis", 1)) for v in vectors):
        return "with other than one scale, or one for each position of an axis,"
    names = [name for name in ("block_size", "output_dtype", "precision") if attributes.get(name)]
    if names:
        return f"with {', '.join(names)}"
    if node.op_type == "DequantizeLinear":
        is_exact = kind in (*_QUANTIZED, "INT32") and _dtype(scale) in ("FLOAT", "FLOAT16")
        return "" if is_exact else f"of {kind} with a scale of {_dtype(scale)}"
    # The runtime converts float16 to float32 before it divides, the reference does not.
    to = "UINT8" if zero is None else _dtype(zero)
    is_exact = (kind, _dtype(scale)) == ("FLOAT", "FLOAT") and to in _QUANTIZED
    return "" if is_exact else f"of {kind} to {to}"


def _fits(scale: Array, data: Array, axis: int) -> bool:
    if scale.size == 1 and scale.ndim < 2:
        return True
    return -data.ndim <= axis < data.ndim and scale.shape == (data.shape[axis],)


def _dtype(array: Array) -> str:
    return str(onnx.TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(array.dtype)))
