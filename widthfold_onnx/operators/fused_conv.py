"""Describe FusedConv, a Conv with the activation behind it, as ONNX Runtime's optimizer writes it.

It adds its input Z, if it has one, and then applies `activation` to every number alike
(contrib_defs.cc), so that the activation of a fold is the fold of the activation.
"""

from __future__ import annotations

from dataclasses import replace

from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.algebra.conv_axis import ConvAxis
from widthfold_onnx.model.graph.document import Attributes, Node
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.shapes.inference import ACTIVATION
from widthfold_onnx.operators.conv import CONV
from widthfold_onnx.refusal import Code, Refusal

ADDED = 3
"""Index of Z."""


def _axes(node: Node, dims: Dims, weight: tuple[int, ...]) -> tuple[ConvAxis, ...] | Refusal:
    if len(node.inputs) > ADDED and node.inputs[ADDED] is not None:
        return Refusal(Code.ADDS_A_TENSOR, "it adds another tensor before its activation")
    return CONV.axes(node, dims, weight)


def _attributes(node: Node, fold: ConvFold) -> Attributes:
    kept = {name: node.attributes[name] for name in ACTIVATION if name in node.attributes}
    return {**CONV.attributes(node, fold), **kept}


FUSED_CONV = replace(CONV, axes=_axes, attributes=_attributes)
