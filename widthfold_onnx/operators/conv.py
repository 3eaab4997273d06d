"""Describe Conv, QLinearConv and ConvInteger: the canonical linear operators, as they are."""

from __future__ import annotations

from dataclasses import replace

from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.algebra.conv_axis import ConvAxis
from widthfold_onnx.model.graph.document import Attributes, Node
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.operators.base import QLINEAR, Inputs, Operator, read_axes
from widthfold_onnx.refusal import Code, Refusal


def _axes(node: Node, dims: Dims, weight: tuple[int, ...]) -> tuple[ConvAxis, ...] | Refusal:
    """Return the geometry of every spatial axis of a Conv node.

    Args:
        node: the Conv.
        dims: input extents [N, C, *spatial]; None where not known.
        weight: [O, C/group, *kernel].

    Returns:
        The axes with explicit pads (SAME as the ONNX operator text defines it), or a refusal
        where the attributes contradict each other or pads depend on an unknown extent.
    """
    axes = read_axes(node, dims[2:], weight[2:])
    if isinstance(axes, Refusal):
        return axes
    auto_pad = auto_pad_of(node)
    for i, axis in enumerate(axes):
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            pads = _same_pads(axis, auto_pad)
            if isinstance(pads, Refusal):
                return pads
            axes[i] = replace(axis, pad_begin=pads[0], pad_end=pads[1])
        elif auto_pad == "VALID":
            axes[i] = replace(axis, pad_begin=0, pad_end=0)
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


def _pads_by_extent(node: Node, axis: ConvAxis) -> bool:
    return axis.stride > 1 and auto_pad_of(node).startswith("SAME")


def _attributes(node: Node, fold: ConvFold) -> Attributes:
    """Return the attributes of a folded Conv."""
    lift = fold.lift
    return {
        "dilations": [1] * lift + [a.dilation for a in fold.window],
        "group": fold.new_group,
        "kernel_shape": fold.kernel,
        "pads": [0] * lift
        + [a.pad_begin for a in fold.window]
        + [0] * lift
        + [a.pad_end for a in fold.window],
        "strides": [1] * lift + [a.stride for a in fold.window],
    }


def auto_pad_of(node: Node) -> str:
    """Return the attribute `auto_pad`, "" where there is none."""
    return node.attributes.get_string("auto_pad", "")


def group_of(node: Node) -> int:
    """Return the number of groups of a node."""
    return node.attributes.get_int("group", 1)


CONV = Operator(
    inputs=Inputs(bias=2),
    axes=_axes,
    group=lambda node, shape: group_of(node),
    canonical=lambda weight, node: weight,
    stored=lambda weight, node, shape: weight,
    out_axis=lambda node, rank: 0,
    attributes=_attributes,
    pads_by_extent=_pads_by_extent,
)
CONV_INTEGER = replace(CONV, inputs=Inputs(data_zero=2, zero=3), integers=True)
QLINEAR_CONV = replace(CONV, inputs=replace(QLINEAR, bias=8), integers=True)
