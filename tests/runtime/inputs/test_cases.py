"""Values of inputs that choose between parts of a model are read from its graph."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from widthfold_onnx.errors import UsageError
from widthfold_onnx.runtime.inputs.cases import cases
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.session import Port

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
CHOOSE = "y = If (c) <then_branch = t () => (float[2] a) { a = Neg (x) }, \
else_branch = e () => (float[2] b) { b = Abs (x) }>"


def model(inputs: str, body: str, **constants: object) -> onnx.ModelProto:
    text = f"{HEAD} g (float[2] x, {inputs}) => (float[2] y) {{ {body} }}"
    proto = parser.parse_model(text)
    for name, value in constants.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    return proto


def values(proto: onnx.ModelProto, fixed: dict[str, tuple[float, ...]] | None = None):
    return [{n: v[0] for n, v in case.items()} for case in cases(proto, fixed or {})]


@pytest.mark.parametrize(
    ("op", "constant", "expected"),
    [
        ("Equal (sr, k)", 16000, [16000, 8000]),
        ("Equal (k, sr)", 16000, [16000, 8000]),
        ("Equal (sr, k)", 0, [0, 1]),
        ("Less (sr, k)", 10, [5, 10]),
        ("Less (k, sr)", 10, [15, 10]),
        ("LessOrEqual (sr, k)", 10, [10, 15]),
        ("Greater (sr, k)", 10, [15, 10]),
        ("GreaterOrEqual (sr, k)", 10, [10, 5]),
        ("GreaterOrEqual (k, sr)", 10, [10, 15]),
    ],
)
def test_each_side_of_a_comparison_is_reached_and_the_one_that_holds_comes_first(
    op: str, constant: int, expected: list[int]
) -> None:
    choices = values(model("int64 sr", f"c = {op} {CHOOSE}", k=np.int64(constant)))
    assert choices == [{"sr": value} for value in expected]
    holds = {"Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal}
    holds |= {"Greater": np.greater, "GreaterOrEqual": np.greater_equal}
    name, _, operands = op.partition(" ")
    sides = [
        [{"sr": v, "k": constant}[n] for n in operands.strip("()").split(", ")] for v in expected
    ]
    assert [bool(holds[name](*side)) for side in sides] == [True, False]


def test_a_mask_of_many_constants_hides_nothing() -> None:
    body = (
        "m = GreaterOrEqual (k, low) n = LessOrEqual (k, high) b = And (m, n) y = Where (b, x, x)"
    )
    choices = values(model("float low, float high", body, k=np.float32([46.875, 2093.75])))
    assert choices == [{"low": 46.875, "high": 2093.75}]


def test_a_value_that_is_compared_twice_reaches_three_branches() -> None:
    body = f"c = Equal (sr, k) d = Equal (sr, l) {CHOOSE}"
    choices = values(model("int64 sr", body, k=np.int64(16000), l=np.int64(8000)))
    assert choices == [{"sr": 16000}, {"sr": 8000}, {"sr": 4000}]


def test_indices_lie_in_their_table_and_flags_take_both_values() -> None:
    body = "r = Gather (table, mode) z = Add (x, r) c = Cast <to = 9> (flag) " + CHOOSE
    choices = values(model("int64 mode, int64 flag", body, table=np.zeros((6, 2), np.float32)))
    assert {case["mode"] for case in choices} == {0, 1, 2, 5}
    assert {case["flag"] for case in choices} == {0, 1}
    assert choices[0] == {"flag": 1, "mode": 0}


def test_a_constant_and_an_input_are_known_behind_ops_that_only_move_them() -> None:
    body = "k = Constant <value_ints = [7]> () s = Squeeze (k) u = Cast <to = 7> (sr) "
    proto = model("int32 sr", f"{body} c = Equal (u, s) {CHOOSE}")
    assert values(proto) == [{"sr": 7}, {"sr": 3}]


def test_a_comparison_in_a_branch_or_in_a_function_counts() -> None:
    text = (
        HEAD.replace('"" : 17', '"" : 17, "own" : 1')
        + "g (float[2] x, int64 sr) => (float[2] y) { y = own.choose (x, sr) }"
        + '<domain: "own", opset_import: ["" : 17]> choose (x, sr) => (y) '
        + "{ k = Constant <value_int = 9> () c = Equal (sr, k) y = If (c) "
        + "<then_branch = t () => (float[2] a) { a = Neg (x) }, "
        + "else_branch = e () => (float[2] b) { b = Abs (x) }> }"
    )
    assert values(parser.parse_model(text)) == [{"sr": 9}, {"sr": 4}]
    body = CHOOSE.replace("a = Neg (x)", "m = Less (sr, k) a = Where (m, x, x)")
    assert values(model("bool c, int64 sr", body, k=np.int64(4)))[0] == {"c": 1, "sr": 2}


@pytest.mark.parametrize("inputs", ["int64[9] sr", "int64[N] sr", "string sr"])
def test_signals_and_texts_stay_random(inputs: str) -> None:
    body = "c0 = Equal (sr, k) y = Abs (x)" if "string" not in inputs else "y = Abs (x)"
    assert cases(model(inputs, body, k=np.int64(3)), {}) == ({},)


def test_many_combinations_become_few_in_which_each_value_occurs() -> None:
    names = [f"s{i}" for i in range(4)]
    body = " ".join(f"c{n} = Equal ({n}, k)" for n in names) + " y = Abs (x)"
    choices = values(model(", ".join(f"int64 {n}" for n in names), body, k=np.int64(4)))
    assert choices == [dict.fromkeys(names, 4), dict.fromkeys(names, 2)]


def test_a_function_that_cannot_be_inlined_stays_unread() -> None:
    proto = model("int64 sr", f"c = Equal (sr, k) {CHOOSE}", k=np.int64(4))
    function = proto.functions.add(domain="own", name="old")
    function.opset_import.add(version=9)
    node = function.node.add(op_type="Upsample")
    node.output.append("u")
    assert values(proto) == [{"sr": 4}, {"sr": 2}]


def test_a_value_of_few_bits_stays_in_its_range() -> None:
    ports = [Port("x", "int8", (), (180.0,)), Port("y", "uint8", (2,), (-3.0,))]
    feeds = random_feeds(ports, 0, {"x": (), "y": (2,)})
    assert {name: array.tolist() for name, array in feeds.items()} == {"x": 127, "y": [0, 0]}


def test_a_fixed_value_is_the_only_one() -> None:
    proto = model("int64 sr, float[3] limits", f"c = Equal (sr, k) {CHOOSE}", k=np.int64(4))
    assert cases(proto, {"sr": (7,)}) == ({"sr": (7,)},)
    assert cases(proto, {"limits": (1, 2, 3)})[1] == {"limits": (1, 2, 3), "sr": (2.0,)}


@pytest.mark.parametrize(
    ("fixed", "reason"),
    [
        ({"rate": (1,)}, "rate, which is no input; there are: x, sr"),
        ({"sr": (1, 2)}, "sr 2 elements; it has 1"),
        ({"sr": (1.5,)}, "sr 1.5; it holds int64"),
        ({"sr": ()}, "sr no finite number"),
        ({"sr": (float("inf"),)}, "sr no finite number"),
        ({"sr": (1e30,)}, "sr 1e+30; it holds int64"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(fixed, reason: str) -> None:
    with pytest.raises(UsageError, match=reason.replace("+", r"\+")):
        cases(model("int64 sr", "y = Abs (x)"), fixed)
