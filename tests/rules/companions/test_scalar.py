"""A number beside a column becomes a matrix of one element: the same bits, or it is left alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from tests.folding import exchange_all
from tests.rewrite.proved import assert_proved
from tests.running import run
from widthfold_onnx.options import Companion

SCALAR = [Companion.SCALAR]
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def column(body: str, extents: str = "2,3,1", kind: str = "float") -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    net ({kind}[{extents}] x) => ({kind} y)
    <{kind}[1] c = {{3}}, {kind} d = {{3}}, {kind}[1,1] m = {{3}}, {kind}[3,1] v = {{1, 2, 3}}>
    {{ {body} }}"""
    return parser.parse_model(text)


@pytest.mark.parametrize("op", ["Add", "Div", "Mul", "Sub"])
@pytest.mark.parametrize("operands", ["x, c", "c, x", "x, d", "d, x"])
@pytest.mark.parametrize("kind", ["float", "int32"])
def test_a_number_beside_a_column_becomes_a_matrix(op: str, operands: str, kind: str) -> None:
    before = column(f"y = {op} ({operands})", kind=kind)
    after, (match,) = exchange_all(before, SCALAR)
    assert match.replacements == (op,)
    held = {tensor.name: list(tensor.dims) for tensor in after.graph.initializer}
    (node,) = after.graph.node
    assert [held.get(name) for name in node.input] == (
        [None, [1, 1]] if operands.startswith("x") else [[1, 1], None]
    )
    assert_proved(before, after, 0)
    x = np.array([1, -4, 7, 8, 2, -9], np.int32).reshape(2, 3, 1)
    feed = x if kind == "int32" else np.where(x == 7, np.nan, x).astype(np.float32)
    for level in LEVELS:
        (expected,), (result,) = run(before, feed), run(after, feed, level)
        assert expected.shape == result.shape
        assert expected.tobytes() == result.tobytes()


@pytest.mark.parametrize(
    ("body", "extents"),
    [
        ("y = Mul (x, c)", "2,1,3"),
        ("y = Mul (x, c)", "1"),
        ("y = Mul (x, m)", "2,3,1"),
        ("y = Mul (x, v)", "2,3,1"),
        ("y = Mul (x, x)", "2,3,1"),
        ("y = Pow (x, c)", "2,3,1"),
        ("e = ReduceMax<keepdims=0> (x) y = Mul (x, e)", "2,3,1"),
    ],
)
def test_other_arithmetic_is_left_alone(body: str, extents: str) -> None:
    before = column(body, extents)
    assert exchange_all(before, SCALAR) == (before, [])


def test_quantized_arithmetic_is_left_alone() -> None:
    before = column("q = QuantizeLinear (x, d) e = DequantizeLinear (q, d) y = Mul (e, c)")
    assert exchange_all(before, SCALAR)[1] == []


def test_functions_are_not_inlined_for_a_number() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    net (float[2,3,1] x) => (float[2,3,1] y) <float c = {3}> { z = own.act (x)  y = Add (z, c) }
    <domain: "own", opset_import: ["" : 17]> act (m) => (n)
    { v = Constant<value_float = 3.0> ()  n = Mul (m, v) }"""
    before = parser.parse_model(text)
    before.graph.value_info.append(helper.make_tensor_value_info("z", 1, [2, 3, 1]))
    after, (match,) = exchange_all(before, SCALAR)
    assert (match.name.node, len(after.functions)) == ("Add -> y", 1)
