"""Options of a session: known ones reach the runtime, others are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the module whose names are read
import pytest
from onnx import parser

from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime.entries import FOLDER, PRECISION, entries, known_names
from widthfold_onnx.runtime.session import Level, open_session, resolved

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,5] y) <float[3,5] w> { y = MatMul (x, w) }"""


def with_options(**given: str) -> VerifyOptions:
    return VerifyOptions(provider=Provider.CPU, session_options=given)


def test_the_names_are_those_that_the_runtime_asks_for() -> None:
    names = known_names(ort)
    documented = {
        PRECISION,
        "session.intra_op.allow_spinning",
        "session.disable_prepacking",
        "session.set_denormal_as_zero",
        "session.qdqisint8allowed",
        "optimization.enable_gelu_approximation",
        "mlas.disable_kleidiai",
        "ep.context_enable",
    }
    assert documented <= names
    assert all("." in name for name in names)


def test_a_known_option_is_taken() -> None:
    assert resolved(with_options(**{PRECISION: "1"})).session_options == {PRECISION: "1"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("session.x64quantprecison", "do you mean session.x64quantprecision?"),
        ("x64", "the runtime knows no session option 'x64'"),
        ("", "the runtime knows no session option ''"),
        ("session.\n", r"'session.\\x0a'"),
    ],
)
def test_a_name_that_the_runtime_does_not_know_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolved(with_options(**{name: "1"}))
    assert message.replace("\\\\", "\\") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_value_that_the_runtime_does_not_take_is_refused() -> None:
    with pytest.raises(UsageError, match=r"does not take 'session.dynamic_block_base=abc'"):
        resolved(with_options(**{"session.dynamic_block_base": "abc"}))


def test_what_is_chosen_wins_over_ours() -> None:
    spinning = "session.intra_op.allow_spinning"
    assert entries({}, None) == {spinning: "0"}
    assert entries({spinning: "1", "a": "b"}, None) == {spinning: "1", "a": "b"}
    assert entries({}, Path("folder"))[FOLDER] == str(Path("folder").absolute())


def test_options_reach_the_session(tmp_path: Path) -> None:
    """The runtime refuses to run where a plain run is asked for only to compile."""
    written = tmp_path / "optimized.ort"
    open_session(
        parser.parse_model(MODEL_OF_CONSTANTS),
        Provider.CPU,
        session_options={"session.save_model_format": "ORT"},
        optimized=written,
    )
    assert written.read_bytes()[4:8] == b"ORTM"


MODEL_OF_CONSTANTS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) { y = Add (x, x) }"""


def test_a_model_in_memory_finds_its_external_data(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = parser.parse_model(MODEL)
    weight = np.arange(15, dtype=np.float32).reshape(3, 5)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    read = onnx.load(path, load_external_data=False)
    session = open_session(read, Provider.CPU, Level.DISABLED, origin=path)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(session.run({"x": x})["y"], x @ weight)
