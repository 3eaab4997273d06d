"""The original in float64: every type is widened, and an output without a truth says so."""

import math
import re

import numpy as np
import onnxruntime as ort  # noqa: TID251 - its numbers are the oracle of the truth
import pytest
from onnx import TensorProto, parser

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.parity import truth
from widthfold_onnx.evidence.parity.truth import evaluate, true_outputs
from widthfold_onnx.evidence.proof.float64 import widen
from widthfold_onnx.model.loader import load
from widthfold_onnx.runtime.inputs.feeds import InputSet

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
NEG = "g (float[N] x) => (float[N] y) { y = Neg(x) }"


def parsed(text):
    return parser.parse_model(HEAD + text)


def loaded(folder, text):
    path = folder / "model.onnx"
    path.write_bytes(parsed(text).SerializeToString())
    return load(path)


def test_everything_is_widened():
    model = parsed(
        "g (float16[3] x) => (float16[3] y) <float16 w = {11878}> {"
        " a = Mul(x, w)\n b = Cast<to = 1>(a)\n c = Constant<value_float = 0.1>()\n"
        " d = Add(b, c)\n e = Cast<to = 10>(d)\n y = Exp(e) }",
    )
    assert np.float16(0.1).view(np.uint16) == 11878  # the parser takes the bits
    x = np.array([0.3, -1.7, 2.9], np.float16)
    ((result,), _) = evaluate(model, ["y"], [{"x": x}], 10.0)
    wide = x.astype(float) * float(np.float16(0.1)) + float(np.float32(0.1))
    np.testing.assert_allclose(result["y"], np.exp(wide), rtol=1e-15)


def test_bodies_and_functions_are_widened():
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "own" : 1]>\n'
        "g (bool c, float[2] x) => (float[2] y) {"
        " z = If(c) <then_branch = t () => (float[2] r) { k = Constant<value_float = 0.5>()\n"
        " r = Mul(x, k) }, else_branch = e () => (float[2] s) { s = own.twice(x) }>\n"
        " y = Identity(z) }\n"
        '<domain: "own", opset_import: ["" : 17]>\n'
        "twice (v) => (r) { k = Constant<value = float {2}>()\n r = Mul(v, k) }"
    )
    widen(model)
    then, other = (a.g for a in model.graph.node[0].attribute)
    assert then.node[0].attribute[0].t.data_type == TensorProto.DOUBLE
    assert model.functions[0].node[0].attribute[0].t.data_type == TensorProto.DOUBLE
    assert other.node[0].op_type == "twice"


def test_floats_are_wide_and_other_types_are_left_out():
    model = parsed("g (float[3] x) => (int64 i, float[3] y) { i = Size(x)\n y = Neg(x) }")
    ((result,), _) = evaluate(model, ["i", "y"], [{"x": np.ones(3, np.float32)}], 10.0)
    assert {name: value.dtype for name, value in result.items()} == {"y": "f8"}


@pytest.mark.parametrize("domain", ["", "own."])
def test_what_the_reference_implementation_does_not_know_has_no_truth(domain):
    head = '<ir_version: 8, opset_import: ["" : 17, "own" : 1]>'
    model = parser.parse_model(head + f"g (float[3] x) => (float[3] y) {{ y = {domain}NoSuch(x) }}")
    reason = "onnx's reference implementation fails at NoSuch y"
    assert evaluate(model, ["y"], [{"x": np.ones(3, np.float32)}], 10.0) == ([], reason)


def test_a_truth_that_is_not_wanted_or_too_large_is_none(tmp_path, monkeypatch):
    model = loaded(tmp_path, NEG)
    sets = [InputSet("one", {"x": np.ones(3, np.float32)})]
    assert true_outputs(model, ["y"], sets, 0.0) == ([{}], "")
    monkeypatch.setattr(truth, "MAX_WIDENED_BYTES", 10)
    reason = "no float64 truth: the model has more than 0 MiB"
    assert true_outputs(model, ["y"], sets, 10.0) == ([{}], reason)


def test_the_truth_is_of_the_model_that_was_loaded_whatever_its_file_holds_now(tmp_path):
    model = loaded(tmp_path, NEG)
    sets = [InputSet("one", {"x": np.full(3, 7, np.float32)})]
    loaded(tmp_path, NEG.replace("Neg", "Abs"))  # a file of equal size in the place of the other
    ((run,), why) = true_outputs(model, ["y"], sets, 10.0)
    assert (run["y"].tolist(), why) == ([-7.0] * 3, "")


LOOPS = {  # trip count, condition
    "a count alone": ("n", ""),
    "both": ("n", "t"),
    "a condition alone": ("", "t"),
}


@pytest.mark.parametrize("case", LOOPS)
def test_the_truth_of_a_loop_is_that_of_the_runtime(case):
    """The loop carries a value, stacks a value, and reads a value of the graph around it."""
    text = (
        "g (float[2, 3] x, float[3] w) => (float[2, 3] y, float[N, 2, 3] z) "
        "<int64 n = {4}, bool t = {1}, int64 last = {3}> {"
        " y, z = Loop (%s, %s, x) <body = b (int64 i, bool c, float[2, 3] a)"
        " => (bool d, float[2, 3] e, float[2, 3] f) {"
        " d = Less (i, last)\n m = LayerNormalization (a, w)\n e = Add (m, x)\n f = Mul (e, a) }> }"
    )
    model = parsed(text % LOOPS[case])
    session = ort.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=shape).astype("f4") for name, shape in (("x", (2, 3)), ("w", 3))}
    ((result,), why) = evaluate(model, ["y", "z"], [feeds], 10.0)
    expected = session.run(None, feeds)
    assert why == ""
    assert result["z"].shape == (4, 2, 3)
    for name, array in zip(["y", "z"], expected, strict=True):
        np.testing.assert_allclose(result[name], array, rtol=1e-4, atol=1e-5)


def test_what_fails_inside_of_a_body_is_named_without_words_of_python():
    text = (
        "g (float[3] x) => (float[3] y) <int64 n = {2}> {"
        " y = Loop (n, , x) <body = b (int64 i, bool c, float[3] a) => (bool d, float[3] e) {"
        " d = Identity (c)\n r = Reshape (a, a)\n e = Neg (r) }> }"
    )
    runs, why = evaluate(parsed(text), ["y"], [{"x": np.ones(3, np.float32)}], 10.0)
    assert (runs, why) == ([], "onnx's reference implementation fails at Reshape r")


def test_a_loop_that_never_turns_stacks_nothing():
    text = (
        "g (float[3] x) => (float[3] y, float[N, 3] z) <int64 n = {0}> {"
        " y, z = Loop (n, , x) <body = b (int64 i, bool c, float[3] a)"
        " => (bool d, float[3] e, float[3] f) {"
        " d = Identity (c)\n e = Neg (a)\n f = Abs (a) }> }"
    )
    _, why = evaluate(parsed(text), ["y"], [{"x": np.ones(3, np.float32)}], 10.0)
    assert why.startswith("stacked outputs of a Loop without turns are not")


def test_every_set_gets_its_own_truth(tmp_path):
    model = loaded(tmp_path, NEG)
    arrays = [np.full(size, size, np.float32) for size in (5, 2, 9)]
    sets = [InputSet(str(array.size), {"x": array}) for array in arrays]
    runs, why = true_outputs(model, ["y"], sets, 20.0)
    assert why == ""
    for array, result in zip(arrays, runs, strict=True):
        np.testing.assert_array_equal(result["y"], -array)


def test_a_set_that_would_take_too_much_work_is_not_begun(monkeypatch):
    monkeypatch.setattr(truth, "NODE_WORK", 0)
    feeds = [{"x": np.ones(size, np.float32)} for size in (10, 10, 50)]
    runs, why = evaluate(parsed(NEG), ["y"], feeds, 69e-6)
    assert (len(runs), why) == (2, "the work of 6.9e-05 million elements is spent")
    counts = [len(evaluate(parsed(NEG), ["y"], feeds, n * 1e-6)[0]) for n in (9, 10, 20, 70)]
    assert counts == [0, 1, 2, 3]


WORKS = {
    "elements": ("float[3, 5] x", "y = Neg(x)", 15),
    "a product": ("float[3, 32] x, float[32, 5] w", "y = MatMul(x, w)", 15 * (1 + 2)),
    "a convolution": (
        "float[1, 4, 9] x, float[6, 2, 8] w",
        "y = Conv<group = 2>(x, w)",
        6 * 2 + 6 * 2 * 2 * 8 // 16,
    ),
    "a transposed convolution": (
        "float[1, 4, 3] x, float[4, 3, 2] w",
        "y = ConvTranspose<strides = [2]>(x, w)",
        3 * 6 + 4 * 3 * 3 * 2 // 16,
    ),
    "a slow operator": (
        "float[1, 1, 4] x",
        "y = AveragePool<kernel_shape = [2]>(x)",
        3 * truth.SLOW_WORK,
    ),
    "a body": (
        "float[7] x",
        "n = Constant<value_int = 5>()\n y = Loop(n, , x) <body = b (int64 i, bool c, float[7] a)"
        " => (bool c, float[7] e) { e = Neg(a) }>",
        1 + 5 * 7 + 7,
    ),
}


@pytest.mark.parametrize("case", WORKS)
def test_work_is_counted_in_elements(monkeypatch, case):
    """By hand: elements of all results, and a sixteenth of all products."""
    monkeypatch.setattr(truth, "NODE_WORK", 0)
    inputs, nodes, work = WORKS[case]
    text = f"g ({inputs}) => (float[N] y) {{ {nodes} }}"
    shapes = [[int(n) for n in dims.split(",")] for dims in re.findall(r"\[(.*?)\]", inputs)]
    names = re.findall(r"\] (\w)", inputs)
    arrays = (np.ones(shape, np.float32) for shape in shapes)
    feeds = [dict(zip(names, arrays, strict=True))]
    assert evaluate(parsed(text), ["y"], feeds, (work + 0.5) * 1e-6)[1] == ""
    assert "is spent" in evaluate(parsed(text), ["y"], feeds, (work - 0.5) * 1e-6)[1]


ENDLESS = (
    "g (float[3] x) => (float[3] y) <int64 n = {1000000000}, bool t = {1}> {"
    " y = Loop(n, t, x) <body = b (int64 i, bool c, float[3] a) => (bool d, float[3] e) {"
    " d = Identity(c)\n e = Neg(a) }> }"
)


def test_a_run_that_does_not_end_spends_its_work():
    runs, why = evaluate(parsed(ENDLESS), ["y"], [{"x": np.ones(3, np.float32)}], 1.0)
    assert (runs, why) == ([], "the work of 1 million elements is spent")


@pytest.mark.processes
def test_a_run_that_hangs_is_an_error_and_not_another_judgement(tmp_path, monkeypatch):
    monkeypatch.setattr(truth, "MAX_SECONDS", 2)
    model, sets = loaded(tmp_path, ENDLESS), [InputSet("s", {"x": np.ones(3, np.float32)})]
    with pytest.raises(UnverifiedError) as raised:
        true_outputs(model, ["y"], sets, 1e6)
    reason = "the truth, a run of the original in float64: no result after 2 s; stopped"
    assert str(raised.value) == reason


def test_the_truth_is_closer_than_float32_can_be():
    """A sum that float32 gets wrong in the third digit."""
    model = parsed("g (float[4] x) => (float y) { y = ReduceSum<keepdims = 0>(x) }")
    x = np.array([1e8, 1.0, 2.5, -1e8], np.float32)
    ((result,), _) = evaluate(model, ["y"], [{"x": x}], 10.0)
    assert result["y"] == math.fsum(x.tolist()) == 3.5


def test_a_set_that_fails_after_others_is_named(tmp_path):
    text = "g (float[N] x) => (float[M] y) <int64[2] s = {2, -1}> { y = Reshape(x, s) }"
    model = loaded(tmp_path, text)
    sets = [InputSet(str(n), {"x": np.ones(n, np.float32)}) for n in (7, 4)]
    runs, why = true_outputs(model, ["y"], sets, 20.0)
    assert runs[0] == {}
    assert runs[1]["y"].shape == (2, 2)
    assert why == (
        "float64 truth for 1 of 2 input sets only: "
        "onnx's reference implementation fails at Reshape y"
    )


UNSORTED = (
    "g (bool c, float[2] x) => (float[2] y) {"
    " y = Add(z, z)\n"
    " z = If(c) <then_branch = t () => (float[2] r) { r = Neg(a)\n a = Neg(x) },"
    " else_branch = e () => (float[2] s) { s = Identity(x) }> }"
)


def test_nodes_may_stand_in_any_order():
    model = parsed(UNSORTED)
    feeds = {"c": np.array(True), "x": np.array([1, 2], np.float32)}
    ((result,), _) = evaluate(model, ["y"], [feeds], 20.0)
    np.testing.assert_array_equal(result["y"], [2, 4])
