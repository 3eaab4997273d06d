"""Companions return what the nodes return that they replace, bit for bit, or say why not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from tests.folding import fold_model
from tests.lacking import needs_prelu
from tests.rewrite.proved import assert_proved
from tests.running import run
from widthfold_onnx import UsageError
from widthfold_onnx.options import Companion, FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite import exchange
from widthfold_onnx.rewrite.exchange import exchanged
from widthfold_onnx.rules.companions import COMPANIONS

PRELU, SCALAR, SPLIT = [Companion.PRELU], [Companion.SCALAR], [Companion.SPLIT]
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
TINY = float(np.finfo(np.float32).tiny)
LEAKY, MAX, MIN, WHERE = ("LeakyRelu",), ("Mul", "Max"), ("Mul", "Min"), ("Less", "Where", "Mul")
EDGES = (
    *(0.0, np.inf, np.nan, 1e-45, 1e-40, TINY, 1.5 * TINY, 0.1, 1.0, 1.0 + 2**-23, 3.0, 1e19),
    np.finfo(np.float32).max,
)


def net(slope: str, extents: str = "2,3,7", *, opset: int = 17, ir: int = 8) -> onnx.ModelProto:
    text = f"""<ir_version: {ir}, opset_import: ["" : {opset}]>
    net (float[{extents}] x) => (float[{extents}] y) <{slope}> {{ y = PRelu (x, s) }}"""
    return parser.parse_model(text)


def outcome(model: onnx.ModelProto) -> tuple[str, ...] | Refusal:
    after, matches = exchanged(model, None, PRELU)
    (match,) = matches
    assert (after is model) == isinstance(match.outcome, Refusal)
    return match.outcome


def bits(array: np.ndarray) -> bytes:
    return np.where(np.isnan(array), np.float32(np.nan), array).tobytes()


def edges(channels: int) -> np.ndarray:
    """Every special number of both signs in every channel."""
    line = np.array([*EDGES, *(-n for n in EDGES)], np.float32)
    return np.ascontiguousarray(np.broadcast_to(line, (1, channels, line.size)))


@pytest.fixture(autouse=True)
def keeping_inf(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is that of ONNX; where a runtime differs, tests of its bits are skipped."""
    monkeypatch.setattr(exchange, "prelu_keeps_inf", lambda: True)


def test_prelu_stays_where_the_runtime_makes_nan_of_inf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "prelu_keeps_inf", lambda: False)
    found = outcome(net("float[3,1] s = {0.3, 0.5, 1.0}"))
    assert isinstance(found, Refusal)
    assert (found.code, "NaN for an Inf" in found.reason) == (Code.INEXACT, True)


@needs_prelu
@pytest.mark.parametrize(
    ("slopes", "became"),
    [
        *(([s], LEAKY) for s in (0.25, 1.0, 0.0, -0.0, -0.5, 1.5, 1e-40, 3e38, np.inf)),
        ([0.3, 0.3, 0.3], LEAKY),
        ([0.3, 0.5, 1.0], MAX),
        ([TINY, 0.5, 1.0], MAX),
        ([-1.0, 0.5, 1.0], MAX),
        ([-3e38, -0.5, -TINY], MAX),
        ([1.0, 1.5, 3e38], MIN),
        ([0.0, 0.5, 0.0], WHERE),
        ([1e-40, 0.5, 1.0], WHERE),
        ([-1e-40, 0.5, 1.0], WHERE),
        ([-np.inf, 0.5, 1.0], WHERE),
        ([-1.0, 0.5, 2.0], WHERE),
        ([0.5, 2.0, 0.0], WHERE),
        ([1.0, 2.0, np.inf], WHERE),
    ],
)
@pytest.mark.parametrize("level", LEVELS)
def test_every_form_returns_the_same_bits(
    slopes: list[float], became: tuple[str, ...], level: str
) -> None:
    channels = max(len(slopes), 2)
    x, s = edges(channels), np.array(slopes, np.float32).reshape(-1, 1)
    before = net("float s = {0}", ",".join(map(str, x.shape)))
    before.graph.initializer[0].CopyFrom(numpy_helper.from_array(s, "s"))
    after, (match,) = exchanged(before, None, PRELU)
    assert match.outcome == became
    (wanted,), (found,) = run(before, x), run(after, x, level)
    with np.errstate(all="ignore"):
        defined = np.where(x < 0, x * s, x)
    assert bits(found) == bits(wanted) == bits(defined)
    if np.isfinite(s).all():
        assert_proved(before, after, 0)


@needs_prelu
def test_only_the_sign_of_zeros_at_the_end_differs_from_prelu() -> None:
    """With a slope below 0; the runtime's Max returns another one of two zeros there."""
    before = net("float[3,1] s = {-0.5, -1.0, 0.5}")
    after, (match,) = exchanged(before, None, PRELU)
    assert match.outcome == MAX
    x = np.array([0.0, -0.0, -1.5] * 14, np.float32).reshape(2, 3, 7)
    (wanted,), (found,) = run(before, x), run(after, x)
    np.testing.assert_array_equal(found, wanted)
    assert bits(found.ravel()[:40]) == bits(wanted.ravel()[:40])


@needs_prelu
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("slope", [0.25, 0.0, -0.5, 1.5])
def test_a_fused_companion_returns_the_same_bits(slope: float, level: str) -> None:
    """The runtime computes a LeakyRelu in the Conv before it."""
    x = edges(16)
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    net (float[1,16,{x.shape[2]}] x) => (float[1,16,{x.shape[2]}] y) <float[1] s = {{{slope}}}>
    {{ c = Conv<group=16>(x, w)  y = PRelu (c, s) }}"""
    before = parser.parse_model(text)
    one = np.ones((16, 1, 1), np.float32)
    before.graph.initializer.append(numpy_helper.from_array(one, "w"))
    after, _ = exchanged(before, None, PRELU)
    assert bits(run(after, x, level)[0]) == bits(run(before, x)[0])


@pytest.mark.parametrize(
    ("slope", "became"),
    [
        ("float s = {0.5}", LEAKY),
        ("float[1,3,1] s = {0.5, 0.25, 0.75}", MAX),
        ("float[7] s = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7}", MAX),
        ("float[2,3,7] s = {{{}}}".format(", ".join(["0.5"] * 41 + ["0.25"])), MAX),
        ("float[1,1,1,1] s = {0.5}", Code.INCONSISTENT_SHAPES),
        ("float[2] s = {0.5, 0.5}", Code.INCONSISTENT_SHAPES),
    ],
)
def test_slopes_are_broadcast_to_the_data_alone(slope: str, became: tuple[str, ...] | Code) -> None:
    found = outcome(net(slope))
    assert (found.code if isinstance(found, Refusal) else found) == became


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (net("float s = {0.5}", opset=6, ir=3), Code.OPSET_TOO_OLD),
        (net("float[3,1] s = {-0.5, 0.5, 2.0}", opset=8, ir=4), Code.OPSET_TOO_OLD),
        (net("float[3,1] s = {-0.0, 0.5, 2.0}"), Code.INEXACT),
        (net("float[3,1] s = {0.5, 0.5, 0.5}", "2,c,7"), Code.INCONSISTENT_SHAPES),
    ],
)
def test_refusals(model: onnx.ModelProto, code: Code) -> None:
    found = outcome(model)
    assert isinstance(found, Refusal)
    assert found.code == code


def test_an_overridable_slope_is_refused_and_one_of_ir_version_3_is_not() -> None:
    for ir, became in ((3, LEAKY), (4, Code.OVERRIDABLE)):
        model = net("float s = {0.5}", opset=9, ir=ir)
        model.graph.input.append(helper.make_tensor_value_info("s", 1, []))
        found = outcome(model)
        assert (found.code if isinstance(found, Refusal) else found) == became


def test_a_computed_slope_is_refused() -> None:
    model = net("float t = {0.5}")
    model.graph.node.insert(0, helper.make_node("ReduceMax", ["x"], ["s"], keepdims=0))
    found = outcome(model)
    assert isinstance(found, Refusal)
    assert found.code == Code.NOT_CONSTANT


@pytest.mark.parametrize("kind", ["float16", "double"])
def test_a_type_has_its_own_numbers(kind: str) -> None:
    """A float32 attribute holds 0.25 exactly, and not every double."""
    for number, became in ((0.25, LEAKY), (0.3, LEAKY if kind == "float16" else MAX)):
        array = np.array([number], kind)
        model = net("float t = {0}")
        del model.graph.initializer[:]
        model.graph.initializer.append(numpy_helper.from_array(array, "s"))
        for port in (*model.graph.input, *model.graph.output):
            port.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        assert outcome(model) == became
        assert_proved(model, exchanged(model, None, PRELU)[0], 0)


def test_half_floats_return_the_same_bits() -> None:
    x = np.array([0, -0.0, 6e-8, -6e-8, -1, 1, -3.3, np.inf, -np.inf, -6e4], np.float16)
    for numbers in ([0.3, 0.7], [1.5, 2.5], [-1.5, 0.5]):
        slopes = np.array(numbers, np.float16).reshape(2, 1)
        text = """<ir_version: 8, opset_import: ["" : 17]>
        net (float16[1,2,10] x) => (float16[1,2,10] y) { y = PRelu (x, s) }"""
        before = parser.parse_model(text)
        before.graph.initializer.append(numpy_helper.from_array(slopes, "s"))
        after, _ = exchanged(before, None, PRELU)
        feed = np.stack([x, x])[None]
        for level in LEVELS:
            assert run(after, feed, level)[0].tobytes() == run(before, feed)[0].tobytes()


SHARED = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
net (float[1,3,7] x, bool b) => (float[1,3,7] y, float[1,3,7] a, float[1,3,7] i)
<float[1] t = {0.5}, float[3,1] u = {0.5, -0.5, 2.0}, int8[3,1] q = {1, 2, 3}, float f = {0.25}>
{ s = DequantizeLinear (q, f)
  a = PRelu (x, s)  c = PRelu (a, s)  d = PRelu (c, t)  g = own.act (d)
  i = If (b) <then_branch = one () => (float[1,3,7] p) { p = PRelu (d, u) },
              else_branch = two () => (float[1,3,7] r) { k = PRelu (g, t)  r = PRelu (k, u) }>
  y = Neg (i) }
<domain: "own", opset_import: ["" : 17]> act (m) => (n)
{ v = Constant<value_float = 0.3> ()  n = PRelu (m, v) }"""


OTHER_OPSET = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
net (float[2,3] x) => (float[2,3] y) { y = own.act (x) }
<domain: "own", opset_import: ["" : 13]> act (m) => (n)
{ v = Constant<value_float = 0.3> ()  n = PRelu (m, v) }"""


def test_companions_stand_in_bodies_and_functions_and_share_constants() -> None:
    before = parser.parse_model(SHARED)
    after, matches = exchanged(before, None, PRELU)
    assert sorted(match.outcome for match in matches) == sorted(
        [MAX, MAX, LEAKY, LEAKY, LEAKY, WHERE, WHERE]
    )
    onnx.checker.check_model(after, full_check=True)
    assert_proved(before, after, 0)
    rng = np.random.default_rng(0)
    for chosen in (True, False):
        feeds = {"x": rng.standard_normal((1, 3, 7)).astype(np.float32), "b": np.array(chosen)}
        for wanted, found in zip(run(before, feeds), run(after, feeds), strict=True):
            assert wanted.tobytes() == found.tobytes()
    names = [tensor.name for tensor in after.graph.initializer]
    assert "t" not in names  # LeakyRelu does not read it
    assert "u" in names
    assert exchanged(after, None, PRELU) == (after, [])


def test_a_function_that_cannot_be_inlined_is_refused() -> None:
    found = outcome(parser.parse_model(OTHER_OPSET))
    assert isinstance(found, Refusal)
    assert found.code == Code.IN_FUNCTION


@pytest.mark.parametrize(
    "slopes", ["0.5, 0.5, 0.5", "0.5, 0.25, 1.0", "2.0, 1.0, 3.0", "0.0, 2.0, -1"]
)
def test_a_companion_stays_packed_between_folds(slopes: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    net (float[1,2,32] x) => (float[1,4,32] y) <float[3,1] s = {{{slopes}}}>
    {{ c = Conv<pads=[1,1]>(x, v)  p = PRelu (c, s)  y = Conv<pads=[1,1]>(p, w) }}"""
    before = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("v", (3, 2, 3)), ("w", (4, 3, 3))):
        weight = rng.integers(-4, 5, shape).astype(np.float32)
        before.graph.initializer.append(numpy_helper.from_array(weight, name))
    folded, _ = fold_model(exchanged(before, None, PRELU)[0], FoldOptions(factor=4))
    moves = [node.op_type for node in folded.graph.node if node.op_type in ("Reshape", "Transpose")]
    alone, _ = fold_model(before, FoldOptions(factor=4))
    assert len(moves) == sum(n.op_type in ("Reshape", "Transpose") for n in alone.graph.node) == 6
    assert_proved(before, folded, 2)
    x = rng.integers(-4, 5, (1, 2, 32)).astype(np.float32)
    assert run(folded, x)[0].tobytes() == run(before, x)[0].tobytes()


def test_a_companion_is_asked_for_by_its_name() -> None:
    model = net("float[3,1] s = {0.5, 0.25, 0.75}")
    for name in ("prelu", Companion.PRELU):
        found, _ = fold_model(model, FoldOptions(factor=8, companions=(name,)))
        assert [node.op_type for node in found.graph.node] == list(MAX)
    assert fold_model(model, FoldOptions(factor=8))[0] == model
    assert set(FoldOptions().exchanges) == set(COMPANIONS)
    assert FoldOptions(companions=("none",)).exchanges == ()
    for wrong in ("prelu", ("relu",), ("none", "prelu")):
        with pytest.raises(UsageError, match="companion"):
            FoldOptions(companions=wrong)


def test_every_companion_has_a_rule() -> None:
    assert set(COMPANIONS) == set(Companion) - {Companion.NONE}
    assert len(COMPANIONS) <= 5


def test_no_two_companions_match_the_same_operator() -> None:
    op_types = [op_type for rule in COMPANIONS.values() for op_type in rule.op_types]
    assert len(op_types) == len(set(op_types))


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
    after, (match,) = exchanged(before, None, SCALAR)
    assert match.outcome == (op,)
    held = {tensor.name: list(tensor.dims) for tensor in after.graph.initializer}
    (node,) = after.graph.node
    assert [held.get(name) for name in node.input] == (
        [None, [1, 1]] if operands.startswith("x") else [[1, 1], None]
    )
    assert_proved(before, after, 0)
    x = np.array([1, -4, 7, 8, 2, -9], np.int32).reshape(2, 3, 1)
    feed = x if kind == "int32" else np.where(x == 7, np.nan, x).astype(np.float32)
    for level in LEVELS:
        (wanted,), (found,) = run(before, feed), run(after, feed, level)
        assert wanted.shape == found.shape
        assert wanted.tobytes() == found.tobytes()


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
    assert exchanged(before, None, SCALAR) == (before, [])


def test_quantized_arithmetic_is_left_alone() -> None:
    before = column("q = QuantizeLinear (x, d) e = DequantizeLinear (q, d) y = Mul (e, c)")
    assert exchanged(before, None, SCALAR)[1] == []


def test_functions_are_not_inlined_for_a_number() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    net (float[2,3,1] x) => (float[2,3,1] y) <float c = {3}> { z = own.act (x)  y = Add (z, c) }
    <domain: "own", opset_import: ["" : 17]> act (m) => (n)
    { v = Constant<value_float = 3.0> ()  n = Mul (m, v) }"""
    before = parser.parse_model(text)
    before.graph.value_info.append(helper.make_tensor_value_info("z", 1, [2, 3, 1]))
    after, (match,) = exchanged(before, None, SCALAR)
    assert (match.name.node, len(after.functions)) == ("Add -> y", 1)


def gated(
    body: str, weight: str = "float[5,3,3] w", kind: str = "float", opset: int = 17
) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
    net ({kind}[2,3,9] x) => ({kind}[i,j,k] y, {kind}[l,m,n] z)
    <{weight}, float[5] b, int64[2] n = {{2, 3}}, float f = {{0.5}}, int8 o = {{0}}> {{ {body} }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(3)
    for info in model.graph.value_info:
        shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        array = rng.integers(-4, 5, shape).astype(dtype)
        model.graph.initializer.append(numpy_helper.from_array(array, info.name))
    del model.graph.value_info[:]
    return model


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("c = Conv<pads=[1,1]> (x, w, b)  y, z = Split<axis=1> (c, n)", 13),
        ("c = Conv<dilations=[2], strides=[2]> (x, w)  y, z = Split<axis=-2> (c, n)", 17),
        ("c = Conv (x, w)  y, z = Split<axis=1, split=[2,3]> (c)", 11),
        ("c = Conv (x, w, b)  y, z = Split<axis=1, num_outputs=2> (c)", 18),
        ("c = Conv (x, w, b)  p, z = Split<axis=1> (c, n)  y = Relu (p)", 13),
    ],
)
@pytest.mark.parametrize("level", LEVELS)
def test_a_conv_computes_each_part_of_a_split(body: str, opset: int, level: str) -> None:
    before = gated(body, opset=opset)
    after, (match,) = exchanged(before, None, SPLIT)
    assert match.outcome == ("Conv", "Conv")
    assert [n.op_type for n in after.graph.node if n.op_type != "Relu"] == ["Conv", "Conv"]
    assert "w" not in {tensor.name for tensor in after.graph.initializer}
    onnx.checker.check_model(after, full_check=True)
    assert_proved(before, after, 0)
    x = np.random.default_rng(4).integers(-4, 5, (2, 3, 9)).astype(np.float32)
    for wanted, found in zip(run(before, x), run(after, x, level), strict=True):
        np.testing.assert_array_equal(found, wanted, strict=True)


def test_each_part_has_the_pad_before_the_conv() -> None:
    """ONNX Runtime merges a Pad with the one Conv that reads it."""
    body = "p = Pad (x, e)  c = Conv (p, w, b)  y, z = Split<axis=1> (c, n)"
    before = gated(body)
    ends = numpy_helper.from_array(np.array([0, 0, 2, 0, 0, 0]), "e")
    before.graph.initializer.append(ends)
    after, _ = exchanged(before, None, SPLIT)
    assert sorted(node.op_type for node in after.graph.node) == ["Conv", "Conv", "Pad", "Pad"]
    assert_proved(before, after, 0)
    before.graph.node.append(helper.make_node("Relu", ["p"], ["r"]))
    after, _ = exchanged(before, None, SPLIT)
    assert sorted(n.op_type for n in after.graph.node) == ["Conv", "Conv", "Pad", "Relu"]
    del before.graph.node[-1]
    before.graph.output.append(helper.make_tensor_value_info("p", 1, [2, 3, 11]))
    after, _ = exchanged(before, None, SPLIT)
    assert sorted(node.op_type for node in after.graph.node) == ["Conv", "Conv", "Pad"]


def test_weights_of_the_same_bytes_keep_their_shapes() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[1,2,5,5] x) => (float[i,j,k,l] p, float[i,j,k,l] q, float[i,j,m,n] r)
    { c = Conv (x, v)  p, q = Split<axis=1> (c)  d = Conv (x, w)  r, s = Split<axis=1> (d) }"""
    before = parser.parse_model(text)
    for name, shape in (("v", (4, 2, 3, 1)), ("w", (4, 2, 1, 3))):
        before.graph.initializer.append(numpy_helper.from_array(np.ones(shape, "f"), name))
    after, _ = exchanged(before, None, SPLIT)
    assert_proved(before, after, 0)
    assert [list(tensor.dims) for tensor in after.graph.initializer] == [[2, 2, 3, 1], [2, 2, 1, 3]]


@pytest.mark.parametrize(
    ("body", "weight"),
    [
        ("c = Conv (x, w)  y, e = Split<axis=1> (c, n)  z = Relu (c)", "float[5,3,3] w"),
        ("z = Conv (x, w)  y, e = Split<axis=1> (z, n)", "float[5,3,3] w"),
        ("c = Conv (x, w)  y, z = Split<axis=2> (c, n)", "float[5,3,5] w"),
        ("r = Relu (w)  c = Conv (x, r)  y, z = Split<axis=1> (c, n)", "float[5,3,3] w"),
        ("c = Conv<group=3> (x, w)  y, z = Split<axis=1> (c)", "float[6,1,3] w"),
        (
            "d = DequantizeLinear (w, f, o) c = Conv (x, d) y, z = Split<axis=1> (c, n)",
            "int8[5,3,3] w",
        ),
        ("c = Relu (x)  y, z = Split<axis=1, num_outputs=2> (c)", "float[5,3,3] w"),
    ],
)
def test_other_splits_are_left_alone(body: str, weight: str) -> None:
    before = gated(body, weight, opset=18)
    if "Relu (w)" in body:  # a caller may give other weights
        before.graph.input.append(helper.make_tensor_value_info("w", 1, [5, 3, 3]))
    assert exchanged(before, None, SPLIT) == (before, [])


@pytest.mark.parametrize(
    ("body", "weight"),
    [
        ("c = Conv (x, f)  y, z = Split<axis=1> (c, n)", "float[5,3,3] w"),
        ("c = Conv (x, b)  y, z = Split<axis=0> (c, n)", "float[5,3,3] w"),
        ("c = Conv (x, w, f)  y, z = Split<axis=1> (c, n)", "float[5,3,3] w"),
        ("c = Conv (x, w, b)  y, z = Split<axis=1> (c)", "float[4,3,3] w"),
    ],
)
def test_a_conv_whose_shapes_do_not_fit_is_left_alone(body: str, weight: str) -> None:
    before = gated(body, weight)
    for port, extents in zip(before.graph.output, ([2], [3]), strict=True):
        if "axis=0" in body:
            port.CopyFrom(helper.make_tensor_value_info(port.name, 1, extents))
    assert exchanged(before, None, SPLIT) == (before, [])


def test_a_conv_that_the_model_describes_elsewhere_is_left_alone() -> None:
    body = "c = Conv (x, w, b)  y, z = Split<axis=1> (c, n)"
    annotated, sharded = gated(body), gated(body)
    annotated.graph.quantization_annotation.add().tensor_name = "w"
    sharded.graph.node[0].device_configurations.add().configuration_id = "two"
    for before in (annotated, sharded):
        assert exchanged(before, None, SPLIT) == (before, [])


def test_parts_whose_sizes_are_inputs_are_left_alone() -> None:
    """Not even sizes that the model declares are known: a caller may ask for others."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[1,3,7] x, int64[2] n) => (float[1,2,5] y, float[1,3,5] z) <float[5,3,3] w = {%s}>
    { c = Conv (x, w)  y, z = Split<axis=1> (c, n) }"""
    before = parser.parse_model(text % ",".join(["0.5"] * 45))
    assert exchanged(before, None, SPLIT) == (before, [])
