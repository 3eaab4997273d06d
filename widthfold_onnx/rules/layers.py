"""Define a site, a node that could be folded, and a layer, which is a site read as a Conv.

There are two families: a `ConvLayer` has data [N, C, *spatial], and is folded along batch and
spatial axes; a `ProductLayer` is a product of matrices, and is folded along rows or columns.
`rules.enumeration` lists the forms of each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from widthfold_onnx.algebra.axis import ConvAxis
from widthfold_onnx.algebra.channels import Grouping, most_groups
from widthfold_onnx.arrays import Array, Dims, size_of
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.document import Node, Value
from widthfold_onnx.model.linking import NodeName, Scope
from widthfold_onnx.operators.base import Operator, inconsistent_shapes
from widthfold_onnx.operators.einsum import Einsum, Labels
from widthfold_onnx.operators.matmul import Product
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.quantization import Parameter, Quantization, is_single

# Element types of ONNX's convolutions (operator text, Conv-22). ONNX Runtime's CPU provider has
# kernels for the first two only (measured on 1.31.1); the others are proved without a run.
ITEMSIZE = {"FLOAT": 4, "FLOAT16": 2, "DOUBLE": 8, "BFLOAT16": 2}

UNPLANNED = frozenset({"groups", "symmetric"})
"""Parts of a signature that plans leave out: they depend on the numbers of the weight and of its
zero point, which training may change."""

AXIS = ("stride", "dilation", "pad_begin", "pad_end", "base_dilation")
"""Names of the numbers of an axis in a signature."""


@dataclass(frozen=True, eq=False)
class Site:
    """A node that could be folded."""

    node: Node
    scope: Scope
    name: str
    op: str

    @property
    def node_name(self) -> NodeName:
        """The name of the node, with the path of its graph."""
        return NodeName(self.scope.path, self.name)


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer(Site, ABC):
    """A linear operator with a constant weight, read as a Conv.

    Attributes:
        operator: its description, for the operand that is the weight.
        fixed_shape: extents of the data as the operator reads it, that the model itself fixes;
            None where open.
        planned_shape: the same with the assumed input shapes.
        opset: version of the default operator set of the model.
        weight_shape: extents of the weight as [O, C/group, *kernel].
        group: groups of its channels.
        axes: geometry of every axis of positions, lengths as planned.
        parameters: the constants that a fold changes, by index of the input: the weight, the bias,
            and others with one number per output channel.
        quantization: the quantization of the data; None unless the operator takes integers, or
            data and weight are dequantized.
        filler: the number in the weight that stands for 0 and fills the structural zeros of a fold:
            0, or the zero point of a quantized weight; one number or one per output channel,
            broadcasts against `weight_shape`.
        is_finite: neither data nor result can hold Inf or NaN for any input: they are integers, or
            the data was dequantized from integers.
        dequantizer: the DequantizeLinear of the data, if quantizing its result again gives back
            every number.
        read_weight: reads the weight as it is stored.
    """

    operator: Operator
    fixed_shape: Dims
    planned_shape: Dims
    opset: int
    weight_shape: tuple[int, ...]
    group: int
    axes: tuple[ConvAxis, ...]
    parameters: Mapping[int, Parameter]
    quantization: Quantization | None
    filler: Array
    is_finite: bool
    dequantizer: Node | None
    read_weight: Callable[[], Array]

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

    def canonical_weight(self) -> Array:
        """Read the weight as [O, C/group, *kernel]."""
        return self.operator.canonical_weight(self.read_weight(), self.node)

    @cached_property
    def has_finite_weight(self) -> bool:
        """True if the weight holds neither Inf nor NaN; the weight is read to find out."""
        return bool(np.isfinite(self.read_weight()).all())

    @property
    def weight(self) -> Constant:
        """The weight as it is stored."""
        return self.parameters[self.operator.inputs.weight].constant

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
    def matrix_count(self) -> int:
        """Number of matrices in the weight: above 1 in a product with a matrix for every batch."""
        return 1

    @property
    def channels(self) -> tuple[int, int]:
        """Input and output channels; of a single matrix, where the weight has several."""
        outputs, per_group = self.weight_shape[:2]
        return per_group * self.group, outputs // self.matrix_count

    @property
    def grouping(self) -> Grouping:
        """Its channels and groups."""
        return Grouping(*self.channels, self.group)

    @property
    def weight_groups(self) -> int:
        """Groups of the weight: more than `group` if it is zero between them."""
        return self.group

    @property
    def spatial_rank(self) -> int:
        """Number of spatial axes; 0 for a product of matrices."""
        return len(self.axes)

    @property
    @abstractmethod
    def position_names(self) -> tuple[str, ...]:
        """Names of its axes of positions, for reports."""

    @property
    def stored_axes(self) -> tuple[int, ...]:
        """The axis of the stored data for every axis that the layer reads."""
        return tuple(range(len(self.fixed_shape)))

    @cached_property
    def output_shape(self) -> Dims:
        """The output shape at planned extents; the channel axis of a vector is kept."""
        return self.output_shape_for(self.planned_shape)

    @abstractmethod
    def output_shape_for(self, data: Dims) -> Dims:
        """Return the output shape for data whose folded axes have the planned extents."""

    @property
    @abstractmethod
    def macs(self) -> int | None:
        """Multiply-adds of one run, None where an extent is not known."""

    @property
    @abstractmethod
    def signature(self) -> dict[str, object]:
        """Its geometry without the extents of the data and the element type; of JSON's types."""

    @cached_property
    def structure(self) -> dict[str, Any]:
        """What a plan says of it, without weights: op, element type, extents, attributes.

        Values are of JSON's types. Open extents are None; assumed ones are numbers.
        """
        parts = self.signature.items()
        signature: dict[str, Any] = {name: value for name, value in parts if name not in UNPLANNED}
        if axes := signature.get("axes"):
            signature["axes"] = [dict(zip(AXIS, axis, strict=False)) for axis in axes]
        structure = {
            "op": self.op,
            "element": self.weight.dtype,
            "input": self.planned_shape,
            **signature,
        }
        # Through JSON, so that a plan from a file compares equal.
        return msgspec.json.decode(msgspec.json.encode(structure), type=dict[str, Any])

    @property
    @abstractmethod
    def attributes_text(self) -> str:
        """The attributes that differ from their defaults, for reports."""

    @property
    def forms_key(self) -> Hashable:
        """The values that determine its forms, besides its opset and how its data is declared."""
        quantization = self.quantization
        limits = None if quantization is None else (quantization.extends, quantization.cuts)
        bias = None if self.bias is None else self.bias.shape
        traits = (self.op, self.itemsize, self.weight_on_left, self.is_finite, limits)
        extents = (self.fixed_shape, self.planned_shape, self.weight_shape, self.axes, bias)
        return (*traits, *extents, self.group, self.weight_groups)

    @abstractmethod
    def problem(self) -> Refusal | None:
        """Say why data, weight and bias do not fit together."""

    @property
    def other_parameters(self) -> dict[int, Parameter]:
        """The parameters besides weight and bias, by index of the input."""
        indices = (self.operator.inputs.weight, self.operator.inputs.bias)
        return {i: p for i, p in self.parameters.items() if i not in indices}


@dataclass(frozen=True, kw_only=True, eq=False)
class ConvLayer(Layer):
    """A linear operator along spatial axes; batch and spatial axes are folded.

    Attributes:
        shuffles: a DepthToSpace can stand behind it.
    """

    shuffles: bool

    @cached_property
    def weight_groups(self) -> int:
        """Groups of the weight: more than `group` if it is zero between them.

        The weight is read for this, unless its channels cannot be divided any further. Quantized
        weights keep their groups.
        """
        if self.quantization is not None or math.gcd(*self.channels) == self.group:
            return self.group
        return most_groups(self.canonical_weight(), self.grouping)

    @property
    def forms_key(self) -> Hashable:
        """The values that determine its forms, see `Layer.forms_key`."""
        return (super().forms_key, self.shuffles)

    @property
    def position_names(self) -> tuple[str, ...]:
        """Names of the spatial axes."""
        return axis_names(self.spatial_rank)[2:]

    @property
    def foldable_axes(self) -> tuple[str, ...]:
        """Names of the axes of the data that may be folded: all but the channels."""
        return ("batch", *self.position_names)

    @property
    def positions(self) -> Dims:
        """Samples, and the positions of each axis: how often every weight is multiplied there."""
        return (self.planned_shape[0], *(axis.positions for axis in self.axes))

    def output_shape_for(self, data: Dims) -> Dims:
        """Return [N, O, *spatial], see `Layer.output_shape_for`."""
        return (data[0], self.channels[1], *(axis.out_length for axis in self.axes))

    @property
    def macs(self) -> int | None:
        """Multiply-adds of one run, None where an extent is not known."""
        return size_of((*self.positions, *self.weight_shape))

    @property
    def signature(self) -> dict[str, object]:
        """Its geometry without the extents of the data and the element type; of JSON's types."""
        axes = [
            (a.stride, a.dilation, a.pad_begin, a.pad_end)
            + ((a.base_dilation,) if a.base_dilation > 1 else ())
            for a in self.axes
        ]
        result: dict[str, object] = {
            "weight": list(self.weight_shape),
            "group": self.group,
            **({"groups": self.weight_groups} if self.weight_groups > self.group else {}),
            "axes": axes,
            "bias": self.bias is not None,
        }
        quantization = self.quantization
        if quantization is not None:
            # The runtime has separate kernels for some of these.
            vectors = (vector for p in self.parameters.values() for vector in p.vectors)
            has_vectors = any(
                not is_single(p.constant.shape) for p in self.other_parameters.values()
            )
            result |= {
                "data": quantization.dtype,
                "dequantized": quantization.dequantized,
                "per_channel": has_vectors or any(vectors),
                "symmetric": not self.filler.any(),
            }
        return result

    @property
    def attributes_text(self) -> str:
        """Kernel, strides, and all attributes that differ from their defaults, for reports."""

        def joined(values: Iterable[int]) -> str:
            return "x".join(map(str, values))

        axes = self.axes
        text = f"kernel {joined(a.kernel for a in axes)}, stride {joined(a.stride for a in axes)}"
        if any(a.dilation > 1 for a in axes):
            text += f", dilation {joined(a.dilation for a in axes)}"
        if any(a.base_dilation > 1 for a in axes):
            text += f", base dilation {joined(a.base_dilation for a in axes)}"
        if any((a.pad_begin, a.pad_end) != (0, 0) for a in axes):
            text += ", pads " + " ".join(f"{a.pad_begin},{a.pad_end}" for a in axes)
        return text if self.group == 1 else f"{text}, group {self.group}"

    def problem(self) -> Refusal | None:
        """Say why data, weight, bias and quantization per channel do not fit together."""
        inputs, outputs = self.channels
        rank = len(self.weight_shape)
        axis = self.operator.out_axis(self.node, rank)
        assert axis is not None
        counts = {1, outputs, self.weight.shape[axis]}
        vectors = (v for parameter in self.parameters.values() for v in parameter.vectors)
        fits = (
            self.planned_shape[1] == inputs
            and (self.bias is None or self.bias.shape == (outputs,))
            and all(math.prod(vector.shape) in counts for vector in vectors)
        )
        if fits:
            return None
        return inconsistent_shapes(
            self.planned_shape, self.weight.shape, f" and group {self.group}"
        )


def axis_names(rank: int) -> tuple[str, ...]:
    """Return the names of the axes of a Conv input with `rank` spatial axes.

    >>> axis_names(2)
    ('batch', 'channel', 'height', 'width')
    """
    return ("batch", "channel", *("depth", "height", "width")[3 - rank :])


SampleCounts = frozenset[int | None]
"""Possible numbers of samples; None is any number."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProductLayer(Layer):
    """A product of matrices; its rows, or with the weight on the left its columns, are folded.

    Attributes:
        operator: its description.
        samples: for each axis of the data, as the product reads it, how many samples of a batch it
            may count.
        stored_rank: number of axes of the data as it is stored.
    """

    operator: Product
    samples: tuple[SampleCounts, ...]
    stored_rank: int

    @property
    def data_transposed(self) -> bool:
        """True if the data is stored with its last two axes exchanged."""
        return self.operator.data_transposed(self.node)

    @property
    def labels(self) -> Labels | None:
        """The labels of an Einsum, whose axes lie in another order; None for other products."""
        if not isinstance(self.operator, Einsum):
            return None
        return self.operator.labels(self.node, self.stored_rank)

    @property
    def is_reordered(self) -> bool:
        """True for an Einsum that moves elements of data or result around its product."""
        if self.labels is None:
            return False
        packings = self.labels.packing(self.planned_shape, self.weight.shape, 1)
        return not all(packing.is_view for packing in packings)

    @property
    def matrix_shape(self) -> tuple[int, ...]:
        """Extents of the weight as matrices."""
        return self.operator.matrix_shape(self.node, self.weight.shape)

    @property
    def flat(self) -> bool:
        """True if the weight is a vector, so that the result has no axis of channels."""
        return self.labels is None and len(self.weight.shape) == 1

    @property
    def batches(self) -> tuple[int, ...]:
        """Leading extents of the weight; none where one matrix serves all."""
        return self.matrix_shape[:-2]

    @property
    def matrix_count(self) -> int:
        """Number of matrices in the weight, one for every batch."""
        return math.prod(self.batches)

    @property
    def spatial_rank(self) -> int:
        """None of its axes is spatial."""
        return 0

    @property
    def position_names(self) -> tuple[str, ...]:
        """Rows or columns."""
        return ("columns" if self.weight_on_left else "rows",)

    @property
    def stored_axes(self) -> tuple[int, ...]:
        """The axis of the stored data for every axis that the layer reads."""
        return self.operator.stored_order(self.node, self.stored_rank)

    def output_shape_for(self, data: Dims) -> Dims:
        """Return [.., L, O], or [.., O, L] with the weight on the left."""
        leading, outputs = _broadcast(data[:-2], self.batches), self.channels[1]
        return (
            (*leading, outputs, data[-1]) if self.weight_on_left else (*leading, data[-2], outputs)
        )

    @property
    def macs(self) -> int | None:
        """Multiply-adds of one run, None where an extent is not known."""
        return size_of((*self.output_shape, self.channels[0]))

    @property
    def signature(self) -> dict[str, object]:
        """Its geometry without the extents of the data and the element type; of JSON's types."""
        shapes = {str(i): list(p.constant.shape) for i, p in self.other_parameters.items()}
        return {
            **({"equation": _equation(self.labels)} if self.labels else {}),
            "weight": list(self.matrix_shape),
            "left": self.weight_on_left,
            "transposed": self.data_transposed,
            "turned": self.operator.weight_transposed(self.node),
            "flat": self.flat,
            "bias": None if self.bias is None else list(self.bias.shape),
            **({"dequantized": True} if self.is_dequantized else {}),
            **({"beside": shapes} if shapes else {}),
        }

    @property
    def forms_key(self) -> Hashable:
        """The values that determine its forms, see `Layer.forms_key`."""
        layout = (self.data_transposed, self.flat, self.labels, self.weight.shape)
        return (super().forms_key, self.matrix_count, layout, self.samples)

    @property
    def attributes_text(self) -> str:
        """The side of the weight, and its transposes and additions, for reports."""
        if self.labels is not None:
            return _equation(self.labels)
        is_transposed = self.operator.weight_transposed(self.node)
        text = f"weight {'left' if self.weight_on_left else 'right'}"
        text += ", data transposed" * self.data_transposed + ", weight transposed" * is_transposed
        return text if self.bias is None else f"{text}, C {list(self.bias.shape)}"

    def problem(self) -> Refusal | None:
        """Say why data, weight and C do not fit together."""
        if self.labels is not None and None in self._shared_extents(self.labels):
            return Refusal(
                Code.UNKNOWN_EXTENT,
                "a label of data and weight has an extent of the data that is not known; if it is "
                "1, ONNX Runtime broadcasts it",
            )
        if self._fits():
            return None
        bias = "" if self.bias is None else f" and C {list(self.bias.shape)}"
        return inconsistent_shapes(self.planned_shape, self.weight.shape, bias)

    def mixes_samples(self, positions: slice, factor: int) -> bool:
        """Check whether `factor` neighbours along these axes may belong to several samples."""
        data = self.planned_shape
        for axis in range(positions.start, positions.stop):
            extent = data[axis]
            inner = math.prod(e for e in data[axis + 1 : positions.stop] if e is not None)
            if any(
                n is None or extent is None or (extent % n == 0 and inner * (extent // n) % factor)
                for n in self.samples[axis] - {1}
            ):
                return True
        return False

    def _shared_extents(self, labels: Labels) -> Dims:
        """Return the extents of the data, as the model fixes them, along labels of the weight."""
        row = len(self.fixed_shape) - (1 if self.weight_on_left else 2)
        first = len(labels.rows) - 1
        return tuple(n for i, n in enumerate(self.fixed_shape) if i >= first and i != row)

    def _fits(self) -> bool:
        data, inputs = self.planned_shape, self.channels[0]
        pairs = zip(reversed(data[:-2]), reversed(self.batches), strict=False)
        fits = data[-2 if self.weight_on_left else -1] in (None, inputs)
        fits = fits and all(a in (None, b) or 1 in (a, b) for a, b in pairs)
        if self.operator.inputs.bias is not None:
            fits = fits and len(data) == len(self.weight.shape) == 2
        if self.bias is None or not fits:
            return fits
        extents = (1,) * (2 - len(self.bias.shape)) + self.bias.shape
        ends = zip(extents, self.output_shape, strict=False)
        return len(extents) == 2 and all(e in (1, w) or w is None for e, w in ends)


def _equation(labels: Labels) -> str:
    """Return the equation of an Einsum, each hidden axis named by a digit."""
    terms = ("".join(term) for term in (labels.data, labels.weight, labels.result))
    return "{},{}->{}".format(*terms)


def _broadcast(data: Dims, weight: tuple[int, ...]) -> Dims:
    """Return the leading extents of the result; open where the data's is, and the weight's is 1."""
    rank = max(len(data), len(weight))
    batches = (1,) * (rank - len(data)) + tuple(data)
    matrices = (1,) * (rank - len(weight)) + tuple(weight)
    return tuple(b if b != 1 else a for a, b in zip(batches, matrices, strict=True))
