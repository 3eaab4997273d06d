"""Compute numbers that follow from constants and extents, by onnx's reference implementation.

An operator that only moves elements is run on their indices instead, so that unknown elements move
along. A computed element is known if all its operands are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from widthfold_onnx.arrays import Array, size_of
from widthfold_onnx.model.proto.constant_folding import run_reference
from widthfold_onnx.model.shapes.fact import Fact

MOVED_INPUTS: Mapping[str, tuple[int, ...] | None] = {
    **dict.fromkeys(
        (
            *("Compress", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity"),
            *("Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
        ),
        (0,),
    ),
    "Concat": None,
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Where": (1, 2),
}
"""By operator the inputs whose elements are moved, None for all; other inputs say where to."""

COMPUTED_ELEMENTWISE = frozenset(
    {
        *("Abs", "Add", "And", "Cast", "Ceil", "Div", "Equal", "Floor", "Greater"),
        *("GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or"),
        *("Sign", "Sqrt", "Sub", "Where", "Xor"),
    }
)
"""Operators whose result at an index depends on the operands there, and is rounded at most once."""

OF_INTEGERS = frozenset(
    {
        *("ArgMax", "ArgMin", "ConstantOfShape", "CumSum", "NonZero", "Pad", "Range", "ReduceMax"),
        *("ReduceMin", "ReduceProd", "ReduceSum", "Sum", "Trilu"),
    }
)
"""Operators that are computed if all operands are known integers; floats would be added in an
order that the runtime chooses."""

MAX_CAST = 2.0**53
"""Floats from here on are not cast to whole numbers: a runtime may return any."""

EVALUATED = frozenset({*MOVED_INPUTS, *COMPUTED_ELEMENTWISE, *OF_INTEGERS})

BROADCAST_OPSET = 7
"""Operator set since which elementwise operators broadcast as numpy does."""

MAX_UNKNOWN = 128
"""Most elements of a tensor without known ones that moves together with known ones: the pads of a
tensor of rank 64."""


def computed(node: onnx.NodeProto, opset: int, inputs: Sequence[Fact | None]) -> list[Array]:
    """Compute the outputs of a node, as far as they follow from the numbers that are known.

    Args:
        node: a node whose operator is in `EVALUATED`, of the default domain.
        opset: version of the default domain.
        inputs: by position; None where one is left out.

    Returns:
        The outputs, with None for elements that are not known; [] if nothing is known of them.
    """
    name = node.op_type
    if name in COMPUTED_ELEMENTWISE and opset < BROADCAST_OPSET and len(inputs) > 1:
        return []
    try:
        if all(fact is None or fact.is_whole for fact in inputs):
            return _compute_all(node, opset, [None if f is None else f.numbers for f in inputs])
        positions = MOVED_INPUTS.get(name, ())
        move_flags = [positions is None or i in positions for i in range(len(inputs))]
        pairs = zip(inputs, move_flags, strict=True)
        if all(moves or fact is None or fact.is_whole for fact, moves in pairs):
            return [] if _reduces(node) else _move(node, opset, inputs, move_flags)
        return _compute_known(node, opset, inputs) if name in COMPUTED_ELEMENTWISE else []
    except (LookupError, ValueError):  # it lacks an input, or they do not fit
        return []


def _reduces(node: onnx.NodeProto) -> bool:
    return any(a.name == "reduction" and a.s not in (b"", b"none") for a in node.attribute)


def _compute_all(
    node: onnx.NodeProto, opset: int, arguments: Sequence[Array | None]
) -> list[Array]:
    """Compute a node on numbers; [] where a runtime may return other numbers, or crash."""
    arrays = [array for array in arguments if array is not None]
    has_floats = any(array.dtype.kind == "f" for array in arrays)
    if node.op_type in OF_INTEGERS and has_floats:
        return []
    if node.op_type in ("Div", "Mod") and not has_floats and not arrays[1].all():
        return []
    if node.op_type == "Cast" and has_floats:
        is_small = np.abs(arrays[0].astype(np.float64)) < MAX_CAST
        return (run_reference(node, arguments, opset) or []) if is_small.all() else []
    return run_reference(node, arguments, opset) or []


def _move(
    node: onnx.NodeProto, opset: int, inputs: Sequence[Fact | None], move_flags: Sequence[bool]
) -> list[Array]:
    """Move the indices of elements instead of the elements."""
    elements: list[object] = []
    arrays = []
    for fact, moves in zip(inputs, move_flags, strict=True):
        if fact is None or not moves:
            arrays.append(None if fact is None else fact.numbers)
            continue
        new_elements = _elements_of(fact)
        if new_elements is None:
            return []
        indices = np.arange(len(elements), len(elements) + len(new_elements))
        arrays.append(indices.reshape([n or 0 for n in fact.dims or ()]))
        elements += new_elements
    results = run_reference(node, arrays, opset) or []
    return [np.array([elements[i] for i in p.ravel()], object).reshape(p.shape) for p in results]


def _elements_of(fact: Fact) -> list[object] | None:
    """Return the elements of a tensor; if none is known, up to `MAX_UNKNOWN` times None."""
    if fact.numbers is not None:
        return list(fact.numbers.ravel().tolist())
    size = None if fact.dims is None else size_of(fact.dims)
    return None if size is None or size > MAX_UNKNOWN else [None] * size


def _compute_known(node: onnx.NodeProto, opset: int, inputs: Sequence[Fact | None]) -> list[Array]:
    """Compute the elements that follow; the number 1 stands in for unknown elements."""
    arguments: list[Array | None] = []
    masks = []
    for fact in inputs:
        if fact is None or fact.numbers is None:
            return []
        is_open = np.array([n is None for n in fact.numbers.ravel()]).reshape(fact.numbers.shape)
        dtype = helper.tensor_dtype_to_np_dtype(fact.element_type)
        arguments.append(np.where(is_open, 1, fact.numbers).astype(dtype))
        masks.append(is_open)
    results = _compute_all(node, opset, arguments)
    for i, result in enumerate(results):
        results[i] = result.astype(object)
        for is_open in masks:
            results[i][np.broadcast_to(is_open, result.shape)] = None
    return results
