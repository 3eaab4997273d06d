"""Infers the extents and element type of every value of a model.

A dimension is a number, or None where the model leaves it open. With `pins` the given input
shapes are assumed: that table serves planning only, the model itself is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.shapes.evaluation import Evaluation
from widthfold_onnx.model.shapes.fact import Fact, of_type
from widthfold_onnx.options import Shapes
from widthfold_onnx.text import printable


class ShapeTable:
    """Shapes by scope path (`model.graph.messages.Scope.path`) and value name.

    Raises:
        UsageError: a pin names no input, or contradicts the model.
    """

    def __init__(self, proto: onnx.ModelProto, pins: Shapes) -> None:
        inputs = {value.name: of_type(value.type) for value in proto.graph.input}
        if proto.ir_version < 4:  # what is stored cannot be given by a caller
            for tensor in proto.graph.initializer:
                inputs.pop(tensor.name, None)
        self._facts = Evaluation(proto, {**inputs, **_pinned(inputs, pins)}).facts

    def get(self, path: str, name: str) -> Dims | None:
        """Return the shape of a value seen from a scope; None if not even the rank is known."""
        fact = self._facts.get(path, {}).get(name)
        return fact.dims if fact else None

    def element(self, path: str, name: str) -> int:
        """Return the element type of a value seen from a scope, as ONNX number; 0 if unknown."""
        fact = self._facts.get(path, {}).get(name)
        return fact.kind if fact else onnx.TensorProto.UNDEFINED


def _pinned(inputs: Mapping[str, Fact], pins: Shapes) -> dict[str, Fact]:
    """Return what is known of inputs by their assumed extents."""
    pinned = {}
    for name, shape in pins.items():
        if name not in inputs:
            known = ", ".join(printable(n) for n in inputs)
            raise UsageError(f"--input-shape: no input {printable(name)}; inputs are {known}")
        declared = inputs[name].dims
        fits = declared is None or (
            len(declared) == len(shape)
            and all(d in (None, s) for d, s in zip(declared, shape, strict=True))
        )
        if not fits:
            raise UsageError(
                f"--input-shape: {printable(name)} is declared {declared}, not {tuple(shape)}"
            )
        pinned[name] = Fact(inputs[name].kind, tuple(shape))
    return pinned
