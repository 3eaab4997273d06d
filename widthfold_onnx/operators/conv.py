"""Describe Conv, QLinearConv, ConvInteger and FusedConv: the canonical linear operators.

FusedConv is a Conv with the activation behind it, as ONNX Runtime's optimizer writes it. It adds
its input Z, if there is one, and then applies `activation` to each number alone (contrib_defs.cc),
so the folded node can apply it as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from widthfold_onnx.algebra.axis import ConvAxis
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.arrays import Dims
from widthfold_onnx.model.document import Attributes, Node
from widthfold_onnx.model.proto.walk import operator_of
from widthfold_onnx.model.shapes.inference import ACTIVATION
from widthfold_onnx.operators.base import (
    QLINEAR,
    FoldedOperator,
    Inputs,
    Operator,
    Scales,
    inconsistent_shapes,
    read_axes,
)
from widthfold_onnx.refusal import Code, Refusal


@dataclass(frozen=True, kw_only=True)
class Conv(Operator):
    """A Conv, whose data is [N, C, *spatial]."""

    @property
    def scales(self) -> Sequence[Scales]:
        """The scales of the weight only: data and result have one number each (operator texts)."""
        return [
            Scales("weight", (self.inputs.weight_scale, self.inputs.weight_zero), per_channel=True)
        ]

    def data_problem(self, node: Node, data: Dims, weight: tuple[int, ...]) -> Refusal | None:
        """Refuse ranks that differ or are unusual, and groups that do not divide the weight."""
        if len(data) != len(weight) or not 3 <= len(data) <= 5:
            return Refusal(
                Code.RANK_UNSUPPORTED,
                f"input of rank {len(data)} and weight of rank {len(weight)}: 1 to 3 spatial axes "
                "fold",
            )
        group = group_of(node)
        # The groups divide the first axis of the weight, both of a Conv and of a ConvTranspose.
        if group < 1 or weight[0] % group:
            return inconsistent_shapes(data, weight, f" and group {group}")
        return None

    def data_shape(self, node: Node, stored: Dims, channels: int) -> Dims:
        """Return the extents as they are; open channels are those of the weight."""
        batch, declared, *spatial = stored
        return (batch, channels if declared is None else declared, *spatial)

    def axes(
        self, node: Node, dims: Dims, weight: tuple[int, ...]
    ) -> tuple[ConvAxis, ...] | Refusal:
        """Return the geometry of every spatial axis, with SAME as the operator text defines it."""
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

    def pad_period(self, node: Node, axis: ConvAxis) -> int | None:
        """Return the stride for SAME, whose pads depend on the extent modulo the stride; else 1."""
        return axis.stride if auto_pad_of(node).startswith("SAME") else 1

    def group(self, node: Node) -> int:
        """Return the attribute `group`, by default 1."""
        return group_of(node)

    def folded_operator(self, node: Node, fold: ConvFold) -> FoldedOperator:
        """Return a Conv; a Gemm if the fold leaves no axis (`ConvFold.summed`)."""
        if not fold.kernel:
            return FoldedOperator("", "Gemm", {"transB": 1})
        domain, op_type = operator_of(node)
        return FoldedOperator(domain, "Conv" if self.transposed else op_type, _attributes(fold))


def _same_pads(axis: ConvAxis, auto_pad: str) -> tuple[int, int] | Refusal:
    """Return the pads with which the output has ceil(length / stride) positions."""
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


def _attributes(fold: ConvFold) -> Attributes:
    """Return the attributes of a folded Conv."""
    axes = fold.window
    return {
        "dilations": [a.dilation for a in axes],
        "group": fold.new_group,
        "kernel_shape": fold.kernel,
        "pads": [*(a.pad_begin for a in axes), *(a.pad_end for a in axes)],
        "strides": [a.stride for a in axes],
    }


def auto_pad_of(node: Node) -> str:
    """Return the attribute `auto_pad`, "" where there is none."""
    return node.attributes.get_string("auto_pad", "")


def group_of(node: Node) -> int:
    """Return the attribute `group`, by default 1."""
    return node.attributes.get_int("group", 1)


CONV = Conv(inputs=Inputs(bias=2))
CONV_INTEGER = Conv(inputs=Inputs(data_zero=2, weight_zero=3), takes_integers=True)
QLINEAR_CONV = Conv(inputs=replace(QLINEAR, bias=8), takes_integers=True)


ADDEND = 3
"""Index of the input Z, a tensor that the node adds."""


@dataclass(frozen=True, kw_only=True)
class FusedConv(Conv):
    """A Conv followed by an activation in the same node."""

    activates: ClassVar[bool] = True

    def problem(self, node: Node) -> Refusal | None:
        """Refuse a node with an input Z."""
        if len(node.inputs) > ADDEND and node.inputs[ADDEND] is not None:
            return Refusal(Code.ADDS_A_TENSOR, "it adds another tensor before its activation")
        return None

    def folded_operator(self, node: Node, fold: ConvFold) -> FoldedOperator:
        """Return a FusedConv with the same activation."""
        domain, op_type, attributes = super().folded_operator(node, fold)
        activation = {name: node.attributes[name] for name in ACTIVATION if name in node.attributes}
        return FoldedOperator(domain, op_type, {**attributes, **activation})


FUSED_CONV = FusedConv(inputs=CONV.inputs)
