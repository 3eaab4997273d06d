"""Nets of one PRelu, and the ops that replace it."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

from tests.folding import exchange_all
from widthfold_onnx.options import Companion
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.runtime import kernels

PRELU = [Companion.PRELU]
LEAKY, MAX, MIN, WHERE = ("LeakyRelu",), ("Mul", "Max"), ("Mul", "Min"), ("Less", "Where", "Mul")


def net(slope: str, extents: str = "2,3,7", *, opset: int = 17, ir: int = 8) -> onnx.ModelProto:
    text = f"""<ir_version: {ir}, opset_import: ["" : {opset}]>
    net (float[{extents}] x) => (float[{extents}] y) <{slope}> {{ y = PRelu (x, s) }}"""
    return parser.parse_model(text)


def replacements(model: onnx.ModelProto) -> tuple[str, ...] | Refusal:
    after, matches = exchange_all(model, PRELU)
    (match,) = matches
    assert (after is model) == isinstance(match.replacements, Refusal)
    return match.replacements


@pytest.fixture(autouse=True)
def keeping_inf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply the rule as ONNX defines it; tests of bits are skipped on runtimes that differ."""
    monkeypatch.setattr(kernels, "prelu_keeps_inf", lambda: True)
