"""Interfaces of two models: names, types and declared extents of inputs and outputs."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.evidence.compared import LINE, OPTIONS, compare_models, compared, stored


@pytest.mark.parametrize(
    ("rewritten", "words"),
    [
        ("g (float[N, 4] z) => (float[N, 4] y) { y = Neg(z) }", "inputs are z instead of x"),
        (
            "g (float[M, 4] x) => (float[M, 4] y) { y = Neg(x) }",
            "input x is declared float[M, 4] instead of float[N, 4]",
        ),
        (
            "g (float[1, 4] x) => (float[N, 4] y) { y = Neg(x) }",
            "input x is declared float[1, 4] instead of float[N, 4]",
        ),
        (
            "g (float16[N, 4] x) => (float[N, 4] y) { y = Cast<to = 1>(x) }",
            "input x is declared float16[N, 4] instead of float[N, 4]",
        ),
        (
            "g (float[N, 4] x) => (float[N, 4] y, float[N, 4] w) { y = Neg(x)\n w = Neg(x) }",
            "outputs are y, w instead of y",
        ),
    ],
)
def test_another_interface_fails_before_anything_runs(tmp_path, monkeypatch, rewritten, words):
    def run(*arguments):
        raise AssertionError("a model runs")

    monkeypatch.setattr("widthfold_onnx.evidence.pair.original_runs_of", run)
    result = compared(tmp_path, LINE + " { y = Neg(x) }", rewritten)
    assert result.verdict == "fail"
    assert words in result.reasons[0]


@pytest.mark.parametrize(
    ("declared", "why"), [("[N, 5]", "; the original returned [1, 4]"), ("[N, L]", "")]
)
def test_an_output_that_is_declared_otherwise_fails(tmp_path, declared, why):
    rewritten = f"g (float[N, 4] x) => (float{declared} y) {{ y = Neg(x) }}"
    result = compared(tmp_path, LINE + " { y = Neg(x) }", rewritten)
    assert result.verdict == "fail"
    line = f"output y is declared float{declared} instead of float[N, 4]{why}"
    assert result.reasons == (line,)


def test_sequences_are_named_by_their_elements(tmp_path):
    text = "g (seq(%s[N]) x) => (int64 y) { y = SequenceLength(x) }"
    result = compared(tmp_path, text % "float", text % "int64")
    assert result.verdict == "fail"
    assert result.reasons == ("input x is declared seq(int64[N]) instead of seq(float[N])",)


@pytest.mark.parametrize(
    ("before", "after"), [("[N, L]", "[N, 4]"), ("[N, ?]", "[N, 4]"), (" of any shape", "[N, 4]")]
)
def test_an_output_may_be_declared_more_exactly(tmp_path, before, after):
    text = "g (float[N, 4] x) => (float%s y) { y = Neg(x) }"
    path = stored(tmp_path, "a.onnx", text % "[N, L]")
    model = onnx.load(path)
    kind = model.graph.output[0].type.tensor_type
    if before == "[N, ?]":
        kind.shape.dim[1].Clear()
    elif before == " of any shape":
        kind.ClearField("shape")
    onnx.save(model, path)
    result = compare_models(path, stored(tmp_path, "b.onnx", text % after), OPTIONS)
    assert result.verdict == "pass"
    assert result.reasons == (f"output y is declared float{after} instead of float{before}",)
    back = compare_models(tmp_path / "b.onnx", path, OPTIONS)
    assert back.reasons == (f"output y is declared float{before} instead of float{after}",)
    assert back.verdict == "fail"


def test_an_anonymous_extent_may_have_a_question_mark_for_a_name(tmp_path):
    path = stored(tmp_path, "a.onnx", LINE + " { y = Neg(x) }")
    model = onnx.load(path)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "?"
    onnx.save(model, path)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].Clear()
    onnx.save(model, tmp_path / "b.onnx")
    result = compare_models(path, tmp_path / "b.onnx", OPTIONS)
    assert (result.verdict, result.reasons) == ("pass", ())


def test_an_anonymous_extent_of_an_input_may_get_a_name_of_its_own(tmp_path):
    text = "g (float[%s, %s] x) => (float[L, M] y) { y = Neg(x) }"
    named = stored(tmp_path, "b.onnx", text % ("L", "M"))
    path = stored(tmp_path, "a.onnx", text % ("L", "M"))
    model = onnx.load(path)
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.Clear()
    onnx.save(model, path)
    result = compare_models(path, named, OPTIONS)
    message = "input x is declared float[L, M] instead of float[?, ?]"
    assert (result.verdict, result.reasons) == ("pass", (message,))
    square = stored(tmp_path, "b.onnx", text % ("L", "L"))
    result = compare_models(path, square, OPTIONS)
    message = "input x is declared float[L, L] instead of float[?, ?]"
    assert (result.verdict, result.reasons) == ("fail", (message,))
    result = compare_models(square, path, OPTIONS)
    assert result.verdict == "fail"


def overridable(folder, name, *, listed):
    ends = [helper.make_tensor_value_info(item, TensorProto.FLOAT, [2]) for item in "xwy"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        ends[: 2 if listed else 1],
        ends[2:],
        [numpy_helper.from_array(np.array([5, 7], np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def test_an_overridable_initializer_must_stay_one(tmp_path):
    before = overridable(tmp_path, "a.onnx", listed=True)
    after = overridable(tmp_path, "b.onnx", listed=False)
    assert compare_models(before, after, OPTIONS).reasons == ("overridable initializer w is gone",)
    assert compare_models(after, before, OPTIONS).reasons == ("overridable initializer w is new",)
    assert compare_models(before, before, OPTIONS).verdict == "pass"
