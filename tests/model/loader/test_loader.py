"""Files that are loaded or refused: broken, hostile, fuzzed and real ones."""

import json
import os
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.shared import MODELS, bounded, generate, needs_models
from widthfold_onnx.errors import InvalidModelError, UsageError
from widthfold_onnx.model.loader import load


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    return generate("badinputs/make_badinputs.py", tmp_path_factory)


def index_of(folder):
    return json.loads((folder / "index.json").read_text())


def outcome(path):
    """Load a file; return the message, or None where it loads."""
    try:
        with bounded():
            loaded = load(path)
    except InvalidModelError as error:
        message = str(error)
        assert message.isprintable()
        assert len(message) < 600
        return message
    assert loaded.path == path
    assert loaded.folder == path.parent
    return None


def test_every_bad_input_gets_its_answer(bad, subtests):
    index = index_of(bad)
    assert len(index["files"]) > 30
    for file in index["files"]:
        with subtests.test(file["name"]):
            message = outcome(bad / file["file"])
            if message is not None:
                assert message.startswith(Path(file["file"]).name)
                assert index["canary"] not in message
            if file["strict"]:
                assert (message is None) == (file["expect"] == "accept"), message


def test_every_legal_trap_loads(tmp_path_factory, subtests):
    folder = generate("traps/make_traps.py", tmp_path_factory)
    for trap in index_of(folder)["models"]:
        with subtests.test(trap["name"]):
            assert outcome(folder / trap["file"]) is None


@needs_models
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_real_models_load_unchanged(path):
    message = outcome(path)
    assert message is None
    assert load(path).proto == onnx.ModelProto.FromString(path.read_bytes())


def small_model():
    then = helper.make_graph(
        [helper.make_node("Abs", ["t"], ["a"], "abs")],
        "then",
        [],
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [2])],
    )
    nodes = [
        helper.make_node("Add", ["X", "W"], ["t"], "add"),
        helper.make_node("If", ["c"], ["Y"], "if", then_branch=then, else_branch=then),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "XY"]
    constants = [
        helper.make_tensor("W", TensorProto.FLOAT, [2], [1.0, 2.0]),
        helper.make_tensor("c", TensorProto.BOOL, [], [True]),
    ]
    function = helper.make_function(
        "l",
        "f",
        ["a"],
        ["b"],
        [helper.make_node("Sin", ["a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=[function])


GOOD = small_model().SerializeToString(deterministic=True)
POSITION = st.integers(0, len(GOOD) - 1)
EDIT = st.one_of(
    st.tuples(st.just("set"), POSITION, st.binary(min_size=1, max_size=1)),
    st.tuples(st.just("insert"), POSITION, st.binary(min_size=1, max_size=4)),
    st.tuples(st.just("delete"), POSITION, st.just(b"")),
    st.tuples(st.just("cut"), POSITION, st.just(b"")),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(EDIT, min_size=1, max_size=3))
def test_broken_bytes_load_or_are_refused(tmp_path, edits):
    data = GOOD
    for kind, at, content in edits:
        if kind == "cut":
            data = data[:at]
        elif kind == "insert":
            data = data[:at] + content + data[at:]
        else:
            data = data[:at] + content + data[at + 1 :]
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    outcome(path)


def test_the_model_of_the_fuzz_loads(tmp_path):
    (tmp_path / "m.onnx").write_bytes(GOOD)
    assert outcome(tmp_path / "m.onnx") is None


@pytest.mark.parametrize("name", ["missing.onnx", "file/below", "n" * 300])
def test_a_path_that_is_not_there_is_a_usage_error(tmp_path, name):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match=name.split("/")[0][:40]):
        load(tmp_path / name)


def test_a_hostile_file_name_is_shown_safely(tmp_path):
    with pytest.raises(UsageError) as caught:
        load(tmp_path / "a\x1b[2J\nb")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("make", ["mkfifo", "mkdir"])
def test_what_is_no_file_is_refused_at_once(tmp_path, make):
    if not hasattr(os, make):
        pytest.skip("the system has no FIFOs")
    getattr(os, make)(tmp_path / "m.onnx")
    message = outcome(tmp_path / "m.onnx")
    assert "not a regular file" in message


def test_a_file_above_the_limit_is_not_read(tmp_path):
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 31)
    message = outcome(path)
    assert "2147483648 bytes" in message


def test_a_link_to_a_model_is_followed(tmp_path):
    (tmp_path / "m.onnx").write_bytes(GOOD)
    (tmp_path / "link").symlink_to("m.onnx")
    assert outcome(tmp_path / "link") is None


@pytest.mark.parametrize(
    "change", ["rewritten", "data", "swapped data", "overwritten data", "removed", "touched"]
)
def test_files_that_were_changed_since_they_were_read_are_told(tmp_path, change):
    path, data = tmp_path / "m.onnx", tmp_path / "w.bin"
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 2] x) => (float[N, 2] y) { y = Mul(x, w) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3, 5], "f4"), "w"))
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    loaded = load(path)
    loaded.check_unchanged()
    assert load(*loaded.source).digest == loaded.digest
    message = "m.onnx was changed in the meantime"
    if change == "rewritten":
        path.write_bytes(path.read_bytes() + b"\x12\x01a")  # a second name of the producer
    elif change == "data":
        data.write_bytes(data.read_bytes() + b"\0")
    elif change == "swapped data":  # as large and as old as the other
        times, other = data.stat(), tmp_path / "other.bin"
        other.write_bytes(data.read_bytes()[::-1])
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
        other.replace(data)
    elif change == "overwritten data":
        times = data.stat()
        time.sleep(0.02)  # clocks of file systems tick each 4 ms
        data.write_bytes(data.read_bytes()[::-1])
        os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif change == "removed":
        path.unlink()
        message = "m.onnx was removed in the meantime: .*No such file"
    else:
        os.utime(path)  # a build that writes the same again
        loaded.check_unchanged()
        return
    with pytest.raises(InvalidModelError, match=message):
        loaded.check_unchanged()
    if change != "removed":
        with pytest.raises(InvalidModelError, match=message):
            load(*loaded.source)
