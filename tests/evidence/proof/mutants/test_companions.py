"""The proof knows the ops that companions exchange, and finds every fault in them.

What counts as a fault is decided by onnx's reference implementation (`mutants.judge`).
"""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

from tests.evidence.mutants import companions
from tests.evidence.mutants.judge import Judgement
from tests.evidence.mutants.mutant import Mutant, check, check_right
from tests.evidence.mutants.proof import difference


def test_right_companions_are_equal() -> None:
    check_right(companions.original(), companions.right())
    check_right(companions.trims(), companions.cropped())


@pytest.mark.parametrize("mutant", list(companions.mutants()), ids=str)
def test_a_fault_is_found(mutant: Mutant) -> None:
    assert check(mutant, {}) is not Judgement.SAME


def net(body: str) -> onnx.ModelProto:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[2,3,5] x) => (float[2,3,5] y) <float s = {0.5}, float t = {0.25}> """
    return parser.parse_model(f"{text} {{ {body} }}")


@pytest.mark.parametrize(
    ("body", "other"),
    [
        ("m = Mul(s, x) y = Max(m, x)", "y = PRelu(x, s)"),
        ("m = Mul(x, s) y = Max(x, m)", "y = LeakyRelu<alpha=0.5>(x)"),
        ("i = Identity(x) m = Mul(i, s) y = Max(x, m)", "y = PRelu(x, s)"),
        ("m = Mul(x, s) n = Identity(m) y = Max(x, n)", "y = PRelu(x, s)"),
        ("m = Mul(x, s) r = Mul(m, t) y = Max(m, r)", "m = Mul(x, s) y = PRelu(m, t)"),
    ],
)
def test_equal_nets(body: str, other: str) -> None:
    assert difference(net(body), net(other)) == ""


@pytest.mark.parametrize(
    ("body", "other"),
    [
        ("m = Mul(x, s) y = Max(x, m)", "m = Mul(x, t) y = Max(x, m)"),
        ("m = Mul(x, s) y = Min(x, m)", "y = PRelu(x, s)"),
        # The product was moved: its elements come from other places.
        (
            "m = Mul(x, s) p = Transpose<perm=[0,2,1]>(m) q = Reshape(p, e) y = Max(x, q)",
            "y = PRelu(x, s)",
        ),
        ("m = Mul(x, x) y = Max(x, m)", "y = PRelu(x, s)"),
        ("y = Sub(x, s)", "m = Constant<value_float=0.5>() y = Sub(m, x)"),
        ("y = Sub(x, s)", "y = Sub(x, t)"),
        ("y = Sub(x, s)", "h = Constant<value_ints=[1,1,1,1]>() m = Reshape(s, h) y = Sub(x, m)"),
    ],
)
def test_different_nets(body: str, other: str) -> None:
    before, after = net(f"e = Constant<value_ints=[2,3,5]>() {body}"), net(other)
    assert "different" in difference(before, after)
