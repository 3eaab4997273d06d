"""Opens extents of the values that a Loop carries, where an iteration may change them.

Declared extents may be wrong. One of a carried value is trusted only if it is an invariant: the
initial value has it, and the body, given it, returns it by inference alone. All others are opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from widthfold_onnx.model.proto.dims import Dims, dims_of, shapes_of
from widthfold_onnx.model.proto.walk import subgraphs
from widthfold_onnx.model.shapes.propagate import infer

CARRIED_FROM = 2
"""Inputs of a Loop body before the carried values: iteration and condition (ONNX, Loop)."""


def settle_loops(outline: onnx.ModelProto) -> None:
    """Open every extent of a Loop body in a skeleton that is no invariant."""
    bodies = [body for _, body, _ in _loops(outline.graph, {})]
    for body in bodies:
        del body.value_info[:]
        for value in body.output:
            _open(value, [True] * len(value.type.tensor_type.shape.dim))
    changed = bool(bodies)
    while changed:
        changed = False
        inferred = infer(outline)
        for body, (node, found, outer) in zip(bodies, _loops(inferred.graph, {}), strict=True):
            inner = shapes_of(found)
            for i, value in enumerate(body.input[CARRIED_FROM:]):
                declared = dims_of(value) or ()
                first = outer.get(node.input[CARRIED_FROM + i])
                turned = inner.get(found.output[1 + i].name)
                wrong = [
                    extent is not None and (extent != _at(first, d) or extent != _at(turned, d))
                    for d, extent in enumerate(declared)
                ]
                changed |= any(wrong)
                _open(value, wrong)


def _loops(
    graph: onnx.GraphProto, outer: Mapping[str, Dims]
) -> Iterator[tuple[onnx.NodeProto, onnx.GraphProto, Mapping[str, Dims]]]:
    """Yield every Loop with its body and the shapes known around it, outer ones first."""
    known = {**outer, **shapes_of(graph)}
    for node in graph.node:
        for body in subgraphs(node):
            if node.op_type == "Loop":
                yield node, body, known
            yield from _loops(body, known)


def _at(dims: Dims | None, index: int) -> int | None:
    return dims[index] if dims is not None and index < len(dims) else None


def _open(value: onnx.ValueInfoProto, which: list[bool]) -> None:
    for dim, is_open in zip(value.type.tensor_type.shape.dim, which, strict=True):
        if is_open:
            dim.Clear()
