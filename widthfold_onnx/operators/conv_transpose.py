"""Describe ConvTranspose as a Conv over its input with zeros between the positions.

    y[j] = sum of W[k] * x[i] over all i, k with j = s*i + d*k - p

Counted from the other end of the kernel, k' = K - 1 - k, that is s*i = j + d*k' - (d*(K - 1) - p):
a Conv of stride 1, base dilation s and pads d*(K - 1) - p, its kernel mirrored (`algebra.axis`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from widthfold_onnx.algebra.axis import ConvAxis
from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.model.document import Node
from widthfold_onnx.operators.base import int_attribute, read_axes
from widthfold_onnx.operators.conv import CONV, Conv, auto_pad_of, group_of
from widthfold_onnx.refusal import Code, Refusal

Pads = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ConvTranspose(Conv):
    """A ConvTranspose, whose weight is stored as [C, O/group, *kernel]."""

    transposed: ClassVar[bool] = True

    def axes(
        self, node: Node, dims: Dims, weight: tuple[int, ...]
    ) -> tuple[ConvAxis, ...] | Refusal:
        """Return the geometry of every spatial axis, see the module docstring."""
        axes = read_axes(node, dims[2:], weight[2:])
        if isinstance(axes, Refusal):
            return axes
        rank = len(axes)
        growth = int_attribute(node, "output_padding", [0] * rank)
        target = int_attribute(node, "output_shape", [])
        pads = [pad for axis in axes for pad in (axis.pad_begin, axis.pad_end)]
        if len(growth) != rank or len(target) not in (0, rank) or min(*pads, *growth) < 0:
            return Refusal(
                Code.INCONSISTENT_ATTRIBUTES,
                f"pads {pads}, output padding {growth}, output shape {target} along {rank} axes",
            )
        for i, axis in enumerate(axes):
            s, reach = axis.stride, axis.dilation * (axis.kernel - 1)
            pads_of_axis = _pads(
                auto_pad_of(node),
                (axis.pad_begin, axis.pad_end),
                None if axis.length is None else s * (axis.length - 1) + reach + 1 + growth[i],
                None if not target else target[i],
                reach + 1 + growth[i] - s,
            )
            if isinstance(pads_of_axis, Refusal):
                return pads_of_axis
            if pads_of_axis[1] < 0 and growth[i] - pads_of_axis[1] >= s:
                return Refusal(
                    Code.OUTPUT_TOO_LARGE,
                    f"an output of {target[i]} positions is a stride or more beyond the kernel's "
                    "reach",
                )
            begin, end = reach - pads_of_axis[0], reach - pads_of_axis[1] + growth[i]
            axes[i] = replace(axis, stride=1, base_dilation=s, pad_begin=begin, pad_end=end)
        return tuple(axes)

    def pad_period(self, node: Node, axis: ConvAxis) -> int | None:
        """Return None for an `output_shape`, whose pads grow with the extent; else 1."""
        return None if int_attribute(node, "output_shape", []) else 1

    def canonical_weight(self, weight: Array, node: Node) -> Array:
        """Return [O, C/group, *kernel], mirrored along every spatial axis."""
        channels, outputs, *kernel = weight.shape
        group = group_of(node)
        groups = weight.reshape(group, channels // group, outputs, *kernel).swapaxes(1, 2)
        ordered = groups.reshape(group * outputs, channels // group, *kernel)
        return np.flip(ordered, tuple(range(2, weight.ndim)))

    def out_axis(self, node: Node, rank: int) -> int | None:
        """Return the second axis, which counts the output channels of a group."""
        return 1


def _pads(
    auto_pad: str, pads: Pads, full: int | None, target: int | None, surplus: int
) -> Pads | Refusal:
    """Return the positions to cut off at both ends of an axis (operator text, ConvTranspose-11).

    A negative number is added instead.

    Args:
        auto_pad: the attribute.
        pads: the attribute, for the axis.
        full: output extent without pads; None where the input's is not known.
        target: output extent that `output_shape` asks for, if it does.
        surplus: `full` minus stride times the input's extent: what SAME cuts off.
    """
    if target is not None:
        if full is None:
            return Refusal(
                Code.UNKNOWN_EXTENT,
                "output_shape pads by the input's extent, which is not known",
            )
        total = full - target
        if total < 0:
            # The runtime and ONNX's own cases append the positions that the kernel does not reach.
            return (0, total)
    elif auto_pad.startswith("SAME"):
        # The runtime and ONNX's inference append no positions that the kernel does not reach.
        total = max(surplus, 0)
    else:
        return (0, 0) if auto_pad == "VALID" else pads
    smaller_half, larger_half = total // 2, total - total // 2
    return (smaller_half, larger_half) if auto_pad == "SAME_UPPER" else (larger_half, smaller_half)


CONV_TRANSPOSE = ConvTranspose(inputs=CONV.inputs)
