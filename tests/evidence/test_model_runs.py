"""Runs of models on input sets."""

import numpy as np

from tests.evidence.parity.test_models import OPTIONS, SCALED, compared
from widthfold_onnx.evidence import model_runs
from widthfold_onnx.evidence.model_runs import pairs
from widthfold_onnx.runtime.inputs.recorded import InputSet
from widthfold_onnx.runtime.sessions.session import Level

FEEDS = [InputSet("counted", {"x": np.arange(8, dtype=np.float32).reshape(2, 4)})]


def test_large_outputs_are_kept_in_files(tmp_path, monkeypatch):
    small = [compared(tmp_path, SCALED % "2", SCALED % by) for by in ("2", "2.002")]
    monkeypatch.setattr(model_runs, "LARGE_BYTES", 1)
    (made,) = model_runs.attempt(tmp_path / "a.onnx", OPTIONS, Level.ALL, FEEDS, lambda line: None)
    assert isinstance(made["y"], np.memmap)
    np.testing.assert_array_equal(made["y"], 2 * FEEDS[0].feeds["x"], strict=False)
    assert [compared(tmp_path, SCALED % "2", SCALED % by) for by in ("2", "2.002")] == small


def test_an_output_that_one_run_lacks_is_empty_there():
    first, second = np.ones((2, 3), np.float32), np.arange(4)
    paired = pairs({"a": first, "b": second}, {"c": second, "b": first})
    assert {name: (x.shape, y.shape) for name, (x, y) in paired.items()} == {
        "a": ((2, 3), (0, 2, 3)),
        "b": ((4,), (2, 3)),
        "c": ((0, 4), (4,)),
    }
    assert [y.dtype for _, y in paired.values()] == [np.float32, np.float32, np.int64]
