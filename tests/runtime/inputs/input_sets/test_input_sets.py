"""Batches of the random inputs of a comparison."""

from onnx import parser

from widthfold_onnx.options import ANY_SIZE, Provider, RuntimeOptions
from widthfold_onnx.runtime.inputs import sizes as sizes_module
from widthfold_onnx.runtime.inputs.input_sets import random_sets
from widthfold_onnx.runtime.inputs.sizes import any_shapes
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import open_session

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def opened(folder, text):
    path = folder / "model.onnx"
    path.write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    return open_session(path, RuntimeOptions(provider=Provider.CPU), Level.DISABLED)


def test_an_open_batch_is_1_2_and_7(tmp_path):
    session = opened(tmp_path, "g (float[N, 3, 5] x) => (float[N, 3, 5] y) { y = Neg(x) }")
    random_inputs = random_sets(session, ANY_SIZE, 5, any_shapes)
    batches = [item.feeds["x"].shape[0] for item in random_inputs.sets]
    assert (batches[0], batches[2], batches[3], batches[4]) == (1, 2, 7, 1)
    assert random_inputs.sizes == ({"x": (1, 3, 5)}, {"x": (8, 3, 5)})
    assert random_inputs.remarks == []
    first, second = random_sets(session, ANY_SIZE, 1, any_shapes).sets
    assert (len(first.feeds), len(second.feeds)) == (1, 1)


def test_a_batch_that_the_caller_or_the_model_fixes_stays(tmp_path):
    session = opened(tmp_path, "g (float[N, 3] x) => (float[N, 3] y) { y = Neg(x) }")
    random_inputs = random_sets(session, ({"x": (4, 3)},), 5, any_shapes)
    assert {item.feeds["x"].shape for item in random_inputs.sets} == {(4, 3)}
    session = opened(tmp_path, "g (float[2, 3] x) => (float[2, 3] y) { y = Neg(x) }")
    random_inputs = random_sets(session, ANY_SIZE, 5, any_shapes)
    assert {item.feeds["x"].shape for item in random_inputs.sets} == {(2, 3)}


def test_a_batch_at_which_the_original_does_not_run_is_said_once(tmp_path):
    session = opened(
        tmp_path,
        "g (float[N, 3] x) => (float[N, 3] y) <int64[2] s = {1, 3}> { y = Reshape(x, s) }",
    )
    random_inputs = random_sets(session, ANY_SIZE, 5, any_shapes)
    assert {item.feeds["x"].shape for item in random_inputs.sets} == {(1, 3)}
    assert random_inputs.remarks == ["not compared at batch 2 or 7: the original does not run"]
    assert not any("batch" in item.label for item in random_inputs.sets)


def test_the_sets_do_not_depend_on_how_fast_the_machine_is(tmp_path, monkeypatch):
    """A larger size is timed only where it runs fast enough."""
    session = opened(tmp_path, "g (float[N, 3, L] x) => (float[N, 3, L] y) { y = Neg(x) }")
    shapes: list[list[tuple[int, ...]]] = []
    for seconds in (100.0, -1.0):
        monkeypatch.setattr(sizes_module, "MAX_TIMED_SECONDS", seconds)
        for count in (1, 2, 5):
            drawn = random_sets(session, ANY_SIZE, count, any_shapes)
            shapes.append([item.feeds["x"].shape for item in drawn.sets])
        assert drawn.sizes[1]["x"][2] > 1000 if seconds > 0 else drawn.sizes[1]["x"][2] < 1000
    assert shapes[:3] == shapes[3:]
    assert [len(item) for item in shapes[:3]] == [2, 2, 5]
    assert shapes[0][0][2] != shapes[0][1][2]


def test_what_is_compared_does_not_list_what_may_be_timed_alone(tmp_path, monkeypatch):
    session = opened(tmp_path, "g (float[N, 3, L] x) => (float[N, 3, L] y) { y = Neg(x) }")
    compared = []
    for seconds in (100.0, -1.0):
        monkeypatch.setattr(sizes_module, "MAX_TIMED_SECONDS", seconds)
        drawn = random_sets(session, ANY_SIZE, 5, any_shapes)
        compared.append(drawn.compared)
        assert drawn.sets[0].feeds["x"].shape == drawn.compared[0]["x"]
        assert {shapes["x"] for shapes in drawn.compared} <= {
            item.feeds["x"].shape for item in drawn.sets
        }
    assert compared[0] == compared[1]
    assert len(compared[0]) == 2
