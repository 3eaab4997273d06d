"""A node that may be carried, with what the rules ask of it and answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.fold.state import State
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules import LINEAR

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Op:
    """A node, and what of its inputs is there in one state.

    Attributes:
        shapes: per input its natural extents; None where it is not there in the state.
    """

    document: Document
    node: Node
    state: State
    shapes: tuple[Dims | None, ...]

    def constant(self, index: int) -> Array | Refusal:
        """The numbers of an input."""
        value = self.node.inputs[index]
        assert value is not None
        constant = self.document.constant(value)
        return constant if isinstance(constant, Refusal) else self.document.read(constant)

    def integer(self, name: str, default: int) -> int:
        """An attribute."""
        found = self.node.attributes.get(name)
        return default if found is None else found.as_int()

    def integers(self, name: str, default: list[int]) -> list[int]:
        """An attribute."""
        found = self.node.attributes.get(name)
        return default if found is None else list(found.as_ints())

    def text(self, name: str, default: str) -> str:
        """An attribute."""
        found = self.node.attributes.get(name)
        return default if found is None else found.as_string()

    def real(self, name: str, default: float) -> float:
        """An attribute."""
        found = self.node.attributes.get(name)
        return default if found is None else found.as_float()

    def overflows(self, factor: Array) -> bool:
        """Whether the weight of a linear op that makes an input, times `factor`, leaves its type.

        A runtime may multiply the two beforehand where they stand side by side.
        """
        most = np.abs(factor).max(initial=0)
        for value in self.node.inputs:
            maker = None if value is None else value.producer()
            operands = maker.inputs[:2] if maker is not None and maker.op_type in LINEAR else ()
            for constant in map(self.document.constant, filter(None, operands)):
                if not isinstance(constant, Refusal):
                    array = self.document.read(constant)
                    largest = np.abs(array).max(initial=0).astype(float) * most
                    with np.errstate(over="ignore"):
                        if not np.isfinite(largest.astype(array.dtype)):
                            return True
        return False


@dataclass(frozen=True)
class Carried:
    """The op in the folded form.

    Attributes:
        shapes: natural extents of every output.
        constants: new numbers for inputs, by index; all other inputs stay, but for the packed.
        is_sized: a constant names extents, so that the op is right for these alone.
    """

    shapes: tuple[Dims, ...]
    constants: Mapping[int, Array] = field(default_factory=dict)
    is_sized: bool = False


def pointwise(op: Op) -> Carried | Refusal:
    """Input 0 is data, all others are scalars by the definition of the operator."""
    shape, *others = op.shapes
    if shape is None or any(other is not None for other in others):
        return Refusal("not-packed", "the input is not there in the state")
    return Carried((shape,))
