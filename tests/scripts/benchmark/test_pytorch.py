"""PyTorch as a rival, pretended."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from widthfold_onnx.options import Provider, VerifyOptions

OPTIONS = VerifyOptions(provider=Provider.CPU, time_budget=0.1)


class FakeTorch:
    """The part of PyTorch that the rival uses; channels-last is the faster format."""

    __version__ = "0"
    channels_last, contiguous_format = "last", "first"

    def __init__(self, *, seconds: float = 0.0, fails: str = "") -> None:
        cudnn = SimpleNamespace(benchmark=False, allow_tf32=False)
        self.backends = SimpleNamespace(cudnn=cudnn)
        self.cuda = SimpleNamespace(is_available=lambda: False)
        self.formats: list[str] = []
        self.seconds, self.fails, self.negated = seconds, fails, 0
        self.calls: list[tuple[Any, ...]] = []
        functional = SimpleNamespace(conv2d=self.conv2d, conv_transpose2d=self.conv_transpose2d)
        self.nn = SimpleNamespace(functional=functional)

    def set_num_threads(self, count: int) -> None:
        assert count == 1

    def from_numpy(self, array: np.ndarray) -> Any:
        tensor = SimpleNamespace(shape=array.shape)

        def to(device: str = "", memory_format: str = "") -> Any:
            self.formats += [memory_format] if memory_format else []
            return tensor

        tensor.to = to
        return tensor

    def inference_mode(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def conv2d(self, x: Any, w: Any, stride: Any, padding: Sequence[int], groups: int) -> str:
        assert x.shape[1] == w.shape[1] * groups
        if self.fails == self.formats[-1]:
            raise RuntimeError("CUDA out of memory\nsecond line")
        if self.formats[-1] == "first":
            start = time.thread_time()
            while time.thread_time() - start < self.seconds:
                pass
        self.calls.append(("Conv", x.shape, w.shape, stride, padding, groups))
        return "y"

    def conv_transpose2d(self, x: Any, w: Any, **attributes: Any) -> str:
        assert x.shape[1] == w.shape[0]
        self.calls.append(("ConvTranspose", x.shape, w.shape, *attributes.values()))
        return "y"

    def neg(self, y: str) -> None:
        self.negated += 1


@pytest.fixture
def rival(scripts: Path) -> ModuleType:
    return importlib.import_module("benchmark.pytorch")


def layer(folder: Path, *arguments: Any, **more: Any) -> Path:
    layers = importlib.import_module("nets.layers")
    path = folder / "layer.onnx"
    onnx.save(layers.Layer(*arguments, **more).model(has_neighbour=True), path)
    return path


def test_the_faster_of_both_formats_counts(
    rival: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = FakeTorch(seconds=2e-3)
    monkeypatch.setitem(sys.modules, "torch", torch)
    path = layer(tmp_path, (2, 3), (3, 3), 1, "float32", (1, 8, 8))
    cell = rival.against_pytorch(path, OPTIONS)
    assert cell.ms < 1
    assert torch.formats == ["first"] * 2 + ["last"] * 2
    assert torch.negated == len(torch.calls) > 4
    assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("fails", ["first", "last"])
def test_a_format_that_does_not_run_leaves_the_other(
    rival: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(fails=fails))
    path = layer(tmp_path, (2, 3), (3, 3), 1, "float32", (1, 8, 8))
    assert rival.against_pytorch(path, OPTIONS).ratio > 0


def test_what_cannot_run_says_why(
    rival: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = layer(tmp_path, (2, 3), (3, 3), 1, "float32", (1, 8, 8))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert rival.against_pytorch(path, OPTIONS).note == "not installed"
    monkeypatch.setitem(sys.modules, "torch", FakeTorch())
    on_gpu = VerifyOptions(provider=Provider.CUDA)
    assert rival.against_pytorch(path, on_gpu).note == "sees no GPU"
    torch = FakeTorch()
    torch.conv2d = lambda *_, **__: torch.neg(1 / 0)  # type: ignore[method-assign]
    torch.nn.functional.conv2d = no_kernel
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert rival.against_pytorch(path, OPTIONS).note == "does not run: no kernel"


def no_kernel(*_: Any, **__: Any) -> None:
    raise RuntimeError("no kernel\nsecond line")


def test_layers_of_one_axis_run_with_a_height_of_1(
    rival: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    none = (0, 0)
    for arguments, more in (
        (((64, 1), (16,), 4, "float32", (8, 8), none), {"transposed": True}),
        (((1, 8), (128,), 8, "float32", (8, 184), none), {}),
        (((16, 16), (4,), 1, "float32", (8, 64), (3, 0), 16), {}),
    ):
        rival.against_pytorch(layer(tmp_path, *arguments, **more), OPTIONS)
    assert list(dict.fromkeys(map(str, torch.calls))) == [
        str(("ConvTranspose", (8, 64, 1, 8), (64, 1, 1, 16), [1, 4], [0, 0], 1)),
        str(("Conv", (8, 1, 1, 184), (8, 1, 1, 128), [1, 8], [0, 0], 1)),
        str(("Conv", (8, 16, 1, 67), (16, 1, 1, 4), [1, 1], [0, 0], 16)),
    ]
