"""Infers the extents and element type of every value of a model.

A dimension is a number, or None where the model leaves it open. With `pins` the given input
shapes are assumed: that table serves planning only, the model itself is never changed.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.proto.dims import Dims, declared
from widthfold_onnx.model.proto.walk import inputs
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
        self._facts = Evaluation(proto, inputs_of(proto, pins)).facts

    def get(self, path: str, name: str) -> Dims | None:
        """Return the shape of a value seen from a scope; None if not even the rank is known."""
        fact = self._facts.get(path, {}).get(name)
        return fact.dims if fact else None

    def extents(self, path: str, name: str) -> tuple[int, ...] | None:
        """Return the shape of a value seen from a scope; None if any extent is open."""
        dims = self.get(path, name)
        if dims is None:
            return None
        extents = tuple(n for n in dims if n is not None)
        return extents if len(extents) == len(dims) else None

    def numbers(self, path: str, name: str) -> Array | None:
        """Return the elements of a value that no input changes, None for the others.

        An array of objects if some are unknown; None if all are unknown, or there are many.
        """
        fact = self._facts.get(path, {}).get(name)
        return fact.numbers if fact else None

    def element(self, path: str, name: str) -> int:
        """Return the element type of a value seen from a scope, as ONNX number; 0 if unknown."""
        fact = self._facts.get(path, {}).get(name)
        return fact.kind if fact else onnx.TensorProto.UNDEFINED


def inputs_of(proto: onnx.ModelProto, pins: Shapes) -> dict[str, Fact]:
    """Return the types and extents of the inputs, with the extents that a caller assumes.

    Args:
        proto: the model.
        pins: extents of inputs that are assumed.

    Raises:
        UsageError: a pin names no input, or contradicts the model.
    """
    values = {value.name: value for value in inputs(proto)}
    facts = {name: of_type(value.type) for name, value in values.items()}
    for name, shape in pins.items():
        if name not in facts:
            names = ", ".join(printable(n) for n in facts)
            raise UsageError(f"--input-shape: no input {printable(name)}; inputs are {names}")
        dims = facts[name].dims
        pairs = [] if dims is None else zip(dims, shape, strict=False)
        is_ranked = dims is None or len(dims) == len(shape)
        if not is_ranked or any(extent not in (None, size) for extent, size in pairs):
            raise UsageError(
                f"--input-shape: {printable(name)} is declared "
                f"{_shown(declared(values[name]))}, not {_shown(shape)}"
            )
        facts[name] = Fact(facts[name].kind, tuple(shape))
    return facts


def _shown(dims: Iterable[int | str | None]) -> str:
    """Show extents as `--input-shape` writes them; "?" is an open one without a name."""
    return ",".join("?" if dim is None else printable(str(dim)) for dim in dims) or "a scalar"
