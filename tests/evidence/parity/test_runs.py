"""Outputs of runs, large ones in files."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tests.evidence.compared import OPTIONS, SCALED, compared
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.parity import runs
from widthfold_onnx.evidence.parity.runs import attempt, run_once
from widthfold_onnx.model.loader import load
from widthfold_onnx.runtime.inputs.feeds import InputSet
from widthfold_onnx.runtime.provider_traits import Level

FEEDS = [InputSet("counted", {"x": np.arange(8, dtype=np.float32).reshape(2, 4)})]


def test_outputs_in_files_are_compared_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [compared(tmp_path, SCALED % "2", SCALED % by) for by in ("2", "2.002")]
    monkeypatch.setattr(runs, "MIN_FILE_BYTES", 1)
    (outputs,) = attempt(load(tmp_path / "a.onnx"), OPTIONS, Level.ALL, FEEDS).outputs
    assert isinstance(outputs["y"], np.memmap)
    np.testing.assert_array_equal(outputs["y"], 2 * FEEDS[0].feeds["x"], strict=False)
    assert [compared(tmp_path, SCALED % "2", SCALED % by) for by in ("2", "2.002")] == small


class Echo:
    """A session that returns its inputs."""

    def run(self, feeds: dict[str, npt.NDArray]) -> dict[str, npt.NDArray]:
        return feeds


def run_output(array: npt.NDArray) -> npt.NDArray:
    return run_once(Echo(), InputSet("set", {"y": array}))["y"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, bool])
def test_a_large_output_lies_in_a_file(monkeypatch: pytest.MonkeyPatch, dtype: type) -> None:
    array = (np.arange(30).reshape(5, 6) % 7).astype(dtype)
    monkeypatch.setattr(runs, "MIN_FILE_BYTES", 30)
    for order in (array, array.T):
        result = run_output(order)
        assert isinstance(result, np.memmap)
        assert (result.dtype, result.shape) == (order.dtype, order.shape)
        np.testing.assert_array_equal(result, order)
    assert not isinstance(run_output(array[:1, :2]), np.memmap)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_a_full_disk_does_not_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MIN_FILE_BYTES", 1)
    with Path("/dev/full").open("r+b", 0) as full:
        monkeypatch.setattr(runs.tempfile, "TemporaryFile", lambda: full)
        with pytest.raises(UnverifiedError, match="no room for an output in a file: No space left"):
            run_output(np.ones(9))
