"""Infers the extents and element type of every value of a model.

A dimension is a number, or None where the model leaves it open. With `pins` the given input
shapes are assumed: that table serves planning only, the model itself is never changed.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping

import onnx

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.proto.dims import Dims, dims_of, elements_of, shapes_of
from widthfold_onnx.model.proto.walk import body_path
from widthfold_onnx.model.shapes.loops import settle_loops
from widthfold_onnx.model.shapes.propagate import infer
from widthfold_onnx.model.shapes.skeleton import skeleton
from widthfold_onnx.options import Shapes
from widthfold_onnx.text import printable


class ShapeTable:
    """Shapes by scope path (`model.graph.messages.Scope.path`) and value name.

    Raises:
        UsageError: a pin names no input, or contradicts the model.
    """

    def __init__(self, proto: onnx.ModelProto, pins: Shapes) -> None:
        outline = skeleton(proto)
        pin_inputs(outline.graph, pins, {value.name for value in proto.graph.input})
        self._tables: dict[str, Mapping[str, Dims]] = {}
        self._elements: dict[str, Mapping[str, int]] = {}
        settle_loops(outline)
        self._collect(infer(outline).graph, "", ChainMap(), ChainMap())

    def _collect(
        self,
        graph: onnx.GraphProto,
        path: str,
        outer: ChainMap[str, Dims],
        around: ChainMap[str, int],
    ) -> None:
        # A chain, not a copy: many bodies may stand in a large graph.
        table = outer.new_child(shapes_of(graph))
        elements = around.new_child(elements_of(graph))
        # Nodes without outputs and names share a path; the shapes of their bodies stay unknown.
        again = path in self._tables
        self._tables[path] = {} if again else table
        self._elements[path] = {} if again else elements
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    inner = body_path(path, node, attribute.name, None)
                    self._collect(attribute.g, inner, table, elements)
                for index, body in enumerate(attribute.graphs):
                    inner = body_path(path, node, attribute.name, index)
                    self._collect(body, inner, table, elements)

    def get(self, path: str, name: str) -> Dims | None:
        """Return the shape of a value seen from a scope; None if not even the rank is known."""
        return self._tables.get(path, {}).get(name)

    def element(self, path: str, name: str) -> int:
        """Return the element type of a value seen from a scope, as ONNX number; 0 if unknown."""
        return self._elements.get(path, {}).get(name, onnx.TensorProto.UNDEFINED)


def pin_inputs(graph: onnx.GraphProto, pins: Shapes, names: Collection[str]) -> None:
    """Write the assumed extents into the inputs of a skeleton; `names` are the model's own."""
    inputs = {value.name: value for value in graph.input if value.name in names}
    for name, shape in pins.items():
        if name not in inputs:
            known = ", ".join(printable(n) for n in inputs)
            raise UsageError(f"--input-shape: no input {printable(name)}; inputs are {known}")
        value = inputs[name]
        declared = dims_of(value)
        fits = declared is None or (
            len(declared) == len(shape)
            and all(d in (None, s) for d, s in zip(declared, shape, strict=True))
        )
        if not fits:
            raise UsageError(
                f"--input-shape: {printable(name)} is declared {declared}, not {tuple(shape)}"
            )
        value.type.tensor_type.shape.ClearField("dim")
        for extent in shape:
            value.type.tensor_type.shape.dim.add(dim_value=extent)
