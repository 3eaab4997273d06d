"""One node on the values that it is given, for the code that says what its operator means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from widthfold_onnx.evidence.proof.field import Array, key_of
from widthfold_onnx.evidence.proof.values import (
    Elements,
    Known,
    Opaque,
    Shape,
    Tensor,
    UnevaluableError,
    Value,
)


@dataclass(frozen=True)
class Call:
    """A node and what it is given.

    Attributes:
        node: the node.
        attributes: by name, with the defaults of the operator's schema.
        inputs: by position; None where one is left out.
        opset: version of the operator set of the node's domain.
        version: version since which the operator is as it is, 0 where no schema is known.
        shapes: of the outputs; None where shape inference does not know one.
        kinds: element types of inputs and outputs by name, 0 where unknown.
    """

    node: onnx.NodeProto
    attributes: Mapping[str, Any]
    inputs: Sequence[Value | None]
    opset: int
    version: int
    shapes: Sequence[Shape | None]
    kinds: Mapping[str, int]

    def tensor(self, index: int) -> Tensor:
        """Return an input that must be there.

        Raises:
            UnevaluableError: it is left out.
        """
        value = self.optional(index)
        if value is None:
            raise UnevaluableError(f"input {index} is missing")
        return value

    def optional(self, index: int) -> Tensor | None:
        """Return an input that may be left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        assert not isinstance(value, Opaque)
        return value

    def known(self, index: int) -> Array | None:
        """Return the numbers of an input, None where it is left out or not known."""
        value = self.optional(index)
        return value.array if isinstance(value, Known) else None

    @property
    def tensors(self) -> list[Tensor]:
        """All inputs that are there."""
        return [value for value in self.inputs if isinstance(value, Known | Elements)]

    def kind(self, index: int) -> int:
        """Return the element type of an input, 0 where it is left out or unknown."""
        names = self.node.input
        return self.kinds.get(names[index], 0) if index < len(names) else 0

    def key(self, *more: object, version: int = 0) -> int:
        """Name the function that this operator is, with all its attributes but graphs."""
        said = sorted(
            (name, _plain(value))
            for name, value in self.attributes.items()
            if not isinstance(value, onnx.GraphProto)
        )
        domain = "" if self.node.domain == "ai.onnx" else self.node.domain
        return key_of(domain, self.node.op_type, version, said, *more)

    def broadcasts(self) -> bool:
        """Whether the inputs are broadcast as numpy does, which ONNX does since opset 7.

        Raises:
            UnevaluableError: their extents do not fit together.
        """
        shapes = [value.shape for value in self.tensors]
        if self.opset < 7 and len(set(shapes)) > 1:
            return False
        common(shapes)
        return True


def common(shapes: Sequence[Shape]) -> Shape:
    """Return the extents to which several are broadcast.

    Raises:
        UnevaluableError: they do not fit together.
    """
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        said = " and ".join(str(list(shape)) for shape in shapes)
        raise UnevaluableError(f"extents {said} do not fit together") from error


def _plain(value: object) -> object:
    """Return an attribute as something whose text names it."""
    if isinstance(value, onnx.TensorProto | onnx.SparseTensorProto):
        return value.SerializeToString(deterministic=True)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value if not isinstance(item, onnx.GraphProto)]
    return value
