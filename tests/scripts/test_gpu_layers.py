"""Every form of every layer of the grid computes what the layer computes, in both layouts."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

from tests import oracle
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.session import Level, open_session


@pytest.fixture
def layers(scripts: Path) -> ModuleType:
    return importlib.import_module("gpu.layers")


@pytest.fixture
def grid(scripts: Path) -> ModuleType:
    return importlib.import_module("gpu.grid")


def integers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def run(folder: Path, model: bytes, x: np.ndarray) -> np.ndarray:
    path = folder / "layer.onnx"
    path.write_bytes(model)
    onnx.checker.check_model(path, full_check=True)
    (y,) = open_session(path, Provider.CPU, Level.DISABLED).run({"x": x}).values()
    return y


@pytest.mark.parametrize(
    "kernel", [((5, 1), 1), ((1, 5), 1), ((3, 3), 1), ((7, 7), 2), ((1, 3), 1)]
)
@pytest.mark.parametrize("channels", [(1, 1), (3, 5), (8, 8), (9, 1)])
def test_every_form_is_the_layer_bit_for_bit(layers, tmp_path, channels, kernel) -> None:
    extents = (16, 32, 64) if kernel[1] == 1 else (16, 32, 32)
    layer = layers.Layer(channels, *kernel, "float32", extents)
    x, weight = integers(layer.shapes[0], 0), integers(layer.weight_shape, 1)
    half = [k // 2 for k in layer.kernel]
    wanted = -oracle.conv(x, weight, strides=[layer.stride] * 2, pads=half + half)
    assert wanted.shape == layer.shapes[1]
    found = [layers.AS_IS, *layers.forms(layer)]
    names = Counter(form.name for form in found)
    assert {"batch 8", "block 8", "band 8"} <= set(names)
    assert ("pad 8" in names) == (channels != (8, 8))
    assert ("space-to-depth" in names) == (layer.stride == 2)
    assert max(names.values()) == 1
    for form in found:
        first = run(tmp_path, layers.model(layer, weight, form, last=False), x)
        np.testing.assert_array_equal(first, wanted, err_msg=form.name)
        last = run(tmp_path, layers.model(layer, weight, form, last=True), x.transpose(0, 2, 3, 1))
        np.testing.assert_array_equal(last, wanted.transpose(0, 2, 3, 1), err_msg=form.name)


def test_multiply_adds_count_zeros_and_padding(layers) -> None:
    layer = layers.Layer((3, 5), (1, 5), 1, "float16", (16, 32, 64))
    macs = {form.name: form.macs(layer) / layer.macs for form in layers.forms(layer)}
    assert layer.macs == 16 * 32 * 64 * 3 * 5 * 5
    assert macs["pad 8"] == pytest.approx(64 / 15)
    assert macs["batch 8"] == 1
    assert macs["block 16"] == 16
    assert macs["band 8"] == pytest.approx(8 * 3 / 5)  # P * K' / K
    assert layer.bytes == 2 * (16 * 32 * 64) * (3 + 3 * 5)


def test_the_grid_holds_all_layers_at_one_size_with_every_factor(layers, grid) -> None:
    found = grid.layers(512 << 20)
    assert len(found) == len(set(map(str, found))) * 2 == 70
    assert found[0].dtype == "float16"
    for layer in found:
        x, y = (np.prod(shape) * np.dtype(layer.dtype).itemsize for shape in layer.shapes)
        assert 0.6 < (x + y) / (512 << 20) < 1.6, layer
        names = {form.name for form in layers.forms(layer)}
        assert {"batch 8", *(f"block {n}" for n in (8, 16, 32, 64)), "band 8", "band 16"} <= names


def test_transposes_that_the_runtime_cancels_are_gone_from_its_graph(scripts, tmp_path) -> None:
    """The CPU cancels them where it blocks channels anyway, from 16 channels on."""
    stage = importlib.import_module("gpu.stage")
    layers = importlib.import_module("gpu.layers")
    layer = layers.Layer((32, 32), (3, 3), 1, "float32", (1, 8, 8))
    weight = integers(layer.weight_shape, 0)
    given, made = tmp_path / "given.onnx", tmp_path / "made.onnx"
    given.write_bytes(layers.model(layer, weight, layers.AS_IS, last=True))
    left = {}
    for level in (Level.DISABLED, Level.ALL):
        open_session(given, Provider.CPU, level, optimized=made)
        left[level] = stage.transposes(made)
    assert left == {Level.DISABLED: 2, Level.ALL: 0}
