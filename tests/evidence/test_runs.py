"""Large outputs are kept in files."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.parity import runs
from widthfold_onnx.evidence.parity.runs import run_once
from widthfold_onnx.runtime.inputs.recorded import InputSet


class Echo:
    """Returns its inputs."""

    def run(self, feeds: dict[str, npt.NDArray]) -> dict[str, npt.NDArray]:
        return feeds


def kept(array: npt.NDArray) -> npt.NDArray:
    return run_once(Echo(), InputSet("set", {"y": array}))["y"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, bool])
def test_a_large_output_lies_in_a_file(monkeypatch: pytest.MonkeyPatch, dtype: type) -> None:
    array = (np.arange(30).reshape(5, 6) % 7).astype(dtype)
    monkeypatch.setattr(runs, "LARGE_BYTES", 30)
    for order in (array, array.T):
        result = kept(order)
        assert isinstance(result, np.memmap)
        assert (result.dtype, result.shape) == (order.dtype, order.shape)
        np.testing.assert_array_equal(result, order)
    assert not isinstance(kept(array[:1, :2]), np.memmap)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_a_full_disk_does_not_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LARGE_BYTES", 1)
    with Path("/dev/full").open("r+b", 0) as full:
        monkeypatch.setattr(runs.tempfile, "TemporaryFile", lambda: full)
        with pytest.raises(UnverifiedError, match="no room for an output in a file: No space left"):
            kept(np.ones(9))
