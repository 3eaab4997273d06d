"""Times that are expected of a GPU, for the layers that are measured, as the script prints them."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

from tests.shared import ROOT
from widthfold_onnx.model.document import Document
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.tuning.cost import Work
from widthfold_onnx.tuning.targets import load_target
from widthfold_onnx.tuning.workloads import only_layer

FILE = ROOT / "benchmarks" / "gpu" / "predicted.md"


@pytest.fixture
def predict(scripts: Path) -> ModuleType:
    return importlib.import_module("gpu_predict")


def test_the_file_is_what_the_script_prints_and_says_that_it_is_predicted(predict) -> None:
    text = FILE.read_text(encoding="utf-8")
    assert text == predict.text()
    titles = [line for line in text.splitlines() if line.startswith("#")]
    assert len(titles) == 14
    assert titles.pop() == "## Published times"
    assert all("PREDICTED" in title for title in titles)


@pytest.mark.parametrize("device", ["a100", "h100", "h200"])
def test_nothing_is_predicted_below_its_floor(predict, device) -> None:
    aim = load_target(device)
    layers = [*predict.paper("float16", 512 << 20), *predict.users("float16")]
    for layer in [*layers, *predict.published("float16"), *predict.published("float32")]:
        for form in (predict.AS_IS, *predict.forms(layer)):
            least = max(predict.floors(layer, form, aim))
            assert predict.predicted(layer, form, aim) >= least, (layer, form.name)


def test_floors_are_those_of_a_sheet_of_paper(predict) -> None:
    h200, (layer, *_) = load_target("h200"), predict.paper("float16", 512 << 20)
    positions = 64 * 1024 * 2048
    moved = 2 * (4 * positions + 5) / 4.8e12
    per_position = {
        "none": 64 * 16,
        "pad 8": 64 * 48,
        "batch 8": 64 * 5 / 8,
        "block 16": 64 * 80 / 16,
    }
    forms = {form.name: form for form in (predict.AS_IS, *predict.forms(layer))}
    for name, macs in per_position.items():
        seconds = predict.floors(layer, forms[name], h200)
        assert seconds == pytest.approx((moved, positions * macs / 494.5e12)), name


@pytest.mark.parametrize("index", [0, 3, 13, 35, 37, 41, 42, 43, -10, -7, -4])
def test_the_work_is_that_of_the_model_that_is_measured(predict, index) -> None:
    layers = predict.paper("float16", 1 << 16)
    layers += predict.published("float16", quick=True) + predict.users("float16", quick=True)
    graphs = importlib.import_module("gpu.graphs")
    layer = layers[index]
    weight = np.ones(layer.weight_shape, layer.dtype)
    forms = [predict.AS_IS, *predict.forms(layer)]
    assert len(forms) > 2
    for form in forms:
        model = onnx.ModelProto.FromString(graphs.model(layer, weight, form, last=False))
        read_layer = only_layer(Document(model, None, OPERATORS))
        assert isinstance(read_layer, Layer)
        shapes = (
            list(map(int, dims)) for dims in (read_layer.planned_shape, read_layer.output_shape)
        )
        floors = Work.of(read_layer, *shapes)
        assert predict.work_of(layer, form) == floors, form.name
