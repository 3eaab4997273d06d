"""Describe a node that may run on packed tensors, and the packed form that a rule returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from widthfold_onnx.algebra.layouts import PackedLayout
from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.document import Attributes, Document, Node
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.proto.walk import operator_of
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.refusal import Refusal


@dataclass(frozen=True)
class Op:
    """A node, and which of its inputs are available in one layout.

    Attributes:
        shapes: logical extents per input; None where it is not available in the layout.
    """

    document: Document
    node: Node
    layout: PackedLayout
    shapes: tuple[Dims | None, ...]

    @property
    def data(self) -> Dims:
        """Extents of input 0, which is available in the layout."""
        shape = self.shapes[0]
        assert shape is not None
        return shape

    def constant(self, index: int) -> Array | Refusal:
        """Return the numbers of an input."""
        value = self.node.inputs[index]
        assert value is not None
        constant = self.document.constant(value)
        return constant if isinstance(constant, Refusal) else self.document.read(constant)

    def overflows(self, factor: Array) -> bool:
        """Check whether `factor` times the weight of a linear op before this one overflows.

        A runtime may merge the two when it loads the model.
        """
        most = np.abs(factor).max(initial=0)
        for value in self.node.inputs:
            maker = None if value is None else value.producer()
            linear = maker is not None and operator_of(maker) in OPERATORS
            operands = maker.inputs[:2] if maker is not None and linear else ()
            for constant in map(self.document.constant, filter(None, operands)):
                if not isinstance(constant, Refusal):
                    array = self.document.read(constant)
                    largest = np.abs(array).max(initial=0).astype(float) * most
                    with np.errstate(over="ignore"):
                        if not np.isfinite(largest.astype(array.dtype)):
                            return True
        return False


@dataclass(frozen=True)
class PackedOp:
    """The packed form of an op.

    Attributes:
        shapes: logical extents of every output.
        constants: new numbers for inputs, by index; packed tensors replace the data, and all other
            inputs stay.
        attributes: new attributes, by name; all others stay.
    """

    shapes: tuple[Dims, ...]
    constants: Mapping[int, Array] = field(default_factory=dict)
    attributes: Attributes = field(default_factory=dict)


def pointwise(op: Op) -> PackedOp:
    """Carry an op of data at input 0; all others are scalars by the definition of the operator."""
    return PackedOp((op.data,))
