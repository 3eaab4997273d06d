"""Layers that are cut out of a model, with the operators that a runtime fuses into them."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from tests.lacking import needs_exact_normalization
from tests.small_models import build, conv
from tests.tuning.workloads.tool import BASE, integers, layers_of, run, subject, workload_of
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.tuning.workloads import model_in_form

SCALE = np.array([2.0, 1.0, 3.0])

NORM = (SCALE, SCALE - 1, SCALE - 2, np.ones(3))

BEHIND = {
    "Relu": ("Relu", [], {}),
    "LeakyRelu": ("LeakyRelu", [], {"alpha": 0.5}),
    "HardSigmoid": ("HardSigmoid", [], {"alpha": 0.25, "beta": 0.5}),
    "Clip": ("Clip", [np.array(-3.0), np.array(3.0)], {}),
    "BatchNormalization": ("BatchNormalization", NORM, {"epsilon": 0.0}),
    "Add": ("Add", [SCALE.reshape(1, 3, 1, 1)], {}),
    "Mul": ("Mul", [SCALE.reshape(3, 1, 1)], {}),
}


def ops(model: bytes) -> list[str]:
    return [node.op_type for node in onnx.ModelProto.FromString(model).graph.node]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs_exact_normalization if name.startswith("Batch") else ())
        for name in BEHIND
    ],
)
def test_what_a_runtime_fuses_comes_along(name: str) -> None:
    workload = workload_of(conv(**BASE, behind=[BEHIND[name], BEHIND["Relu"]]))
    assert ops(workload.model) == ["Conv", name, "Relu", "Neg"]
    x = integers(workload.model)
    for form in workload.forms[::7]:
        model = model_in_form(workload, form.form)
        assert model is not None
        np.testing.assert_array_equal(run(model, x), run(workload.model, x))


@pytest.mark.parametrize(
    "text",
    [
        "{ [conv] a = Conv (x, w) y = Relu (a) b = Neg (a) }",
        "{ [conv] a = Conv (x, w) y = Add (a, x) b = Neg (y) }",
        "{ [conv] a = Conv (x, w) y = Mul (a, a) b = Neg (y) }",
        "{ [conv] a = Conv (x, w) y = Softmax (a) b = Neg (y) }",
        "{ [conv] y = Conv (x, w) b = Relu (y) }",
    ],
)
def test_what_is_not_fused_stays_behind(text: str) -> None:
    head = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,4,16] x) => (float[1,1,4,16] y, float[1,1,4,16] b) <float[1,1,1,1] w>"""
    assert ops(workload_of(build(head + text)).model) == ["Conv", "Neg"]


@pytest.mark.parametrize("name", ["negative", "y"])
def test_no_name_of_the_model_is_in_the_way(name: str) -> None:
    workload = workload_of(conv(**BASE, output=name))
    assert run(workload.model, integers(workload.model)).shape == (1, 3, 6, 16)


def test_whatever_decides_over_the_time_is_in_the_subject() -> None:
    pads = {"pads": [1, 1, 1, 1]}
    others = [
        subject(**change)
        for change in (
            {},
            {"shape": [2, 2, 6, 16]},
            {"shape": [1, 2, 6, 18]},
            {"weight": (4, 2, 3, 3)},
            {"weight": (3, 2, 3, 1), "pads": [1, 0, 1, 0]},
            {"shape": [1, 4, 6, 16], "weight": (4, 2, 3, 3), "group": 2},
            {"pads": [1, 1, 1, 0]},
            {"pads": [1, 0, 1, 1]},
            {"strides": [1, 2]},
            {"dilations": [1, 2]},
            {"bias": False},
            {"dtype": np.float16},
            {"behind": [BEHIND["Relu"]], **pads},
            {"behind": [BEHIND["Clip"]], **pads},
            {"behind": [BEHIND["Add"]]},
            {"behind": [("Add", [np.ones((1, 3, 6, 16))], {})]},
            {"behind": [BEHIND["Relu"], BEHIND["Relu"]]},
        )
    ]
    assert len(set(others)) == len(others)
    assert all(json.loads(text) for text in others)


def test_a_layer_of_one_position_has_no_form_and_says_so() -> None:
    width = FoldOptions(axis="width")
    (refusal,) = layers_of(conv([1, 1, 1, 1, 1], (1, 1, 1, 1, 1)), width).subjects.values()
    assert isinstance(refusal, Refusal)
    assert refusal.code == "too-short"
    for rank in (1, 2):
        (lifted,) = workload_of(conv([1, 1, *[1] * rank], (1, 1, *[1] * rank)), width).forms
        assert lifted.spec.lift == 1
    # Its channels can be padded all the same.
    volume = conv([1, 1, 1, 1, 1], (1, 1, 1, 1, 1))
    assert {f.spec.axis for f in workload_of(volume).forms} == {"channel"}


def test_pads_that_hang_on_an_assumed_extent_are_not_pads_that_do_not() -> None:
    """Every form of pads that hang on the width needs a guard, so none of another axis is better.

    A layer of fixed pads has forms along the height that need none, and keeps these.
    """
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,8,w] x) => (float[1,1,8,v] y, float[1,1,8,v] z)
    <float[1,1,3,3] w1, float[1,1,3,3] w2>
    { [fixed] z = Conv <pads = [0,0,1,1], strides = [2,2]> (x, w2)
      [hanging] y = Conv <auto_pad = "SAME_UPPER", strides = [2,2]> (x, w1) }"""
    shapes = {"x": (1, 1, 8, 16)}
    layers = {
        nodes: layers_of(build(text), FoldOptions(input_shapes=shapes, nodes=nodes), shapes)
        for nodes in (("hanging",), ("fixed",), ())
    }
    hanging, fixed, both = (
        {form.spec for form in next(iter(found.workloads.values())).forms}
        for found in layers.values()
    )
    assert fixed < hanging == both
