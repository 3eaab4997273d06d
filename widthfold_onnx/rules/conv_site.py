"""Read Conv, QLinearConv and ConvInteger: the canonical linear operators, as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy.typing as npt

from widthfold_onnx.fold.conv_axis import ConvAxis
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.base import Extents, LinearSite, Site
from widthfold_onnx.rules.reading import Operator, auto_pad_of, integers, read_windowed


def read_conv(
    document: Document, site: Site, static: Extents, planned: Extents
) -> LinearSite | Refusal:
    """Read a convolution; see `reading.read_windowed`."""
    return read_windowed(document, site, static, planned, CONV)


def _conv_axes(node: Node, dims: Dims, weight: tuple[int, ...]) -> tuple[ConvAxis, ...] | Refusal:
    """Return the geometry of every spatial axis of a Conv node.

    Args:
        node: the Conv.
        dims: input extents [N, C, *spatial]; None where not known.
        weight: [O, C/group, *kernel].

    Returns:
        The axes with explicit pads (SAME as the ONNX operator text defines it), or a refusal
        where the attributes contradict each other or pads depend on an unknown extent.
    """
    rank = len(weight) - 2
    strides = integers(node, "strides", [1] * rank)
    dilations = integers(node, "dilations", [1] * rank)
    pads = integers(node, "pads", [0] * (2 * rank))
    auto_pad = auto_pad_of(node)
    kernel = integers(node, "kernel_shape", list(weight[2:]))
    fits = (
        tuple(kernel) == weight[2:]
        and (len(strides), len(dilations), len(pads)) == (rank, rank, 2 * rank)
        and min(*strides, *dilations) >= 1
    )
    if not fits:
        return Refusal(
            Code.INCONSISTENT_ATTRIBUTES,
            f"kernel {kernel}, strides {strides}, dilations {dilations}, pads {pads} for weight "
            f"{list(weight)}",
        )
    axes = []
    for i in range(rank):
        axis = ConvAxis(
            length=dims[2 + i],
            kernel=kernel[i],
            stride=strides[i],
            dilation=dilations[i],
            pad_begin=0 if auto_pad == "VALID" else pads[i],
            pad_end=0 if auto_pad == "VALID" else pads[rank + i],
        )
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            same = _same_pads(axis, auto_pad)
            if isinstance(same, Refusal):
                return same
            axis = replace(axis, pad_begin=same[0], pad_end=same[1])
        axes.append(axis)
    return tuple(axes)


def _same_pads(axis: ConvAxis, auto_pad: str) -> tuple[int, int] | Refusal:
    """Return the pads that give one output position per `stride` positions of the input."""
    length, stride = axis.length, axis.stride
    span = axis.dilation * (axis.kernel - 1) + 1
    if length is None and stride > 1:
        return Refusal(
            Code.UNKNOWN_EXTENT,
            f"{auto_pad} at stride {stride} pads by the input's extent, which is not known",
        )
    # At stride 1 the total is span - 1 at any extent.
    total = span - 1 if length is None else (-(-length // stride) - 1) * stride + span - length
    # If the stride skips more than the kernel covers, the total is negative, and the runtime halves
    # it towards zero.
    begin = int(total / 2) if auto_pad == "SAME_UPPER" else int((total + 1) / 2)
    if begin < 0:
        return Refusal(
            Code.NEGATIVE_SAME_PADS, f"{auto_pad} of {length} positions at stride {stride} crops"
        )
    return begin, max(0, total - begin)


def _as_it_is(weight: npt.NDArray[Any], group: int) -> npt.NDArray[Any]:
    """Return the weight, which a Conv stores as [O, C/group, *kernel] already."""
    return weight


def _sized(node: Node, axis: ConvAxis) -> bool:
    return axis.stride > 1 and auto_pad_of(node).startswith("SAME")


CONV = Operator(out_axis=0, axes=_conv_axes, canonical=_as_it_is, sized=_sized)
