"""Layers of a product of matrices: cut out with fused nodes, in every form, predicted."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.folding import read
from tests.operators.products import Product
from tests.tuning.workloads.tool import integers, layers_of, run, workload_of
from widthfold_onnx.decide.decisions import read_sites
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.enumeration import every_form, form_of
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.tuning.layers import Layers
from widthfold_onnx.tuning.targets import load_target
from widthfold_onnx.tuning.workloads import model_in_form

LAYERS = {
    "rows": Product(shape=[96, 3], weight=[3, 5]),
    "merged": Product(shape=[2, 3, 16, 3], weight=[3, 5]),
    "vector": Product(shape=[2, 32, 3], weight=[3]),
    "batched": Product(shape=[2, 32, 3], weight=[2, 3, 5]),
    "columns": Product(shape=[2, 3, 64], weight=[5, 3], weight_on_left=True),
    "gemm": Product(
        op="Gemm",
        shape=[64, 3],
        weight=[5, 3],
        addend=[5],
        attributes={"transB": 1, "alpha": 2.0, "beta": 3.0},
    ),
    "across": Product(
        op="Gemm", shape=[3, 64], weight=[3, 5], addend=[64, 1], attributes={"transA": 1}
    ),
    "thirds": Product(shape=[33, 3], weight=[3, 5]),
}


DIVISORS = {
    "merged": {2, 4, 8, 16},  # 48 rows a sample
    "batched": {2, 4, 8, 16},  # by 32 the weight is most of all bytes
    "thirds": {3, 11},
}

MIXED = FoldOptions(mix_samples=True)


def fold_of(name: str) -> FoldOptions:
    """Rows of a matrix that is an input of the model are samples, so they mix if asked to."""
    return MIXED if len(LAYERS[name].shape) == 2 else FoldOptions()


@pytest.mark.parametrize("name", LAYERS)
def test_every_form_is_the_layer_bit_for_bit(name: str) -> None:
    product = LAYERS[name]
    workload = workload_of(product.model(), fold_of(name))
    factors = {form.spec.factor for form in workload.forms}
    assert factors == DIVISORS.get(name, {2, 4, 8, 16, 32})
    x = integers(workload.model)
    reference = product.expected(x)
    np.testing.assert_array_equal(run(workload.model, x), -reference)
    channels = product.arrays()["w"].size // (1 if name == "vector" else 5)
    channels //= 2 if name == "batched" else 1
    assert workload.macs == reference.size * channels
    for form in workload.forms:
        model = model_in_form(workload, form.form)
        assert model is not None
        np.testing.assert_array_equal(run(model, x), -reference, err_msg=form.spec.text)


@pytest.mark.parametrize("name", LAYERS)
def test_a_form_is_made_again_from_its_spec(name: str) -> None:
    ((_, layer),) = read_sites(read(LAYERS[name].model(), fold_of(name)))
    assert isinstance(layer, Layer)
    for form in every_form(layer, fold_of(name)):
        again = form_of(layer, form.spec, fold_of(name))
        assert isinstance(again, Form)
        assert (again.fold, again.packing_moves, again.unpacking_moves) == (
            form.fold,
            form.packing_moves,
            form.unpacking_moves,
        )


def with_bias(name: str) -> onnx.ModelProto:
    """A bias and a Relu behind the product, and then what nothing fuses."""
    model = LAYERS[name].model()
    graph = model.graph
    bias = np.arange(5, dtype=np.float32).reshape([5, 1] if LAYERS[name].weight_on_left else [5])
    graph.initializer.append(numpy_helper.from_array(bias, "b"))
    del graph.node[2]
    graph.node.append(helper.make_node("Add", ["b", "m"], ["a"], "add"))
    graph.node.append(helper.make_node("Relu", ["a"], ["r"], "relu"))
    graph.node.append(helper.make_node("Exp", ["r"], ["y"], "exp"))
    return model


def ops(model: bytes | None) -> list[str]:
    assert model is not None
    return [node.op_type for node in onnx.ModelProto.FromString(model).graph.node]


def test_what_is_fused_behind_belongs_to_the_layer() -> None:
    workload = workload_of(with_bias("rows"), MIXED)
    assert [n[0] for n in json.loads(workload.subject)["behind"]] == ["Add", "Relu"]
    assert ops(workload.model) == ["MatMul", "Add", "Relu", "Neg"]


@pytest.mark.parametrize("name", ["rows", "merged", "batched", "columns", "gemm"])
def test_a_form_keeps_fused_what_a_runtime_fuses(name: str) -> None:
    """Measured alone between its Reshapes, and as a neighbour would find it, without them."""
    workload = workload_of(with_bias(name), fold_of(name))
    x = integers(workload.model)
    expected = run(workload.model, x)
    assert len(np.unique(expected)) > 9
    op = LAYERS[name].op
    for form in workload.forms:
        alone = model_in_form(workload, form.form)
        assert ops(alone) == ["Reshape", op, "Add", "Relu", "Reshape", "Neg"]
        np.testing.assert_array_equal(run(alone or b"", x), expected)
        inside = model_in_form(replace(workload, is_inside=True), form.form)
        assert ops(inside) == [op, "Add", "Relu", "Neg"]
        assert form.input_layout is not None
        assert form.input_layout == form.output_layout
        np.testing.assert_array_equal(
            run(inside or b"", form.input_layout.pack_array(x)),
            form.input_layout.pack_array(expected),
        )


def test_what_is_carried_is_predicted_to_be_fused() -> None:
    """Behind a vector the unfold stands first: there a bias costs another pass."""
    gains = []
    for weight in ([1, 1], [1]):
        model = Product(shape=[262144, 1], weight=weight).model()
        graph = model.graph
        graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "b"))
        graph.node[2].CopyFrom(helper.make_node("Add", ["m", "b"], ["y"]))
        graph.node.append(helper.make_node("Identity", ["y"], ["end"]))
        graph.output[0].name = "end"
        workload = workload_of(model, MIXED)
        (by_8,) = [form for form in workload.forms if form.spec.factor == 8]
        gains.append(workload.predicted_seconds / by_8.predicted_seconds)
    assert gains[0] > 2
    assert gains[0] > 1.2 * gains[1]


def test_subjects_tell_products_apart() -> None:
    subjects = {workload_of(p.model(), fold_of(name)).subject for name, p in LAYERS.items()}
    assert len(subjects) == len(LAYERS)


def test_a_product_without_a_form_says_why() -> None:
    (refusal,) = layers_of(Product(shape=[37, 3], weight=[3, 5]).model()).subjects.values()
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.reason) == (
        "factor-does-not-divide",
        "rows: 37 rows are not a multiple of 2",
    )


# Measured gains, ONNX Runtime 1.31.1, one layer alone, one thread: 3.6x, 1.9x and 0.5x.
TALL = {
    (262144, 1, 1): lambda gain: gain > 2,
    (1048576, 3, 1): lambda gain: 1.1 < gain < 3,
    (262144, 8, 8): lambda gain: gain < 1,
}


@pytest.mark.parametrize("shape", TALL)
def test_tall_and_skinny_products_are_predicted(shape: tuple[int, int, int]) -> None:
    rows, channels, outputs = shape
    model = Product(shape=[rows, channels], weight=[channels, outputs]).model()
    layers = Layers.of(read(model, MIXED), MIXED, {}, load_target("cpu-avx512"))
    (layer,) = layers.workloads.values()
    (by_8,) = [form for form in layer.forms if form.spec.factor == 8]
    ratio = layer.predicted_seconds / by_8.predicted_seconds
    assert TALL[shape](ratio), ratio
