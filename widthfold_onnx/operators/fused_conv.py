"""Describe FusedConv, a Conv with the activation behind it, as ONNX Runtime's optimizer writes it.

It adds its input Z, if it has one. Then it applies `activation` to every number alike
(contrib_defs.cc). So the activation of a fold is the fold of the activation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.model.graph.document import Node
from widthfold_onnx.model.shapes.inference import ACTIVATION
from widthfold_onnx.operators.base import FoldedOperator
from widthfold_onnx.operators.conv import CONV, Conv
from widthfold_onnx.refusal import Code, Refusal

ADDED = 3
"""Index of Z."""


@dataclass(frozen=True, kw_only=True)
class FusedConv(Conv):
    """A Conv with an activation."""

    activates: ClassVar[bool] = True

    def problem(self, node: Node) -> Refusal | None:
        """Refuse a node with an input Z."""
        if len(node.inputs) > ADDED and node.inputs[ADDED] is not None:
            return Refusal(Code.ADDS_A_TENSOR, "it adds another tensor before its activation")
        return None

    def folded(self, node: Node, fold: ConvFold) -> FoldedOperator:
        """Return a FusedConv with the same activation."""
        domain, op_type, attributes = super().folded(node, fold)
        activation = {name: node.attributes[name] for name in ACTIVATION if name in node.attributes}
        return FoldedOperator(domain, op_type, {**attributes, **activation})


FUSED_CONV = FusedConv(inputs=CONV.inputs)
