"""The layers that are measured: what they compute, how large they are, and that names are known."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tests import oracle

PUBLISHED = {
    "einnet_conv5x5": ((16, 32, 224, 224), (16, 1, 224, 224)),
    "einnet_conv3x3": ((1, 512, 7, 7), (1, 512, 7, 7)),
    "einnet_deconv4x4": ((16, 256, 2, 2), (16, 448, 4, 4)),
    "spider_3x3_float16": ((1, 1, 10240, 10240),) * 2,
    "spider_5x5_float16": ((1, 1, 10240, 10240),) * 2,
    "spider_7x7_float16": ((1, 1, 10240, 10240),) * 2,
    "mobileclip_64_groups": ((1, 64, 64, 64), (1, 128, 32, 32)),
    "mobileclip_32_groups": ((1, 64, 64, 64), (1, 128, 32, 32)),
    "rwkv_depthwise": ((32, 768, 768), (32, 768, 768)),
}
"""Shapes of input and output on a GPU, in the element type of the source."""


@pytest.fixture
def layers(scripts: Path) -> ModuleType:
    return importlib.import_module("nets.layers")


@pytest.fixture
def published(scripts: Path) -> ModuleType:
    return importlib.import_module("nets.published_layers")


def integers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize("has_neighbour", [False, True])
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "more"),
    [
        ((3, 5), (3, 3), 1, {}),
        ((2, 4), (7, 7), 2, {"group": 2}),
        ((3, 2), (5,), 3, {"pads": (4, 0)}),
        ((5, 3), (4, 4), 2, {"pads": (1, 1), "transposed": True}),
    ],
)
def test_a_model_computes_the_layer(layers, channels, kernel, stride, more, has_neighbour) -> None:
    extents = (2, *(11, 13)[: len(kernel)])
    layer = layers.Layer(channels, kernel, stride, "float32", extents, **more)
    model = layer.model(has_neighbour=has_neighbour)  # inference checks the shapes
    x, weight = integers(layer.shapes[0], 0), integers(layer.weight_shape, 1)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    operator = oracle.conv_transpose if layer.transposed else oracle.conv
    pads = [pad for side in zip(*layer.ends, strict=True) for pad in side]
    expected = operator(x, weight, strides=[stride] * len(kernel), pads=pads, group=layer.group)
    (y,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(y, -expected if has_neighbour else expected)


def test_published_layers_have_the_extents_of_their_source(published) -> None:
    own = [entry.layer for entry in published.PUBLISHED]
    assert {str(layer): layer.shapes for layer in own} == PUBLISHED
    assert {layer.dtype for layer in published.layers("cpu")} == {"float32"}
    assert {str(entry.on_cpu) for entry in published.PUBLISHED} == {
        name.removesuffix("_float16") for name in PUBLISHED
    }  # by these names results are known


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_names_are_unique_and_sizes_fit_the_device(layers, published, device) -> None:
    lists = layers.few_channels(device), layers.of_users(device), published.layers(device)
    names = [str(layer) for each in lists for layer in each]
    assert len(set(names)) == len(names)
    assert {len(each) for each in lists} == ({35, 10, 9} if device == "cpu" else {70, 10, 18})
    for layer in lists[0]:
        size = np.dtype(layer.dtype).itemsize * sum(map(np.prod, layer.shapes))
        assert 0.4 < size / layers.LAYER_BYTES[device] < 2.5
    for layer in (*lists[0], *lists[1]):
        if device == "cpu":
            onnx.checker.check_model(layer.model(has_neighbour=True), full_check=True)


def test_float16_is_measured_first_on_a_gpu(layers, tmp_path, monkeypatch) -> None:
    first, *_ = layers.few_channels("gpu")
    assert (str(first), first.geometry) == ("1to1_3x3_float16", "1->1 3x3")
    monkeypatch.setattr(layers, "BUILD", tmp_path)
    small = layers.Layer((1, 2), (3,), 1, "float16", (1, 8))
    (on_cpu,), (on_gpu,) = (layers.written([small], device) for device in ("cpu", "gpu"))
    models = [onnx.load(path) for path in (on_cpu, on_gpu)]
    assert [[node.op_type for node in it.graph.node] for it in models] == [
        ["Conv"],
        ["Conv", "Neg"],
    ]
    assert models[0].graph.initializer == models[1].graph.initializer
    assert models[0].graph.initializer[0].data_type == onnx.TensorProto.FLOAT16
