"""Define the site of a node of the Conv family, read as a Conv."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.fold.channels import Grouping, most_groups
from widthfold_onnx.fold.conv import ConvFold, fold_per_channel, fold_weight
from widthfold_onnx.fold.conv_axis import ConvAxis
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.graph import Value
from widthfold_onnx.rules.base import LinearSite, product
from widthfold_onnx.rules.parameter import INPUTS, dequantizer
from widthfold_onnx.rules.quantized import Quantization

Array = npt.NDArray[Any]

FOLDED_OPS = {op: "Conv" if op == "ConvTranspose" else op for op in INPUTS}
"""The operator that replaces a node of each operator."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowedSite(LinearSite):
    """A node of the Conv family, read as a Conv: its weight, bias and geometry are known.

    The data is [N, C, *spatial], the weight [O, C/group, *kernel].

    Attributes:
        canonical: converts the stored weight to `weight_shape`; elements only move.
        parameter: the value that holds the stored weight: an input of the node, or the integers
            that are dequantized into one.
        bias: [O], or None.
        per_channel: constants with one element per output channel (bias, weight scales and zero
            points), keyed by their Value.
        quantization: the quantization of the data; None if the node computes in floats.
        group: groups.
        axes: geometry of every spatial axis, lengths as planned.
        sized_pads: spatial axes whose pads depend on an extent that is only assumed.
    """

    canonical: Callable[[Array], Array]
    parameter: Value
    bias: Constant | None
    per_channel: Mapping[Value, Constant]
    quantization: Quantization | None
    group: int
    axes: tuple[ConvAxis, ...]
    sized_pads: frozenset[int]

    @property
    def is_dequantized(self) -> bool:
        """True if data and weight are dequantized."""
        return self.quantization is not None and self.quantization.dequantized

    @property
    def channels(self) -> tuple[int, int]:
        """Input and output channels."""
        out, per_group = self.weight_shape[:2]
        return per_group * self.group, out

    @property
    def grouping(self) -> Grouping:
        """Its channels and groups."""
        return Grouping(*self.channels, self.group)

    @cached_property
    def groups(self) -> int:
        """Groups of the weight: more than `group` if it is zero between them.

        The weight is read for this, unless its channels cannot be divided any further. Quantized
        weights keep their groups.
        """
        if self.quantization is not None or math.gcd(*self.channels) == self.group:
            return self.group
        return most_groups(self.canonical(self.stored()), self.grouping)

    @property
    def out_lengths(self) -> Dims:
        """Spatial extents of the output."""
        return tuple(axis.out_length for axis in self.axes)

    @property
    def positions(self) -> Dims:
        """Samples and, per spatial axis, the times that every weight is multiplied in each."""
        return (self.planned[0], *(axis.positions for axis in self.axes))

    @property
    def output(self) -> Dims:
        """Shape of the output as planned."""
        return (self.planned[0], self.channels[1], *self.out_lengths)

    @property
    def macs(self) -> int | None:
        """Multiply-adds of one run, None where an extent is not known."""
        return product((*self.positions, *self.weight_shape))

    @property
    def signature(self) -> dict[str, object]:
        """Groups as declared and as found, and stride, dilation and pads of every axis."""
        axes = [
            (a.stride, a.dilation, a.pad_begin, a.pad_end)
            + ((a.base_dilation,) if a.base_dilation > 1 else ())
            for a in self.axes
        ]
        result: dict[str, object] = {
            "group": self.group,
            **({"groups": self.groups} if self.groups > self.group else {}),
            "axes": axes,
            "bias": self.bias is not None,
        }
        known = self.quantization
        if known is not None:
            # The runtime has separate kernels for some of these.
            result |= {
                "data": known.dtype,
                "dequantized": known.dequantized,
                "per_channel": len(self.per_channel) > (self.bias is not None),
                "symmetric": not self.zero.any(),
            }
        return result

    def leaves(self, value: Value | None) -> list[Value | None]:
        """Return the values to fold for an input: those that are dequantized into it, or itself.

        So a runtime still reads integers, and does not quantize floats in a way of its own.
        """
        maker = dequantizer(value)
        if maker is None or maker.inputs[0] not in (self.parameter, *self.per_channel):
            return [value]
        return list(maker.inputs)

    def folded(self, value: Value, numbers: Array, fold: ConvFold) -> Array:
        """Return the numbers that the folded Conv reads in place of a constant.

        Args:
            value: the constant.
            numbers: its numbers.
            fold: the fold.
        """
        if value is self.parameter:
            return fold_weight(self.canonical(numbers), fold, self.zero)
        if value in self.per_channel:
            outputs = self.channels[1]
            return fold_per_channel(np.tile(numbers, outputs // numbers.size), fold)
        return numbers

    @property
    def geometry(self) -> Hashable:
        """Groups and axes, and whether a Slice may follow."""
        cuts = self.quantization is None or self.quantization.cuts
        return (self.group, self.groups, self.axes, self.sized_pads, cuts)

    @property
    def attributes(self) -> str:
        """Kernel, strides, and all attributes that differ from their defaults."""

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


def axis_names(rank: int) -> tuple[str, ...]:
    """Return the names of the axes of a Conv input with `rank` spatial axes.

    >>> axis_names(2)
    ('batch', 'channel', 'height', 'width')
    """
    return ("batch", "channel", *("depth", "height", "width")[3 - rank :])
