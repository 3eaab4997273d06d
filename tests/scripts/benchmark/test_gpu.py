"""What is asked of a GPU, with the CPU in its place."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

from tests.runtime.fake_nvml import FakeNvml
from widthfold_onnx.errors import CheckFailedError, UnverifiedError, UsageError
from widthfold_onnx.options import Provider, RuntimeOptions, VerifyOptions

CPU, CUDA = RuntimeOptions(provider=Provider.CPU), RuntimeOptions(provider=Provider.CUDA)


@pytest.fixture
def gpu(scripts: Path) -> ModuleType:
    return importlib.import_module("benchmark.gpu")


def test_a_conv_that_is_right_is_measured(gpu: ModuleType) -> None:
    errors = gpu.check_conv(CPU)
    assert errors.keys() == {"float32", "float16"}
    assert all(error <= gpu.TOLERANCE[dtype] for dtype, error in errors.items())
    assert errors["float16"] > 0  # another type computes otherwise


def test_on_a_gpu_float16_alone_may_use_tensor_cores(
    gpu: ModuleType, pretended: list[dict[str, str]]
) -> None:
    gpu.check_conv(CUDA)
    assert [options["tf32"] for options in pretended] == ["0", "1"]


@pytest.mark.parametrize("wrong", [1.01, np.nan])
def test_a_conv_that_is_wrong_ends_the_run(
    gpu: ModuleType, pretended: object, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    opened = gpu.open_session

    class Wrong:
        def __init__(self, *arguments: Any, **more: Any) -> None:
            self.session = opened(*arguments, **more)

        def run(self, feeds: Any) -> dict[str, np.ndarray]:
            return {name: y * y.dtype.type(wrong) for name, y in self.session.run(feeds).items()}

    def open_session(path: Path, options: RuntimeOptions, *more: Any, **named: Any) -> Any:
        is_cuda = options.provider == Provider.CUDA
        return (Wrong if is_cuda else opened)(path, options, *more, **named)

    monkeypatch.setattr(gpu, "open_session", open_session)
    with pytest.raises(CheckFailedError, match="a float32 Conv on cuda differs by"):
        gpu.check_conv(CUDA)


def test_a_missing_gpu_is_said(gpu: ModuleType) -> None:
    with pytest.raises(UnverifiedError):
        gpu.check_conv(CUDA)


def test_the_name_is_that_of_nvml_or_of_the_folder(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    assert gpu.name_of(CUDA, "h100") == "Fake GPU"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu.name_of(CUDA, "h100") == "h100"
    with pytest.raises(UsageError, match="name a folder by --out: nvidia-ml-py is missing"):
        gpu.name_of(CUDA, "")


def test_ceilings_are_numbers_above_zero(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "COPIED", 1 << 20)
    monkeypatch.setattr(gpu, "PRODUCT", 64)
    speeds = gpu.ceilings(CPU)
    assert list(speeds) == ["bytes of a copy", "operations in float16", "operations in float32"]
    assert min(speeds.values()) > 0


def test_a_fold_that_computes_something_else_is_not_timed(scripts: Path, tmp_path: Path) -> None:
    lone, layers = (importlib.import_module(n) for n in ("benchmark.lone_layer", "nets.layers"))
    model = layers.Layer((2, 3), (3, 3), 1, "float32", (1, 8, 16)).model(has_neighbour=True)
    right, wrong = tmp_path / "right.onnx", tmp_path / "wrong.onnx"
    onnx.save(model, right)
    (weight,) = model.graph.initializer
    array = onnx.numpy_helper.to_array(weight) * np.float32(1.05)
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save(model, wrong)
    options = VerifyOptions(provider=Provider.CPU, time_budget=0.05)
    assert lone.timing_of(right, right, options).pairs > 0
    with pytest.raises(CheckFailedError, match=r"WRONG: output y differs by 5\.\de-02"):
        lone.timing_of(right, wrong, options)
