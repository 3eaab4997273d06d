"""Outputs of runs: large ones lie in files, and an output that a run lacks is empty."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tests.evidence.compared import OPTIONS, SCALED, compared
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence import model_outputs
from widthfold_onnx.evidence.model_outputs import attempt, pairs, run_once
from widthfold_onnx.runtime.inputs.recorded import InputSet
from widthfold_onnx.runtime.provider_traits import Level

FEEDS = [InputSet("counted", {"x": np.arange(8, dtype=np.float32).reshape(2, 4)})]


def test_outputs_in_files_are_compared_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [compared(tmp_path, SCALED % "2", SCALED % by) for by in ("2", "2.002")]
    monkeypatch.setattr(model_outputs, "LARGE_BYTES", 1)
    (made,) = attempt(tmp_path / "a.onnx", OPTIONS, Level.ALL, FEEDS)
    assert isinstance(made["y"], np.memmap)
    np.testing.assert_array_equal(made["y"], 2 * FEEDS[0].feeds["x"], strict=False)
    assert [compared(tmp_path, SCALED % "2", SCALED % by) for by in ("2", "2.002")] == small


def test_an_output_that_one_run_lacks_is_empty_there() -> None:
    first, second = np.ones((2, 3), np.float32), np.arange(4)
    paired = pairs({"a": first, "b": second}, {"c": second, "b": first})
    assert {name: (x.shape, y.shape) for name, (x, y) in paired.items()} == {
        "a": ((2, 3), (0, 2, 3)),
        "b": ((4,), (2, 3)),
        "c": ((0, 4), (4,)),
    }
    assert [y.dtype for _, y in paired.values()] == [np.float32, np.float32, np.int64]


class Echo:
    """Returns its inputs."""

    def run(self, feeds: dict[str, npt.NDArray]) -> dict[str, npt.NDArray]:
        return feeds


def kept(array: npt.NDArray) -> npt.NDArray:
    return run_once(Echo(), InputSet("set", {"y": array}))["y"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, bool])
def test_a_large_output_lies_in_a_file(monkeypatch: pytest.MonkeyPatch, dtype: type) -> None:
    array = (np.arange(30).reshape(5, 6) % 7).astype(dtype)
    monkeypatch.setattr(model_outputs, "LARGE_BYTES", 30)
    for order in (array, array.T):
        result = kept(order)
        assert isinstance(result, np.memmap)
        assert (result.dtype, result.shape) == (order.dtype, order.shape)
        np.testing.assert_array_equal(result, order)
    assert not isinstance(kept(array[:1, :2]), np.memmap)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_a_full_disk_does_not_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_outputs, "LARGE_BYTES", 1)
    with Path("/dev/full").open("r+b", 0) as full:
        monkeypatch.setattr(model_outputs.tempfile, "TemporaryFile", lambda: full)
        with pytest.raises(UnverifiedError, match="no room for an output in a file: No space left"):
            kept(np.ones(9))
