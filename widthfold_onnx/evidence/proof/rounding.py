"""Is a difference one of rounding? What leads to a value is computed in float64, in both models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from widthfold_onnx.evidence.proof.correspondence import Side
from widthfold_onnx.evidence.proof.field import Array, key_of
from widthfold_onnx.evidence.proof.operators.polynomials import FLOATS
from widthfold_onnx.evidence.proof.values import Shape
from widthfold_onnx.evidence.reference_ops import OPS
from widthfold_onnx.model.shapes import ShapeTable

DIGITS = {kind: 2.0**-bits for kind, bits in zip(FLOATS, (10, 7, 23, 52), strict=True)}
"""Distance from 1 to the next float of a type."""

UNITS = 64
"""Constants that are rounded move no result by more of these distances, by the largest result."""


def rounded(
    old: Side, new: Side, target: str, given: Mapping[str, Shape], table: ShapeTable
) -> str:
    """Name the operators that the original applies and the new model has rounded into constants.

    Args:
        old: the original.
        new: the new model.
        target: a value that both compute.
        given: extents of what is taken for a variable.
        table: element types of the original.

    Returns:
        The names; "" where the new model applies the same, or where the numbers are not the same.
    """
    applied = [Counter(side.program.scope.nodes[i].op_type for i in side.behind(target, given)[0])
               for side in (old, new)]  # fmt: skip
    merged = sorted(applied[0] - applied[1])
    one, other = (_numbers(side, target, given, table) for side in (old, new))
    if not merged or one is None or other is None or one.shape != other.shape:
        return ""
    digits = DIGITS.get(table.element("", target), DIGITS[FLOATS[2]])
    bound = UNITS * digits * np.abs(one).max(initial=0)
    return ", ".join(merged) if (np.abs(one - other) <= bound).all() else ""


def _numbers(
    side: Side, target: str, given: Mapping[str, Shape], table: ShapeTable
) -> Array | None:
    """Compute a value in float64; None where the reference implementation cannot."""
    nodes, names = side.behind(target, given)
    read = {name for i in nodes for name in side.reads(i)} | {target}
    stored = {name: side.stored(name) for name in (read & side.tensors.keys()) - names}
    constants = [numpy_helper.from_array(_wide(a), n) for n, a in stored.items() if a is not None]
    inputs = [helper.make_tensor_value_info(name, FLOATS[3], None) for name in sorted(names)]
    outputs = [helper.make_tensor_value_info(target, FLOATS[3], None)]
    scope = side.program.scope
    graph = helper.make_graph(
        [scope.nodes[i] for i in sorted(nodes)], "segment", inputs, outputs, constants
    )
    model = helper.make_model(graph, opset_imports=side.program.proto.opset_import)
    feeds = {name: _drawn(name, given[name], table.element("", name)) for name in names}
    try:
        with np.errstate(all="ignore"):
            (result,) = ReferenceEvaluator(model, new_ops=list(OPS)).run(None, feeds)
    except Exception:
        # It raises a different error for every operator that it does not know or cannot compute.
        return None
    return np.asarray(result, np.float64)


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind in "fV" else array


def _drawn(name: str, shape: Shape, kind: int) -> Array:
    rng = np.random.default_rng(key_of("numbers", name))
    numbers = rng.standard_normal(shape)
    if kind in (*FLOATS, onnx.TensorProto.UNDEFINED):
        return numbers
    return np.floor(np.abs(numbers)).astype(helper.tensor_dtype_to_np_dtype(kind))
