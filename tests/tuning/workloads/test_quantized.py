"""Layers of quantized convolutions: cut out with what dequantizes and quantizes, in every form."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rewrite.quantized.convs import Case
from tests.rewrite.quantized.models import qdq_chain, with_moves
from tests.small_models import MODELS
from tests.tuning.workloads.tool import layers_of, run, workload_of
from widthfold_onnx.tuning.workloads import model_in_form

LINE = {"shape": (4, 3, 24), "weight": (5, 3, 4), "attributes": {"pads": [2, 1]}, "pads": (2, 1)}
POOL = onnx.helper.make_node("MaxPool", ["xf"], ["m"], kernel_shape=[1])
CASES = {
    "qlinear": Case(op="QLinearConv", **LINE),
    "integer": Case(op="ConvInteger", per_channel=False, kinds=(np.int8, np.uint8), **LINE),
    "qdq": Case(op="QDQ Conv", **LINE),
    "qdq_behind_pool": Case(op="QDQ Conv", behind=POOL, **LINE),
    "qdq_weight_of_floats": Case(op="QDQ Conv", plain=True, **LINE),
    "qdq_without_bias": Case(op="QDQ Conv", bias=False, per_channel=False, **LINE),
}


def returned(layer: bytes, case: Case, x: np.ndarray) -> np.ndarray:
    """Result of a layer on integers, without the operators at its ends: no form pays for them."""
    graph = onnx.ModelProto.FromString(layer).graph
    if graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
        numbers = case.constants()
        x = (x.astype(np.float32) - numbers["xz"].astype(np.float32)) * numbers["xs"]
    y = run(layer, x)
    return -y if graph.node[-1].op_type == "Neg" else y


@pytest.mark.parametrize("name", CASES)
def test_every_form_is_the_layer_bit_for_bit(name: str) -> None:
    case = CASES[name]
    workload = workload_of(case.model())
    x = case.data()
    expected = case.expected(x)
    np.testing.assert_array_equal(returned(workload.model, case, x), expected)
    assert {form.spec.factor for form in workload.forms} >= {2, 4, 8}
    assert workload.predicted_seconds > 0
    for form in workload.forms:
        model = model_in_form(workload, form.form)
        assert model is not None
        np.testing.assert_array_equal(returned(model, case, x), expected, err_msg=form.spec.text)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_dequantized_layers_take_their_quantizers_along(kind: type) -> None:
    """The runtime computes with floats where no QuantizeLinear stands before signed bytes."""
    case = Case(op="QDQ Conv", kinds=(kind, np.int8), **LINE)
    model = onnx.ModelProto.FromString(workload_of(case.model()).model)
    ops = [node.op_type for node in model.graph.node]
    dequantized = ["DequantizeLinear"] * 3
    assert ops[:-1] == ["QuantizeLinear", *dequantized, "Conv", "QuantizeLinear"]
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_a_layer_behind_a_pool_is_one_of_integers_without_the_pool() -> None:
    model = onnx.ModelProto.FromString(workload_of(CASES["qdq_behind_pool"].model()).model)
    ops = [node.op_type for node in model.graph.node]
    dequantized = ["DequantizeLinear"] * 3
    assert ops[:-1] == ["QuantizeLinear", *dequantized, "Conv", "QuantizeLinear"]


def test_layers_that_take_other_times_have_other_subjects() -> None:
    cases = [
        Case(op="QLinearConv", kinds=kinds, per_channel=several, **LINE)
        for kinds in ((np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8))
        for several in (False, True)
    ]
    cases += [Case(op="QDQ Conv", **LINE), Case(op="ConvInteger", per_channel=False, **LINE)]
    assert len({workload_of(case.model()).subject for case in cases}) == len(cases)
    first, other = (Case(op="QLinearConv", seed=seed, **LINE) for seed in (1, 2))
    assert workload_of(first.model()).subject == workload_of(other.model()).subject


def test_layers_between_quantizers_share_a_link() -> None:
    layers = layers_of(qdq_chain())
    assert len(layers.workloads) == 2
    assert any(link.makers and link.readers for link in layers.links)
    assert layers.workloads_inside
    for between in layers.workloads_inside.values():
        for form in between.forms:
            model = onnx.ModelProto.FromString(model_in_form(between, form.form) or b"")
            assert "Conv" in {node.op_type for node in model.graph.node}
            integers = onnx.TensorProto.UINT8 if form.input_layout else onnx.TensorProto.FLOAT
            assert model.graph.input[0].type.tensor_type.elem_type == integers


def test_a_layer_between_packed_integers_runs() -> None:
    workloads = layers_of(onnx.load(MODELS / "quantized_cnn.onnx")).workloads_inside.values()
    assert len(workloads) == 3
    for workload in workloads:
        for form in workload.forms[:4]:
            model = model_in_form(workload, form.form)
            assert model is not None
            start = onnx.ModelProto.FromString(model).graph.input[0].type.tensor_type
            kind = onnx.helper.tensor_dtype_to_np_dtype(start.elem_type)
            shape = [dim.dim_value for dim in start.shape.dim]
            assert run(model, np.ones(shape, kind)).dtype == np.float32


def test_a_moved_weight_takes_its_integers_along() -> None:
    """A weight of floats would be another layer: the runtime rounds it to 8 bits."""
    case = Case(op="QDQ Conv", bias=False, **LINE)
    workload = workload_of(with_moves(case.model(), ["Transpose", "Identity"]))
    ops = [node.op_type for node in onnx.ModelProto.FromString(workload.model).graph.node]
    moved = ["DequantizeLinear", "Transpose", "Identity"]
    assert ops[:-1] == ["QuantizeLinear", "DequantizeLinear", *moved, "Conv", "QuantizeLinear"]
    x = case.data()
    for form in workload.forms:
        model = model_in_form(workload, form.form)
        assert model is not None
        np.testing.assert_array_equal(returned(model, case, x), case.expected(x))
