"""Define sites: nodes that could be folded, read as a Conv.

A site belongs to one of two families, `ConvSite` and `ProductSite`, each in a file of its own.
`rules.forms` lists the forms of each family.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from widthfold_onnx.algebra.axis import ConvAxis
from widthfold_onnx.algebra.channels import Grouping
from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.constants import Constant
from widthfold_onnx.model.graph.document import Node, Value
from widthfold_onnx.model.graph.messages import Scope
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.operators.base import Operator
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.match.dequantized import Parameter
from widthfold_onnx.rules.match.quantized import Quantization

# Element types of ONNX's convolutions (operator text, Conv-22). ONNX Runtime's CPU provider has
# kernels for the first two only (measured on 1.31.1); the others are proved without a run.
ITEMSIZE = {"FLOAT": 4, "FLOAT16": 2, "DOUBLE": 8, "BFLOAT16": 2}


@dataclass(frozen=True, eq=False)
class Site:
    """A node that could be folded."""

    node: Node
    scope: Scope
    name: str
    op: str


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearSite(Site, ABC):
    """A linear operator with a constant weight, read as a Conv.

    Attributes:
        operator: its description, for the operand that is the weight.
        static: extents of the data as the operator reads it, that the model itself fixes; None
            where open.
        planned: the same with the assumed input shapes.
        opset: version of the default operator set of the model.
        weight: the numbers of the weight as they are stored.
        weight_shape: extents of the weight as [O, C/group, *kernel].
        group: groups of its channels.
        axes: geometry of every axis of positions, lengths as planned.
        parameters: the constants that a fold changes, by index of the input: the weight, the bias,
            and others with one number per output channel.
        quantization: the quantization of the data; None if the node computes in floats.
        zero: the number in the weight that stands for 0 and fills the structural zeros of a fold:
            0, or the zero point of a quantized weight; one number or one per output channel,
            broadcasts against `weight_shape`.
        is_finite: neither data nor result can hold Inf or NaN for any input: they are integers, or
            the data was dequantized from integers.
        dequantizer: the DequantizeLinear of the data, if quantizing its result again gives back
            every number.
        stored: reads the weight as it is stored.
    """

    operator: Operator
    static: Dims
    planned: Dims
    opset: int
    weight: Constant
    weight_shape: tuple[int, ...]
    group: int
    axes: tuple[ConvAxis, ...]
    parameters: Mapping[int, Parameter]
    quantization: Quantization | None
    zero: Array
    is_finite: bool
    dequantizer: Node | None
    stored: Callable[[], Array]

    @property
    def data(self) -> Value:
        """The operand that is not constant, as the node reads it now."""
        value = self.node.inputs[self.data_index]
        assert value is not None
        return value

    @property
    def data_index(self) -> int:
        """Index of the data among the inputs of the node."""
        return self.operator.inputs.data

    @cached_property
    def has_finite_weight(self) -> bool:
        """True if the weight holds neither Inf nor NaN; it is read for this."""
        return bool(np.isfinite(self.stored()).all())

    @property
    def bias(self) -> Constant | None:
        """The numbers that are added to the result."""
        index = self.operator.inputs.bias
        parameter = None if index is None else self.parameters.get(index)
        return None if parameter is None else parameter.constant

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return ITEMSIZE.get(self.weight.dtype, 1)

    @property
    def weight_on_left(self) -> bool:
        """True for a product with the weight on the left."""
        return self.operator.weight_on_left

    @property
    def is_dequantized(self) -> bool:
        """True if data and weight are dequantized."""
        return self.quantization is not None and self.quantization.dequantized

    @property
    def matrices(self) -> int:
        """Number of matrices in the weight: above 1 in a product with a matrix for every batch."""
        return 1

    @property
    def channels(self) -> tuple[int, int]:
        """Input and output channels; of a single matrix, where the weight has several."""
        outputs, per_group = self.weight_shape[:2]
        return per_group * self.group, outputs // self.matrices

    @property
    def grouping(self) -> Grouping:
        """Its channels and groups."""
        return Grouping(*self.channels, self.group)

    @property
    def groups(self) -> int:
        """Groups of the weight: more than `group` if it is zero between them."""
        return self.group

    @property
    @abstractmethod
    def rank(self) -> int:
        """Spatial axes of its kernel; 0 for a product of matrices."""

    @property
    @abstractmethod
    def position_names(self) -> tuple[str, ...]:
        """Names of its axes of positions, for reports."""

    @property
    def stored_axes(self) -> tuple[int, ...]:
        """The axis of the stored data for every axis that the site reads."""
        return tuple(range(len(self.static)))

    @property
    def output(self) -> Dims:
        """The output shape at planned extents; the channel axis of a vector is kept."""
        return self.result(self.planned)

    @abstractmethod
    def result(self, data: Dims) -> Dims:
        """Return the output shape for data whose folded axes have the planned extents."""

    @property
    @abstractmethod
    def macs(self) -> int | None:
        """Multiply-adds of one run, None where an extent is not known."""

    @property
    @abstractmethod
    def signature(self) -> dict[str, object]:
        """Its geometry without extents and element type; of JSON's types."""

    @property
    @abstractmethod
    def attributes(self) -> str:
        """The attributes that differ from their defaults, for reports."""

    @property
    def geometry(self) -> Hashable:
        """The values that determine its forms besides extents, element size and weight."""
        cuts = self.quantization is None or self.quantization.cuts
        return (self.weight_on_left, self.group, self.groups, self.axes, cuts)

    @abstractmethod
    def problem(self) -> Refusal | None:
        """Say why data, weight and bias do not fit together."""

    @property
    def beside(self) -> dict[int, Parameter]:
        """The parameters besides weight and bias, by index of the input."""
        named = (self.operator.inputs.weight, self.operator.inputs.bias)
        return {i: p for i, p in self.parameters.items() if i not in named}
