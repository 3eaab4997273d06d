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
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import open_session


@pytest.fixture
def layers(scripts: Path) -> ModuleType:
    return importlib.import_module("gpu.layers")


@pytest.fixture
def graphs(scripts: Path) -> ModuleType:
    return importlib.import_module("gpu.graphs")


@pytest.fixture
def published(scripts: Path) -> ModuleType:
    return importlib.import_module("gpu.published")


def integers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def run(folder: Path, model: bytes, x: np.ndarray) -> np.ndarray:
    path = folder / "layer.onnx"
    path.write_bytes(model)
    onnx.checker.check_model(path, full_check=True)
    (y,) = (
        open_session(path, RuntimeOptions(provider=Provider.CPU), Level.DISABLED)
        .run({"x": x})
        .values()
    )
    return y


def check_every_form(layers, graphs, folder: Path, layer) -> Counter[str]:
    """Compare every form in both layouts with the oracle; return the names of the forms."""
    x, weight = integers(layer.shapes[0], 0), integers(layer.weight_shape, 1)
    pads = [pad for side in zip(*layer.ends, strict=True) for pad in side]
    operator = oracle.conv_transpose if layer.transposed else oracle.conv
    strides = [layer.stride] * len(layer.kernel)
    expected = -operator(x, weight, strides=strides, pads=pads, group=layer.group)
    assert expected.shape == layer.shapes[1]
    forms = [layers.AS_IS, *layers.forms(layer)]
    order = graphs.to_last(len(layer.kernel))
    for form in forms:
        first = run(folder, graphs.model(layer, weight, form, last=False), x)
        np.testing.assert_array_equal(first, expected, err_msg=form.name)
        last = run(folder, graphs.model(layer, weight, form, last=True), x.transpose(order))
        np.testing.assert_array_equal(last, expected.transpose(order), err_msg=form.name)
    names = Counter(form.name for form in forms)
    assert max(names.values()) == 1
    return names


@pytest.mark.parametrize(
    "kernel", [((5, 1), 1), ((1, 5), 1), ((3, 3), 1), ((7, 7), 2), ((1, 3), 1)]
)
@pytest.mark.parametrize("channels", [(1, 1), (3, 5), (8, 8), (9, 1)])
def test_every_form_is_the_layer_bit_for_bit(layers, graphs, tmp_path, channels, kernel) -> None:
    extents = (16, 32, 64) if kernel[1] == 1 else (16, 32, 32)
    layer = layers.Layer(channels, *kernel, "float32", extents)
    names = check_every_form(layers, graphs, tmp_path, layer)
    assert {"batch 8", "block 8", "band 8"} <= set(names)
    assert ("pad 8" in names) == (channels != (8, 8))
    assert ("pixels 4" in names) == (channels[1] < 8)
    assert ("space-to-depth" in names) == (layer.stride == 2)


USERS = {
    "ConvTranspose 128->1 4096 s1024": {"sub-pixel"},
    "ConvTranspose 256->1 4096 s1024": {"sub-pixel"},
    "ConvTranspose 64->1 1024 s256": {"sub-pixel"},
    "1->128 2048 s512": {"space-to-depth"},
    "1->8 128 s8": {"space-to-depth"},
    "1->6 100 s10": {"space-to-depth"},
    "16->16 31 depthwise": {"band 8", "band 16", "groups of 8", "groups of 16", "batch 8"},
    "32->32 31 depthwise": {"band 8", "band 16", "groups of 8", "groups of 16", "batch 8"},
    "48->48 31 depthwise": {"band 8", "band 16", "groups of 8", "groups of 16", "batch 8"},
    "768->768 4 depthwise": {"band 8", "band 16", "groups of 8", "groups of 16", "batch 8"},
}


@pytest.mark.parametrize("name", USERS)
def test_every_form_of_the_layers_of_users_is_the_layer(layers, graphs, tmp_path, name) -> None:
    small = {str(layer): layer for layer in layers.users("float32", quick=True)}
    assert set(small) == set(USERS)
    assert set(check_every_form(layers, graphs, tmp_path, small[name])) >= USERS[name]


def test_the_layers_of_users_have_their_forms_and_fit_a_device(layers) -> None:
    """A session holds its weights twice, and a run about four tensors of a side."""
    for dtype in ("float16", "float32"):
        users = layers.users(dtype)
        assert len(set(map(str, users))) == len(users) == 10
        for layer, small in zip(users, layers.users(dtype, quick=True), strict=True):
            names = {form.name for form in layers.forms(layer)}
            expected = USERS[str(small)]
            assert expected - {"batch 8"} <= names  # the layer of Mamba has one sample
            for form in layers.forms(layer):
                assert form.fold is None or form.fold.weight_growth() <= layer.bytes / (
                    np.prod(layer.weight_shape) * layer.itemsize
                )
            assert 10 * layer.bytes < 141e9 / 4
            assert small.bytes < 30e6
        istft = users[0]
        assert (istft.shapes[0], istft.weight_shape) == ((12, 2049, 340), (2049, 1, 4096))
        (form,) = (form for form in layers.forms(istft) if form.name == "sub-pixel")
        conv = istft.weight_shape[1], istft.weight_shape[0], istft.weight_shape[2]
        assert form.fold.weight_shape(conv) == (1024, 2049, 4)
        assert form.macs(istft) == pytest.approx(istft.macs, rel=0.01)


PUBLISHED = {
    "einnet_conv5x5": ((16, 32, 224, 224), (1, 32, 5, 5), (16, 1, 224, 224), (2, 2), 1, 1),
    "einnet_conv3x3": ((1, 512, 7, 7), (512, 512, 3, 3), (1, 512, 7, 7), (1, 1), 1, 1),
    "einnet_deconv4x4": ((16, 256, 2, 2), (256, 448, 4, 4), (16, 448, 4, 4), (1, 1), 2, 1),
    "spider_3x3": ((1, 1, 10240, 10240), (1, 1, 3, 3), (1, 1, 10240, 10240), (1, 1), 1, 1),
    "spider_5x5": ((1, 1, 10240, 10240), (1, 1, 5, 5), (1, 1, 10240, 10240), (2, 2), 1, 1),
    "spider_7x7": ((1, 1, 10240, 10240), (1, 1, 7, 7), (1, 1, 10240, 10240), (3, 3), 1, 1),
    "mobileclip_64_groups": ((1, 64, 64, 64), (128, 1, 7, 7), (1, 128, 32, 32), (3, 3), 2, 64),
    "mobileclip_32_groups": ((1, 64, 64, 64), (128, 2, 7, 7), (1, 128, 32, 32), (3, 3), 2, 32),
    "rwkv_depthwise": ((32, 768, 768), (768, 1, 768), (32, 768, 768), (767, 0), 1, 768),
}
"""Input, weight, output, pads before and behind an axis, stride and groups."""

BANDS = {"band 8", "band 16"}
FORMS = {
    "einnet_conv5x5": {"pad 8", "batch 8", "block 8", "block 16", *BANDS, "pixels 4"},
    "einnet_conv3x3": set(),
    "einnet_deconv4x4": {"sub-pixel"},
    **{f"spider_{n}x{n}": {"pad 8", *BANDS, "pixels 4"} for n in (3, 5, 7)},
    "mobileclip_64_groups": {"band 8", "space-to-depth", "groups of 8", "groups of 16"},
    "mobileclip_32_groups": {"band 8", "space-to-depth", "groups of 8", "groups of 16"},
    "rwkv_depthwise": {"batch 8", "band 8", "band 16", "groups of 8", "groups of 16"},
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_published_layers_are_those_of_their_sources(layers, published, dtype) -> None:
    entries = published.published(dtype)
    expected = {
        str(it): (it.shapes[0], it.weight_shape, it.shapes[1], *set(it.ends), it.stride, it.group)
        for it in entries
    }
    assert expected == PUBLISHED
    assert {layer.dtype for layer in entries} == {dtype}
    assert {str(it): {form.name for form in layers.forms(it)} for it in entries} == FORMS
    others = [*layers.users(dtype), *layers.paper(dtype, 512 << 20)]
    assert not set(PUBLISHED) & set(map(str, others))  # results are known by these names
    assert all(cell for entry in published.PUBLISHED for cell in entry.cells)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_form_of_the_published_layers_is_the_layer(layers, published, graphs, tmp_path, name):
    small = {str(layer): layer for layer in published.published("float32", quick=True)}
    assert set(small) == set(PUBLISHED)
    assert len(check_every_form(layers, graphs, tmp_path, small[name])) > 2


def test_a_group_of_several_channels_is_no_depthwise_layer(layers) -> None:
    grouped = layers.Layer((64, 128), (7, 7), 2, "float16", (1, 64, 64), group=64)
    assert str(grouped) == "64->128 7x7 s2 64 groups"


def test_multiply_adds_count_zeros_and_padding(layers) -> None:
    layer = layers.Layer((3, 5), (1, 5), 1, "float16", (16, 32, 64))
    macs = {form.name: form.macs(layer) / layer.macs for form in layers.forms(layer)}
    assert layer.macs == 16 * 32 * 64 * 3 * 5 * 5
    assert macs["pad 8"] == pytest.approx(64 / 15)
    assert macs["batch 8"] == 1
    assert macs["block 16"] == 16
    assert macs["band 8"] == pytest.approx(8 * 3 / 5)  # P * K' / K
    assert macs["pixels 4"] == pytest.approx(8 / 5)  # the taps of four positions: 5 + 3
    assert layer.bytes == 2 * (16 * 32 * 64) * (3 + 3 * 5) + 2 * 75


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_grid_holds_all_layers_at_one_size_with_every_factor(layers, dtype) -> None:
    grid = layers.paper(dtype, 512 << 20)
    assert len(grid) == len(set(map(str, grid))) == 35
    assert {layer.dtype for layer in grid} == {dtype}
    for layer in grid:
        x, y = (np.prod(shape) * np.dtype(layer.dtype).itemsize for shape in layer.shapes)
        assert 0.6 < (x + y) / (512 << 20) < 1.6, layer
        names = {form.name for form in layers.forms(layer)}
        assert {"batch 8", *(f"block {n}" for n in (8, 16, 32, 64)), "band 8", "band 16"} <= names


def test_transposes_that_the_runtime_cancels_are_gone_from_its_graph(
    layers, graphs, scripts, tmp_path
) -> None:
    """The CPU cancels them where it blocks channels anyway, from 16 channels on."""
    stage = importlib.import_module("gpu.stage")
    layer = layers.Layer((32, 32), (3, 3), 1, "float32", (1, 8, 8))
    weight = integers(layer.weight_shape, 0)
    source, target = tmp_path / "given.onnx", tmp_path / "made.onnx"
    source.write_bytes(graphs.model(layer, weight, layers.AS_IS, last=True))
    remaining = {}
    for level in (Level.DISABLED, Level.ALL):
        open_session(source, RuntimeOptions(provider=Provider.CPU), level, optimized=target)
        remaining[level] = stage.transposes(target)
    assert remaining == {Level.DISABLED: 2, Level.ALL: 0}
