"""Options of a session: known ones reach the runtime, others are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the module that is asked
import pytest
from onnx import parser

from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import Provider, RuntimeOptions, VerifyOptions
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.providers import DOCUMENTED, FOLDER, entries, one_node
from widthfold_onnx.runtime.session import open_session, resolved

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,5] y) <float[3,5] w> { y = MatMul (x, w) }"""


def with_options(**arguments: str) -> VerifyOptions:
    return VerifyOptions(provider=Provider.CPU, session_options=arguments)


OTHERS = ("session.force_spinning_stop", "ep.a.b_2", "session.add_initializer")
"""The last one is a method of the runtime's options, and no setting."""


@pytest.mark.parametrize(
    "name", sorted({*DOCUMENTED, *OTHERS} - {"session.intra_op_thread_affinities"})
)
def test_a_name_that_may_be_one_is_taken(name: str) -> None:
    """All but one, whose value is to say as many processors as there are."""
    assert resolved(with_options(**{name: "1"})).session_options == {name: "1"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("session.x64quantprecison", ": do you mean session.x64quantprecision?"),
        ("Session.X64QuantPrecision", ": do you mean session.x64quantprecision?"),
        ("session.intra_op_num_threads", " has no effect: widthfold sets that itself"),
        ("intra_op_num_threads", " has no effect: widthfold sets that itself"),
        (FOLDER, " has no effect: widthfold sets that itself"),
        ("x64", " is no name like session.x64quantprecision"),
        ("", "'' is no name"),
        ("Session.a", "'Session.a' is no name"),
        ("session.\n", r"'session.\x0a'"),
    ],
)
def test_what_surely_has_no_effect_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolved(with_options(**{name: "1"}))
    assert message.replace("\\\\", "\\") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["session.intra_op_num_threads", "session.enable_profiling"])
def test_the_runtime_ignores_entries_for_which_it_has_settings(name: str) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry(name, "3")
    session = ort.InferenceSession(one_node(), options, providers=["CPUExecutionProvider"])
    attribute = name.removeprefix("session.")
    assert getattr(session.get_session_options(), attribute) == getattr(
        ort.SessionOptions(), attribute
    )


def test_a_value_that_the_runtime_does_not_take_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UsageError, match=r"does not take 'session.dynamic_block_base=abc'"):
        resolved(with_options(**{"session.dynamic_block_base": "abc"}))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("value", ["", "true", "2", "1 "])
def test_a_switch_is_0_or_1(value: str) -> None:
    with pytest.raises(UsageError, match=f"session.x64quantprecision is 0 or 1, not '{value}'"):
        resolved(with_options(**{"session.x64quantprecision": value}))
    assert resolved(with_options(**{"session.dynamic_block_base": "4"}))


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
        with_options(**{"session.save_model_format": "ORT"}),
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
    session = open_session(read, RuntimeOptions(provider=Provider.CPU), Level.DISABLED, source=path)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(session.run({"x": x})["y"], x @ weight)
