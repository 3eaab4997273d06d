"""A branch that no extents choose must be in the original; a new branch is not provable."""

from __future__ import annotations

import onnx
import pytest

from tests.rewrite.proved import proof


def model(chosen: str, other: str) -> onnx.ModelProto:
    """The condition holds for 4 axes, and x has 2; one extent is open."""
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[n, 6] x) => (float[p, q] y)
        <int64 four = {{4}}, int64[3] first = {{-1, 2, 3}}, int64[2] back = {{-1, 6}}> {{
          shape = Shape(x) axes = Size(shape) c = Equal(axes, four)
          y = If(c) <
            then_branch = yes () => (float[p, q] a) {{ {other} }},
            else_branch = no () => (float[p, q] b) {{ {chosen} }}
          >
        }}"""
    )


NEG = "b = Neg(x)"
MOVED = "r = Reshape(x, first) s = Neg(r) b = Reshape(s, back)"
FORMER = model(NEG, "a = Abs(x)")


@pytest.mark.parametrize(
    ("chosen", "other", "verdict"),
    [
        (MOVED, "a = Abs(x)", "equal"),
        (MOVED, "a = Relu(x)", "not provable"),
        ("b = Abs(x)", "a = Abs(x)", "different"),
    ],
)
def test_a_branch_that_is_never_chosen(chosen: str, other: str, verdict: str) -> None:
    assert proof(FORMER, model(chosen, other), {"x": (5, 6)}).verdict == verdict
