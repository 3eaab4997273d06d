"""PyTorch as a rival, pretended."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.scripts.gpu.gpu_runs import rows_of
from widthfold_onnx.errors import CheckFailedError


class FakeTorch:
    """The part of PyTorch that `gpu.rival` uses, on a device called cuda."""

    __version__ = "0"
    channels_last, contiguous_format = "last", "first"

    def __init__(self) -> None:
        cudnn = SimpleNamespace(benchmark=False, allow_tf32=False, version=lambda: 90000)
        self.backends = SimpleNamespace(cudnn=cudnn)
        self.cuda = SimpleNamespace(is_available=lambda: True, synchronize=lambda: None)
        self.formats: list[str] = []
        events = [("copy", 3.0), ("sm90_xmma_fprop", 50.0), ("cudaLaunchKernel", 0.0)]
        averages = [SimpleNamespace(key=key, device_time_total=t) for key, t in events]
        profile = contextlib.nullcontext(SimpleNamespace(key_averages=lambda: averages))
        kind = SimpleNamespace(CUDA="cuda")
        self.profiler = SimpleNamespace(profile=lambda activities: profile, ProfilerActivity=kind)
        self.lost = False
        self.calls: list[tuple[Any, ...]] = []
        functional = SimpleNamespace(conv2d=self.conv2d, conv_transpose2d=self.conv_transpose2d)
        self.nn = SimpleNamespace(functional=functional)

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
        self.calls.append(("Conv", x.shape, w.shape, stride, padding, groups))
        if w.shape[0] == 16:
            raise RuntimeError("CUDA out of memory\nsecond line")
        return "y"

    def conv_transpose2d(self, x: Any, w: Any, **attributes: Any) -> str:
        assert x.shape[1] == w.shape[0]
        self.calls.append(("ConvTranspose", x.shape, w.shape, *attributes.values()))
        return "y"

    def zeros(self, count: int, device: str) -> Any:
        if self.lost:
            raise RuntimeError("illegal access")
        return SimpleNamespace(item=lambda: 0.0)

    def neg(self, y: str) -> str:
        return y


def test_pytorch_without_a_device_is_no_reference(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = FakeTorch()
    torch.cuda.is_available = lambda: False
    monkeypatch.setitem(sys.modules, "torch", torch)
    importlib.import_module("gpu.rival").run_rival(stage, [])
    (row,) = rows_of(tmp_path, "torch")
    assert row["reason"] == "PyTorch 0 sees no CUDA device"


def test_pytorch_tunes_and_names_kernels(
    stage: Any, pretended: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    layers, rival = (importlib.import_module(f"gpu.{name}") for name in ("layers", "rival"))
    profile = [layers.paper_layer((1, n), (3, 3), 1, "float16", 1 << 14) for n in (4, 16)]
    rival.run_rival(stage, profile)
    about, *rows = rows_of(tmp_path, "torch")
    assert about["cudnn"] == 90000
    assert torch.backends.cudnn.benchmark
    assert [row["layout"] for row in rows] == ["nchw", "nhwc"] * 2
    for name in ("kernels", "runtime_kernels"):
        assert rows[0][name] == ["sm90_xmma_fprop", "copy"]
    assert rows[0]["us"] > 0
    assert [row["error"] for row in rows[2:]] == ["CUDA out of memory"] * 2
    torch.lost = True
    with pytest.raises(CheckFailedError, match="the device is lost: illegal access"):
        rival.run_rival(stage, profile)
    assert len(rows_of(tmp_path, "torch")) == 7  # a version and one more error
    torch.formats = torch.formats[:8]
    formats = [*itertools.chain(["first"] * 2, ["last"] * 2)]
    assert torch.formats == formats * 2


def test_layers_of_users_run_with_a_height_of_1(
    stage: Any, pretended: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    layers, rival = (importlib.import_module(f"gpu.{name}") for name in ("layers", "rival"))
    profile = {str(layer): layer for layer in layers.users("float16", quick=True)}
    names = ("ConvTranspose 64->1 1024 s256", "1->8 128 s8", "768->768 4 depthwise")
    rival.run_rival(stage, [profile[name] for name in names])
    assert list(dict.fromkeys(map(str, torch.calls))) == [
        str(("ConvTranspose", (8, 64, 1, 8), (64, 1, 1, 1024), [1, 256], [0, 0], 1)),
        str(("Conv", (8, 1, 1, 184), (8, 1, 1, 128), [1, 8], [0, 0], 1)),
        str(("Conv", (8, 768, 1, 67), (768, 1, 1, 4), [1, 1], [0, 0], 768)),
    ]
    count = len(torch.calls)
    rows = rows_of(tmp_path, "torch")[1:]
    assert [(row["layer"], row["layout"]) for row in rows] == [
        (name, layout) for name in names for layout in ("nchw", "nhwc")
    ]
    assert not [row for row in rows if "error" in row or "runtime_error" in row]
    rival.run_rival(stage, [profile[name] for name in names])
    assert len(torch.calls) == count  # nothing is timed again
