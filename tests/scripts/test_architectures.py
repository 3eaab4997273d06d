"""Nets that the benchmark of architectures builds: their bytes, extents and parameters."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the script made
import pytest

from tests.lacking import needs_names

CHEAP = ("eegnet", "fsrcnn_s", "ds_cnn", "conformer_depthwise", "ecg_resnet", "nerf_mlp")
LARGE = ("istft", "stft")
STATED = [
    # Each of 40 channels is normalized by two numbers; the convolution holds one bias for both.
    ("eegnet", 1, 2258 - 40),
    # These papers count the weights of the convolutions alone.
    ("fsrcnn", 4, 12464),
    ("fsrcnn_s", 4, 3937),
]
NAMES = [
    *("eegnet", "eegnet_batch32", "fsrcnn", "fsrcnn_s", "espcn", "ds_cnn", "conformer_block"),
    *("conformer_depthwise", "istft", "stft", "hifigan_stage", "vocoder_head", "unet_3d"),
    *("nerf_mlp", "ecg_resnet", "denoiser", "pruned", "pruned_prelu", "separable"),
    *("face_detector", "unet", "segmentation", "deep_eeg", "tcn_25", "tcn_32", "wavenet"),
    *("deepfilter_encoder", "deepfilter_streaming"),
]


@pytest.fixture
def nets(scripts: Path) -> ModuleType:
    return importlib.import_module("architectures")


def model_of(nets: ModuleType, name: str) -> onnx.ModelProto:
    return importlib.import_module("make_models").build(name, nets.NETS[name]())


def test_the_benchmark_has_these_nets(nets: ModuleType) -> None:
    assert list(nets.NETS) == NAMES


@needs_names
def test_every_run_writes_the_same_bytes(scripts: Path, tmp_path: Path) -> None:
    def run(hash_seed: str) -> dict[str, bytes]:
        out = tmp_path / hash_seed
        subprocess.run(
            [sys.executable, scripts / "architectures.py", "--out", out, *CHEAP],
            check=True,
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
        )
        return {path.stem: path.read_bytes() for path in out.iterdir()}

    result = run("1")
    assert set(result) == set(CHEAP)
    assert run("2") == result


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in NAMES],
)
def test_a_net_is_valid_and_runs_and_its_outputs_are_alive(nets: ModuleType, name: str) -> None:
    model = model_of(nets, name)
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(7)
    feeds = {
        value.name: generator.normal(size=value.shape).astype(np.float32)
        for value in session.get_inputs()
    }
    (result,), (declared,) = session.run(None, feeds), session.get_outputs()
    assert list(result.shape) == declared.shape
    assert np.isfinite(result).all()
    assert result.std() > 0.001


@pytest.mark.parametrize(("name", "least_rank", "parameters"), STATED)
def test_it_has_as_many_parameters_as_its_paper_states(
    nets: ModuleType, name: str, least_rank: int, parameters: int
) -> None:
    weights = [each.dims for each in model_of(nets, name).graph.initializer]
    assert sum(math.prod(dims) for dims in weights if len(dims) >= least_rank) == parameters


def test_a_net_that_does_not_exist_is_named(scripts: Path, tmp_path: Path) -> None:
    command = [sys.executable, scripts / "architectures.py", "--out", tmp_path / "out", "lenet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no such net: lenet" in done.stderr
