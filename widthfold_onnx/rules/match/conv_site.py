"""Define the sites whose data is [N, C, *spatial]: Conv, ConvTranspose and their relatives."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from widthfold_onnx.algebra.channels import most_groups
from widthfold_onnx.arrays import size_of
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.operators.base import misfit
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.match.dequantized import is_single
from widthfold_onnx.rules.match.site import LinearSite


@dataclass(frozen=True, kw_only=True, eq=False)
class ConvSite(LinearSite):
    """A linear operator along spatial axes; batch and spatial axes are folded."""

    @cached_property
    def groups(self) -> int:
        """Groups of the weight: more than `group` if it is zero between them.

        The weight is read for this, unless its channels cannot be divided any further. Quantized
        weights keep their groups.
        """
        if self.quantization is not None or math.gcd(*self.channels) == self.group:
            return self.group
        return most_groups(self.operator.canonical(self.stored(), self.node), self.grouping)

    @property
    def rank(self) -> int:
        """Spatial axes."""
        return len(self.axes)

    @property
    def position_names(self) -> tuple[str, ...]:
        """Names of the spatial axes."""
        return axis_names(self.rank)[2:]

    @property
    def positions(self) -> Dims:
        """Samples and, per axis, the times that every weight is multiplied in each."""
        return (self.planned[0], *(axis.positions for axis in self.axes))

    def result(self, data: Dims) -> Dims:
        """Return [N, O, *spatial], see `LinearSite.result`."""
        return (data[0], self.channels[1], *(axis.out_length for axis in self.axes))

    @property
    def macs(self) -> int | None:
        """Multiply-adds of one run, None where an extent is not known."""
        return size_of((*self.positions, *self.weight_shape))

    @property
    def signature(self) -> dict[str, object]:
        """Its geometry without extents and element type; of JSON's types."""
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
        quantization = self.quantization
        if quantization is not None:
            # The runtime has separate kernels for some of these.
            vectors = (vector for p in self.parameters.values() for vector in p.vectors)
            several = any(not is_single(p.constant.shape) for p in self.beside.values())
            result |= {
                "data": quantization.dtype,
                "dequantized": quantization.dequantized,
                "per_channel": several or any(vectors),
                "symmetric": not self.zero.any(),
            }
        return result

    @property
    def attributes(self) -> str:
        """Kernel, strides, and all attributes that differ from their defaults, for reports."""

        def each(values: Iterable[int]) -> str:
            return "x".join(map(str, values))

        axes = self.axes
        text = f"kernel {each(a.kernel for a in axes)}, stride {each(a.stride for a in axes)}"
        if any(a.dilation > 1 for a in axes):
            text += f", dilation {each(a.dilation for a in axes)}"
        if any(a.base_dilation > 1 for a in axes):
            text += f", base dilation {each(a.base_dilation for a in axes)}"
        if any((a.pad_begin, a.pad_end) != (0, 0) for a in axes):
            text += ", pads " + " ".join(f"{a.pad_begin},{a.pad_end}" for a in axes)
        return text if self.group == 1 else f"{text}, group {self.group}"

    def problem(self) -> Refusal | None:
        """Say why data, weight, bias and quantization per channel do not fit together."""
        (inputs, outputs), rank = self.channels, len(self.weight_shape)
        axis = self.operator.out_axis(self.node, rank)
        assert axis is not None
        counts = {1, outputs, self.weight.shape[axis]}
        vectors = (v for parameter in self.parameters.values() for v in parameter.vectors)
        fits = (
            self.planned[1] == inputs
            and (self.bias is None or self.bias.shape == (outputs,))
            and all(math.prod(vector.shape) in counts for vector in vectors)
        )
        return None if fits else misfit(self.planned, self.weight.shape, f" and group {self.group}")


def axis_names(rank: int) -> tuple[str, ...]:
    """Return the names of the axes of a Conv input with `rank` spatial axes.

    >>> axis_names(2)
    ('batch', 'channel', 'height', 'width')
    """
    return ("batch", "channel", *("depth", "height", "width")[3 - rank :])
