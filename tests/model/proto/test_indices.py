"""Inputs whose whole numbers are indices or sizes, told from those that are data."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from widthfold_onnx.model.proto.indices import INDICES, index_limits

HEAD = '<ir_version: 10, opset_import: ["" : 18, "acme" : 1, "ai.onnx.ml" : 3]'


def limits(body: str, inputs: str = "int64[1, 24] i", functions: str = "") -> dict[str, int]:
    """The limits of a model with a table t [30, 2], another one s [2, 11], and numbers."""
    proto = parser.parse_model(f"{HEAD}> g ({inputs}) => (float y) {{ {body} }} {functions}")
    arrays = {"t": np.zeros((30, 2)), "s": np.zeros((2, 11)), "w": np.zeros((4, 1, 5))}
    constants = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    constants.append(numpy_helper.from_array(np.int64([1, -1]), "rows"))
    constants.append(numpy_helper.from_array(np.int64(7), "seven"))
    proto.graph.initializer.extend(constants)
    return index_limits(proto)


@pytest.mark.parametrize(
    "body",
    [
        "a = Cast<to = 3>(i) y = Cast<to = 1>(a)",
        "a = Mod(i, seven) y = Cast<to = 1>(a)",
        "a = Abs(i) b = Clip(a, seven) y = Cast<to = 1>(b)",
        "a = Cast<to = 1>(i) b = ArgMax(a) y = Gather(t, b)",
        "a = Greater(i, seven) b = NonZero(a) y = Gather(t, b)",
        "a = Shape(i) b = ConstantOfShape(a) y = Add(b, b)",
        "a = Cast<to = 1>(i) b, c = TopK(a, rows) y = Gather(t, c)",
        "a = Cast<to = 1>(i) y = Reshape(a, rows)",
        "a = Cast<to = 1>(i) y = acme.Filter(a)",
        "y = ai.onnx.ml.Scaler(i)",
    ],
)
def test_data(body: str) -> None:
    assert limits(body) == {}


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ("y = Gather(t, i)", 30),
        ("y = Gather<axis = 1>(s, i)", 11),
        ("y = Gather<axis = -1>(t, i)", 2),
        ("y = Gather<axis = 2>(t, i)", 2),
        ("a = Gather(t, i) b = Gather<axis = 1>(s, i) y = Mul(a, b)", 11),
        ("a = Reshape(i, rows) b = Cast<to = 6>(a) c = Transpose(b) y = Gather(t, c)", 30),
        ("k = Constant<value = float[3] {1, 2, 3}>() y = Gather(k, i)", 3),
        ("k = Constant<value = float[1] {1}>() y = Gather(k, i)", 1),
        ("a = Add(i, seven) y = Gather(t, a)", 2),
        ("a = Cast<to = 1>(i) b = Floor(a) c = Cast<to = 7>(b) y = Gather(t, c)", 2),
        ("a = Gather(t, seven) b = Gather(a, i) y = Abs(b)", 2),
        ("a = Reshape(i, rows) y = GatherND(t, a)", 2),
        ("a = Squeeze(i) b = ConstantOfShape(a) y = Add(b, b)", 2),
        ("a = Div(seven, i) y = Cast<to = 1>(a)", 2),
        ("a = Identity(i) y = acme.Look(t, a)", 2),
        ("y = ai.onnx.ml.ArrayFeatureExtractor(t, i)", 2),
    ],
)
def test_indices(body: str, limit: int) -> None:
    assert limits(body) == {"i": limit}


def test_each_input_by_itself() -> None:
    body = "a = Gather(t, i) b = Cast<to = 1>(x) c = Expand(b, n) y = Add(a, c)"
    assert limits(body, "int64[4, 6] i, int16[6] x, int64[2] n") == {"i": 30, "n": 2}


def test_nodes_may_stand_in_any_order() -> None:
    assert limits("y = Gather(t, c) c = Cast<to = 6>(b) b = Identity(a) a = Squeeze(i)") == {
        "i": 30
    }


def test_outputs_and_operands_that_are_left_out_have_nothing_to_do_with_each_other() -> None:
    body = "a, gone, b = Unique(i) f = Cast<to = 1>(a) r = Slice(f, rows, rows, left, rows)"
    proto = parser.parse_model(f"{HEAD}> g (int64[9] i, int64[2] rows) => (float r) {{ {body} }}")
    proto.graph.node[0].output[1] = proto.graph.node[2].input[3] = ""
    assert index_limits(proto) == {"rows": 2}


def test_bodies_and_functions_are_read() -> None:
    loop = """z, y = Loop(seven, , start) <body = turn (int64 k, bool c, float v)
        => (bool c2, float v2, float r) { c2 = Identity(c) v2 = Identity(v) r = Gather(t, i) }>"""
    assert limits(loop, "int64 i, float start") == {"i": 30}
    later = """z, y = Loop(seven, , i) <body = turn (int64 k, bool c, int64 v)
        => (bool c2, int64 v2, float r) { c2 = Identity(c) v2 = Add(v, k) r = Gather(t, v) }>"""
    assert limits(later, "int64 i") == {"i": 2}
    captured = """z, y = Loop(seven, , start) <body = turn (int64 k, bool c, int64 v)
        => (bool c2, int64 v2, float r) { c2 = Identity(c) r = Gather(t, v) v2 = Add(i, k) }>"""
    assert limits(captured, "int64 i, int64 start") == {"i": 2, "start": 2}
    turns = """z, y = Loop(, c, start) <body = turn (int64 k, bool d, float v)
        => (bool d2, float v2, float r) { d2 = Less(k, i) v2 = Identity(v) r = Identity(v) }>"""
    assert limits(turns, "int64 i, bool c, float start") == {"i": 2, "c": 2}
    shown = """z, y = Loop(seven, c, start) <body = turn (int64 k, bool d, float v)
        => (bool d2, float v2, float r) { d2 = Identity(d) v2 = Identity(v) r = Abs(x) }>"""
    assert limits(shown, "float x, bool c, float start") == {"c": 2}
    branch = """y = If(c) <then_branch = a () => (float p) { p = Gather(t, i) },
        else_branch = b () => (float q) { q = Cast<to = 1>(i) }>"""
    assert limits(branch, "int64 i, bool c") == {"i": 30}
    function = '<domain: "acme", opset_import: ["" : 18]> Look (a, b) => (c) { c = Gather(b, a) }'
    assert limits("y = acme.Look(i, t)", functions=function) == {"i": 30}


def test_every_operand_that_can_only_be_an_integer_is_known() -> None:
    """Independent of the table: what onnx declares as int32 or int64 alone is no data."""
    wholes = {"tensor(int32)", "tensor(int64)"}
    exceptions = {("QLinearConv", 8), ("Scan", 0)}  # a bias; lengths, in opset 8 alone
    counts: dict[tuple[str, str], int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key = schema.domain, schema.name
        counts[key] = max(counts.get(key, 0), len(schema.inputs))
        if schema.domain in ("", "ai.onnx.ml"):
            for place, operand in enumerate(schema.inputs):
                if set(operand.types) <= wholes and (schema.name, place) not in exceptions:
                    assert place in INDICES.get(key, ()), (key, place)
    assert all(max(places) < counts.get(key, 99) for key, places in INDICES.items())
