"""Sessions: descriptions of the inputs, runs at every level, bound runs, errors."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from tests.shared import ROOT
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime import session as session_module
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import Port, open_session

ON_CPU = RuntimeOptions(provider=Provider.CPU)
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def stored(folder, text, name="model.onnx"):
    path = folder / name
    path.write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    return path


def opened(folder, text, **options):
    return open_session(stored(folder, text), replace(ON_CPU, **options), Level.DISABLED)


def test_a_model_in_memory_is_called_by_the_name_of_its_graph(capfd):
    text = "unsaved (float[3] x) => (float[3] y) { y = %s(x) }"
    session = open_session(parser.parse_model(HEAD + text % "Neg"), ON_CPU)
    assert session.run({"x": np.float32([1, -2, 3])})["y"].tolist() == [-1, 2, -3]
    with pytest.raises(UnverifiedError, match=r"^unsaved does not run: "):
        session.run({"x": np.float32([1])})
    with pytest.raises(UnverifiedError, match=r"^unsaved does not load: .*NoSuch"):
        open_session(parser.parse_model(HEAD + text % "NoSuch"), ON_CPU)
    assert capfd.readouterr() == ("", "")


def test_inputs_are_told_with_types_and_symbols(tmp_path):
    session = opened(
        tmp_path,
        "g (float[N, 3] x, double d, string[2] s, int64[?] i, bool[1] b, float16[1] h)"
        " => (float[N, 3] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }",
    )
    assert session.inputs == [
        Port("x", "float32", ("N", 3)),
        Port("d", "float64", ()),
        Port("s", "string", (2,)),
        Port("i", "int64", (None,)),
        Port("b", "bool", (1,)),
        Port("h", "float16", (1,)),
    ]
    assert session.outputs == ["y"]
    assert session.provider is Provider.CPU


def test_an_initializer_that_is_an_input_need_not_be_fed(tmp_path):
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    weight = helper.make_tensor_value_info("w", TensorProto.FLOAT, [2])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [value, weight],
        [result],
        [numpy_helper.from_array(np.array([5, 7], np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    session = open_session(path, ON_CPU)
    assert [port.name for port in session.inputs] == ["x"]
    assert session.run({"x": np.ones(2, np.float32)})["y"].tolist() == [6, 8]


@pytest.mark.parametrize("level", list(Level))
def test_it_runs_at_every_level(tmp_path, level):
    path = stored(tmp_path, "g (float[N] x) => (float[N] y) { z = Neg(x)\n y = Abs(z) }")
    session = open_session(path, RuntimeOptions(), level)
    assert session.run({"x": np.array([-3, 5], np.float32)})["y"].tolist() == [3, 5]


@pytest.mark.parametrize("declared", ["float[N]", "float[7]", "float[3, 4]", "float[5, 3]"])
def test_a_wrongly_declared_output_is_bound_again_for_each_run(tmp_path, declared):
    """The runtime refuses a buffer of another rank than declared, though it made it itself."""
    text = f"g (float[3, 5] x, int64[K] shape) => ({declared} y) {{ y = Reshape(x, shape) }}"
    once = opened(tmp_path, text).bound(
        {"x": np.ones((3, 5), np.float32), "shape": np.array([5, 3])}
    )
    for _ in range(3):
        once()
        assert once.results()["y"].shape() == [5, 3]


def test_bound_runs_many_times_and_refuses_what_does_not_fit(tmp_path):
    session = opened(tmp_path, "g (float[2] x) => (float[2] y) { y = Neg(x) }")
    once = session.bound({"x": np.ones(2, np.float32)})
    once()
    once()
    with pytest.raises(UnverifiedError, match=r"model\.onnx does not run"):
        session.bound({"x": np.ones(3, np.float32)})()


def test_the_optimized_model_is_written(tmp_path):
    path = stored(tmp_path, "g (float[2] x) => (float[2] y) { z = Identity(x)\n y = Neg(z) }")
    written = tmp_path / "made.onnx"
    open_session(path, ON_CPU, Level.EXTENDED, optimized=written)
    assert [node.op_type for node in onnx.load(written).graph.node] == ["Neg"]


@pytest.mark.parametrize("off", ["0", "False"])
def test_float16_is_not_timed_without_tensor_cores(tmp_path, monkeypatch, off):
    text = "g (float16[1] x) => (float16[1] y) <float16[1] w = {1}> { y = Add(x, w) }"
    half = stored(tmp_path, text, "half.onnx")
    whole = stored(tmp_path, text.replace("float16", "float"), "whole.onnx")
    monkeypatch.setattr(session_module, "ranking", lambda *_, **__: ["CPUExecutionProvider"])
    options = replace(ON_CPU, provider_options={"use_tf32": off})
    with pytest.raises(UsageError, match=r"from the float16 layers of half\.onnx as well"):
        open_session(half, options, tf32=True)
    with pytest.raises(UsageError, match="float16 layers of g as well"):
        open_session(onnx.load(half), options, tf32=True)
    open_session(half, options, tf32=False)  # its values may be compared
    open_session(whole, options, tf32=True)
    open_session(half, replace(ON_CPU, provider_options={"use_tf32": "1"}), tf32=True)


def test_strings_and_sequences_come_back(tmp_path):
    text = opened(tmp_path, "g (string[N] x) => (string[N] y) { y = Identity(x) }")
    words = np.array(["a", "\u00e9"], dtype=object)
    assert text.run({"x": words})["y"].tolist() == ["a", "\u00e9"]
    text.bound({"x": words})()
    pair = opened(
        tmp_path, "g (float[N] x) => (seq(float[N]) y) { z = Neg(x)\n y = SequenceConstruct(x, z) }"
    )
    results = pair.run({"x": np.array([3], np.float32)})
    assert {name: value.tolist() for name, value in results.items()} == {"y[0]": [3], "y[1]": [-3]}


def test_weights_outside_the_model_are_found_by_path(tmp_path, monkeypatch):
    graph = parser.parse_graph("g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    graph.initializer.append(numpy_helper.from_array(np.arange(4, dtype=np.float32), "w"))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder = tmp_path / "models"
    folder.mkdir()
    onnx.save(
        model,
        folder / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
        convert_attribute=False,
    )
    monkeypatch.chdir(tmp_path)
    session = open_session(Path("models/m.onnx"), ON_CPU)
    assert session.run({"x": np.ones(4, np.float32)})["y"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "content", [b"", b"\x08\x08garbage", parser.parse_model(HEAD + "g (float[1] x) => (float[1] y)"
    " { y = NoSuch(x) }").SerializeToString()]
)  # fmt: skip
def test_what_does_not_load_is_told_in_one_line(tmp_path, capfd, content):
    path = tmp_path / "bad\n.onnx"
    path.write_bytes(content)
    with pytest.raises(UnverifiedError) as caught:
        open_session(path, ON_CPU)
    message = str(caught.value)
    assert message.startswith("bad\\x0a.onnx does not load: ")
    assert "\n" not in message
    assert str(tmp_path) not in message
    assert capfd.readouterr() == ("", "")


def test_a_run_that_stops_is_told_and_prints_nothing(tmp_path, capfd):
    session = opened(tmp_path, "g (float[N, M] x) => (float[N, M] y) { y = MatMul(x, x) }")
    with pytest.raises(UnverifiedError, match=r"model\.onnx does not run: .*MatMul"):
        session.run({"x": np.ones((2, 3), np.float32)})
    with pytest.raises(UnverifiedError, match="does not run"):
        session.run({})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("provider", [Provider.CUDA, Provider.TENSORRT])
def test_a_provider_that_is_not_there_is_an_error(tmp_path, provider, capfd):
    path = stored(tmp_path, "g (float[1] x) => (float[1] y) { y = Neg(x) }")
    try:
        session = open_session(path, RuntimeOptions(provider=provider))
    except UnverifiedError as error:
        assert f"provider {provider} cannot be used: " in str(error)
    else:
        assert session.provider is provider
    assert capfd.readouterr() == ("", "")


def test_the_module_imports_without_the_runtime(tmp_path):
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from widthfold_onnx.runtime import session\n"
        "try: session.resolved(session.DEFAULTS)\n"
        "except session.UnverifiedError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert "pip install 'widthfold-onnx[cpu]'" in done.stdout
    assert done.stderr == ""
