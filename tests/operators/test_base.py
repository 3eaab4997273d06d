"""Answers of each operator description, and tables elsewhere that name the same inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx
import pytest

from widthfold_onnx.evidence.timing import profile
from widthfold_onnx.model.document import Document, Node
from widthfold_onnx.model.shapes import inference
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.operators.base import Inputs
from widthfold_onnx.operators.matmul import Product
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules import layer_reading
from widthfold_onnx.rules.layers import Site

EINSUM = ("", "Einsum")
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4, 6] x) => (float[6, 4] y) { y = Einsum <equation = "ij->ji"> (x) }"""
REFUSAL = Refusal(Code.INCONSISTENT_ATTRIBUTES, "it has one operand")


def unasked(*_: object) -> Any:
    raise AssertionError("asked of a node that it does not describe")


@dataclass(frozen=True, kw_only=True)
class OfTwoOperands(Product):
    """A description that holds for no node."""

    def problem(self, node: Node) -> Refusal | None:
        return REFUSAL

    canonical_weight = stored_weight = axes = out_axis = group = unasked
    data_shape = data_problem = unasked


def test_a_description_that_does_not_hold_is_asked_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No input of a unary Einsum is read: it has no second input that could be the weight."""
    both = OfTwoOperands(), OfTwoOperands(inputs=Inputs(data=1, weight=0))
    monkeypatch.setattr(layer_reading, "OPERATORS", {EINSUM: both})
    document = Document(onnx.parser.parse_model(TEXT), None, [EINSUM])
    ((scope, node),) = document.nodes([EINSUM])
    result = layer_reading.read_layer(document, Site(node, scope, "", "Einsum"), unasked, unasked)
    assert result is REFUSAL


def test_tables_of_weights_agree_with_the_descriptions() -> None:
    described = {op: operators[0].inputs.weight for (_, op), operators in OPERATORS.items()}
    assert described.items() <= profile.WEIGHTS.items()
    assert inference.WEIGHT_POSITIONS.items() <= described.items()
