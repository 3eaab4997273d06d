"""Define sites: nodes that could be folded, read as a Conv."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from widthfold_onnx.algebra.channels import Grouping, most_groups
from widthfold_onnx.algebra.conv import ConvFold, fold_per_channel, fold_weight
from widthfold_onnx.algebra.conv_axis import ConvAxis
from widthfold_onnx.algebra.row_layout import RowLayout
from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.constants import Constant
from widthfold_onnx.model.graph.document import Node, Value
from widthfold_onnx.model.graph.messages import Scope
from widthfold_onnx.model.proto.dims import Dims, size_of
from widthfold_onnx.operators.base import Operator
from widthfold_onnx.operators.matmul import matrix_shape
from widthfold_onnx.rules.match.parameter import Parameter, is_single
from widthfold_onnx.rules.match.quantized import Quantization
from widthfold_onnx.rules.match.samples import Samples

# Element types of ONNX's convolutions (operator text, Conv-22). ONNX Runtime's CPU provider has
# kernels for the first two only (measured on 1.31.1); the others are proved without a run.
ITEMSIZE = {"FLOAT": 4, "FLOAT16": 2, "DOUBLE": 8, "BFLOAT16": 2}


@dataclass(frozen=True, eq=False)
class Site:
    """A node that could be reformulated."""

    node: Node
    scope: Scope
    name: str
    op: str


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearSite(Site):
    """A linear operator with a constant weight, read as a Conv.

    Attributes:
        operator: its description, for the operand that is the weight.
        static: extents of the data as the operator reads it, that the model itself fixes; None
            where open.
        planned: the same with the assumed input shapes.
        opset: version of the default operator set of the model.
        weight: the numbers of the weight as they are stored.
        weight_shape: extents of the weight as [O, C/group, *kernel].
        group: groups; of a product of matrices one for every matrix in the weight.
        axes: geometry of every axis of positions, lengths as planned.
        sized_pads: spatial axes whose pads depend on an extent that is only assumed.
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
        samples: where rows or columns may be samples of a batch; None for spatial axes.
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
    sized_pads: frozenset[int]
    parameters: Mapping[int, Parameter]
    quantization: Quantization | None
    zero: Array
    is_finite: bool
    dequantizer: Node | None
    samples: Samples | None
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
        found = None if index is None else self.parameters.get(index)
        return None if found is None else found.constant

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return ITEMSIZE.get(self.weight.dtype, 1)

    @property
    def is_product(self) -> bool:
        """True for a product of matrices, whose positions are rows or columns."""
        return self.operator.is_product

    @property
    def left(self) -> bool:
        """True for a product with the weight on the left."""
        return self.operator.left

    @property
    def transposed(self) -> bool:
        """True if the data is stored with its two last axes exchanged."""
        return self.operator.data_transposed(self.node)

    @property
    def flat(self) -> bool:
        """True if the weight is a vector, so that the result has no axis of channels."""
        return len(self.weight.shape) == 1

    @property
    def is_dequantized(self) -> bool:
        """True if data and weight are dequantized."""
        return self.quantization is not None and self.quantization.dequantized

    @property
    def channels(self) -> tuple[int, int]:
        """Input and output channels; of one matrix, where the weight has several."""
        out, per_group = self.weight_shape[:2]
        return (per_group, out // self.group) if self.is_product else (per_group * self.group, out)

    @property
    def group_channels(self) -> tuple[int, int]:
        """Input and output channels of one group, or of one matrix."""
        inputs, outputs = self.channels
        return self.channels if self.is_product else (inputs // self.group, outputs // self.group)

    @property
    def grouping(self) -> Grouping:
        """Its channels and groups."""
        return Grouping(*self.channels, self.group)

    @cached_property
    def groups(self) -> int:
        """Groups of the weight: more than `group` if it is zero between them.

        The weight is read for this, unless its channels cannot be divided any further. Quantized
        weights and products keep their groups.
        """
        kept = self.quantization is not None or self.is_product
        if kept or math.gcd(*self.channels) == self.group:
            return self.group
        return most_groups(self.operator.canonical(self.stored(), self.node), self.grouping)

    @property
    def batches(self) -> tuple[int, ...]:
        """Leading extents of the weight of a product; none where one matrix serves all."""
        return self.weight.shape[:-2]

    @property
    def positions(self) -> Dims:
        """Samples and, per axis, the times that every weight is multiplied in each."""
        return (self.planned[0], *(axis.positions for axis in self.axes))

    @property
    def output(self) -> Dims:
        """Shape of the output as planned; a vector's axis of channels is kept."""
        return self.result(self.planned)

    def result(self, data: Dims) -> Dims:
        """Return the shape of the output for data that differs from the plan in no folded axis."""
        outputs = self.channels[1]
        if not self.is_product:
            return (data[0], outputs, *(axis.out_length for axis in self.axes))
        leading = _broadcast(data[:-2], self.batches)
        return (*leading, outputs, data[-1]) if self.left else (*leading, data[-2], outputs)

    @property
    def macs(self) -> int | None:
        """Multiply-adds of one run, None where an extent is not known."""
        if self.is_product:
            return size_of((*self.output, self.channels[0]))
        return size_of((*self.positions, *self.weight_shape))

    @property
    def signature(self) -> dict[str, object]:
        """Its geometry without extents and element type; of JSON's types."""
        return self._matrices() if self.is_product else self._windows()

    def _windows(self) -> dict[str, object]:
        axes = [
            (a.stride, a.dilation, a.pad_begin, a.pad_end)
            + ((a.base_dilation,) if a.base_dilation > 1 else ())
            for a in self.axes
        ]
        result: dict[str, object] = {
            "weight": list(self.weight_shape),
            "group": self.group,
            **({"groups": self.groups} if self.groups > self.group else {}),
            "axes": axes,
            "bias": self.bias is not None,
        }
        known = self.quantization
        if known is not None:
            # The runtime has separate kernels for some of these.
            others = self._beside().values()
            vectors = (vector for p in self.parameters.values() for vector in p.vectors)
            several = any(not is_single(p.constant.shape) for p in others)
            result |= {
                "data": known.dtype,
                "dequantized": known.dequantized,
                "per_channel": several or any(vectors),
                "symmetric": not self.zero.any(),
            }
        return result

    def _matrices(self) -> dict[str, object]:
        beside = {str(i): list(p.constant.shape) for i, p in self._beside().items()}
        return {
            "weight": list(matrix_shape(self.weight.shape, left=self.left)),
            "left": self.left,
            "transposed": self.transposed,
            "turned": self.operator.weight_transposed(self.node),
            "flat": self.flat,
            "bias": None if self.bias is None else list(self.bias.shape),
            **({"dequantized": True} if self.is_dequantized else {}),
            **({"beside": beside} if beside else {}),
        }

    def _beside(self) -> dict[int, Parameter]:
        """Return the parameters besides weight and bias."""
        named = (self.operator.inputs.weight, self.operator.inputs.bias)
        return {i: p for i, p in self.parameters.items() if i not in named}

    @property
    def geometry(self) -> Hashable:
        """The values that determine its forms besides extents, element size and weight."""
        cuts = self.quantization is None or self.quantization.cuts
        return (
            *(self.operator.positions, self.transposed, self.flat, self.samples),
            *(self.group, self.groups, self.axes, self.sized_pads, cuts),
        )

    @property
    def attributes(self) -> str:
        """For reports: kernel, strides, and all attributes that differ from their defaults."""
        if self.is_product:
            turned = self.operator.weight_transposed(self.node)
            text = f"weight {'left' if self.left else 'right'}"
            text += ", data transposed" * self.transposed + ", weight transposed" * turned
            return text if self.bias is None else f"{text}, C {list(self.bias.shape)}"

        def each(values: list[int]) -> str:
            return "x".join(map(str, values))

        axes = self.axes
        text = f"kernel {each([a.kernel for a in axes])}, stride {each([a.stride for a in axes])}"
        if any(a.dilation > 1 for a in axes):
            text += f", dilation {each([a.dilation for a in axes])}"
        if any(a.base_dilation > 1 for a in axes):
            text += f", base dilation {each([a.base_dilation for a in axes])}"
        if any((a.pad_begin, a.pad_end) != (0, 0) for a in axes):
            text += ", pads " + " ".join(f"{a.pad_begin},{a.pad_end}" for a in axes)
        return text if self.group == 1 else f"{text}, group {self.group}"

    def folded_weight(self, numbers: Array, fold: ConvFold) -> Array:
        """Return the stored weight of the folded node."""
        wide = fold_weight(self.operator.canonical(numbers, self.node), fold, self.zero)
        return self.operator.stored(wide, self.node, self.weight.shape)

    def folded_vector(self, numbers: Array, fold: ConvFold) -> Array:
        """Return numbers per output channel for the folded node; a single one stays as it is."""
        if is_single(numbers.shape):
            return numbers
        if not self.is_product:
            return fold_per_channel(np.tile(numbers, self.channels[1] // numbers.size), fold)
        axis = -2 if self.left and numbers.ndim > 1 else -1
        of_one = replace(fold, group=1)
        return np.take(numbers, fold_per_channel(np.arange(numbers.shape[axis]), of_one), axis)

    def folded_bias(self, numbers: Array, fold: ConvFold) -> Array:
        """Return the bias of the folded node.

        C of a Gemm that is the same at all positions is repeated for every tile; else it is folded
        like the result. A single number stays as it is.
        """
        if not self.is_product:
            return fold_per_channel(numbers, fold)
        if numbers.size == 1:
            return numbers
        logical = numbers.reshape((1,) * (2 - numbers.ndim) + numbers.shape)
        if logical.shape[-1 if self.left else -2] == 1:
            return self.folded_vector(numbers, fold)
        full = list(logical.shape)
        full[-2 if self.left else -1] = self.channels[1]
        layout = RowLayout(fold.out_factor, self.left)
        return layout.packed(np.broadcast_to(logical, full))


def _broadcast(data: Dims, weight: tuple[int, ...]) -> Dims:
    """Return the leading extents of the result; open if the data's are and the weight's are 1."""
    rank = max(len(data), len(weight))
    one = (1,) * (rank - len(data)) + tuple(data)
    other = (1,) * (rank - len(weight)) + tuple(weight)
    return tuple(b if b != 1 else a for a, b in zip(one, other, strict=True))


def axis_names(rank: int) -> tuple[str, ...]:
    """Return the names of the axes of a Conv input with `rank` spatial axes.

    >>> axis_names(2)
    ('batch', 'channel', 'height', 'width')
    """
    return ("batch", "channel", *("depth", "height", "width")[3 - rank :])
