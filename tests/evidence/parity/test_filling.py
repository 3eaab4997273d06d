"""Inputs that fill the range of quantizers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.rewrite.quantized.models import qdq_chain, rounding
from tests.small_models import MODELS
from widthfold_onnx.evidence.parity.filling import FILLING_LABEL, filling_set
from widthfold_onnx.model.loader import load
from widthfold_onnx.runtime.inputs.feeds import InputSet

SHAPE = (1, 4, 32, 64)
LIKE = InputSet("seed 0", {"x": np.ones(SHAPE, np.float32)}, random=True)


def filled(model: onnx.ModelProto, folder: Path) -> InputSet | None:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return filling_set(load(path), LIKE)


def constant(model: onnx.ModelProto, name: str) -> float:
    return float(next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == name))


def quantized(inputs: InputSet | None, model: onnx.ModelProto) -> np.ndarray:
    assert inputs is not None
    assert (inputs.label, inputs.random) == (FILLING_LABEL, True)
    assert inputs.feeds["x"].dtype == np.float32
    return np.round(inputs.feeds["x"] / constant(model, "s")) + constant(model, "z")


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_every_integer_of_the_type_is_there_and_nothing_beyond(kind: type, tmp_path: Path) -> None:
    model = qdq_chain(kind=kind)
    limits = np.iinfo(kind)
    steps = np.unique(quantized(filled(model, tmp_path), model))
    np.testing.assert_array_equal(steps, np.arange(limits.min, limits.max + 1))


@pytest.mark.parametrize(
    ("kind", "least"), [(0, 0), (TensorProto.UINT8, 0), (TensorProto.INT8, -128)]
)
def test_a_quantizer_without_a_zero_point(kind: int, least: int, tmp_path: Path) -> None:
    model = rounding(1)
    del model.graph.node[0].input[2:]
    if kind:  # since opset 21
        model.opset_import[0].version, model.ir_version = 21, 10
        model.graph.node[0].attribute.append(helper.make_attribute("output_dtype", kind))
    inputs = filled(model, tmp_path)
    assert inputs is not None
    steps = np.unique(np.round(inputs.feeds["x"] / constant(model, "s")))
    np.testing.assert_array_equal(steps, np.arange(least, least + 256))


def test_the_same_every_time(tmp_path: Path) -> None:
    first, second = (quantized(filled(m, tmp_path), m) for m in (rounding(1), rounding(1)))
    np.testing.assert_array_equal(first, second)


def test_a_quantizer_behind_what_only_moves_elements(tmp_path: Path) -> None:
    model = rounding(1)
    model.graph.node[0].input[0] = "t"
    model.graph.node.insert(0, helper.make_node("Transpose", ["x"], ["t"], perm=[0, 1, 2, 3]))
    assert np.ptp(quantized(filled(model, tmp_path), model)) == 255


def test_the_widest_of_two_quantizers(tmp_path: Path) -> None:
    model = rounding(1)
    model.graph.node.append(helper.make_node("QuantizeLinear", ["x", "wide", "z"], ["other"]))
    model.graph.initializer.append(helper.make_tensor("wide", onnx.TensorProto.FLOAT, [], [1.0]))
    inputs = filled(model, tmp_path)
    assert inputs is not None
    assert np.ptp(inputs.feeds["x"]) > 254


def test_other_inputs_stay_as_they_are(tmp_path: Path) -> None:
    model = rounding(1)
    model.graph.input.append(helper.make_tensor_value_info("other", 1, [3]))
    model.graph.node.append(helper.make_node("Neg", ["other"], ["negated"]))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    other = np.array([3, 5, 7], np.float32)
    inputs = filling_set(
        load(path), InputSet("seed 0", {**LIKE.feeds, "other": other}, random=True)
    )
    assert inputs is not None
    assert np.ptp(inputs.feeds["x"]) > 0
    np.testing.assert_array_equal(inputs.feeds["other"], other)


def test_without_a_constant_quantizer_of_an_input_there_is_no_set(tmp_path: Path) -> None:
    model = rounding(1)
    for change in ("scale that is no constant", "other reader", "nothing quantized"):
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        if change == "scale that is no constant":
            copy.graph.input.append(helper.make_tensor_value_info("free", 1, []))
            copy.graph.node[0].input[1] = "free"
        elif change == "other reader":
            copy.graph.node.insert(0, helper.make_node("Neg", ["x"], ["n"]))
            copy.graph.node[1].input[0] = "n"
        else:
            copy = onnx.load(MODELS / "signal_1d.onnx")
        assert filled(copy, tmp_path) is None
