"""Channels padded by a plan: weights of another training, misfits, Inf, functions."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.folding import fold_model, rewriting_by_plan
from tests.rewrite.proved import assert_proved, proof
from tests.rules.padding.nets import (
    CASES,
    X,
    applied,
    drawn,
    filled,
    planned,
)
from tests.running import run
from widthfold_onnx.errors import CheckFailedError
from widthfold_onnx.model.loader import Model
from widthfold_onnx.options import Companion, FoldOptions
from widthfold_onnx.rewrite.draft import CompanionPlan, Draft
from widthfold_onnx.rewrite.padding import paddable_chains
from widthfold_onnx.rewrite.plan import Plan
from widthfold_onnx.rewrite.reading import Reading


def test_padding_holds_no_data_so_that_an_inf_stays_in_its_sample() -> None:
    model, _ = CASES["squeeze and excite"]
    padded = applied(model, planned(model, 4))
    data = drawn(model)["x"]
    data[0, 1, 2, 3] = np.inf
    (expected,), (result,) = (run(m, data) for m in (model, padded))
    np.testing.assert_array_equal(result[1], expected[1])
    assert np.isfinite(expected[1]).all()


def test_nothing_is_padded_if_inf_must_stay_where_it_is() -> None:
    model, _ = CASES["relu"]
    for nonfinite, count in (("spread", 1), ("refuse", 0)):
        options = FoldOptions(form="strides", pad_channels=8, nonfinite=nonfinite)
        after, _ = fold_model(model, options)
        assert sum(list(i.dims) == [8, 3, 2, 1] for i in after.graph.initializer) == count


def test_layers_are_folded_after_they_were_padded() -> None:
    model, _ = CASES["relu"]
    after, sites = fold_model(model, FoldOptions(factor=2, ragged=True, pad_channels=4))
    assert {site.status for site in sites} == {"folded"}
    (expected,), (result,) = (run(m, drawn(model)) for m in (model, after))
    np.testing.assert_array_equal(result, expected)
    assert_proved(model, after, 2)


def test_a_plan_pads_weights_that_were_trained_again() -> None:
    model, _ = CASES["residual sum"]
    plan = planned(model, 4)
    trained = onnx.ModelProto.FromString(model.SerializeToString())
    for weight in trained.graph.initializer:
        numbers = numpy_helper.to_array(weight) * 2 - 1
        weight.CopyFrom(numpy_helper.from_array(numbers, weight.name))
    again = msgspec.json.decode(plan.text(), type=Plan)
    assert again == plan
    (expected,), (result,) = (run(m, drawn(model)) for m in (trained, applied(trained, again)))
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("softmax", "first: its channels cannot be padded: Softmax Softmax -> b (no rule pads"),
        ("wider", "first: 6 channels would be padded to 8, planned 5 to 8"),
        ("renamed", "first: the model has no such layer"),
        ("whole", "first: its channels are not padded, planned 5 to 8"),
    ],
)
def test_a_plan_that_does_not_fit_names_the_layer(other: str, why: str) -> None:
    plan = planned(CASES["relu"][0], 4)
    count = {"wider": 6, "whole": 8}.get(other, 5)
    body = "Softmax <axis = 1>" if other == "softmax" else "Relu"
    name = "start" if other == "renamed" else "first"
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    net ({X}) => (float[n,c,h,w] y) <float[{count},3,2,1] w0, float[2,{count},1,2] w1> {{
        [{name}] a = Conv (x, w0)
        b = {body} (a)
        [last] y = Conv (b, w1)
    }}"""
    model = filled(parser.parse_model(text))
    with pytest.raises(CheckFailedError) as caught:
        applied(model, plan)
    assert why in str(caught.value)
    result = rewriting_by_plan(model, plan).carry_out()
    assert [list(i.dims) for i in result.graph.initializer] == [[count, 3, 2, 1], [2, count, 1, 2]]


def test_channels_of_several_layers_are_padded_only_if_the_plan_names_all() -> None:
    model, _ = CASES["residual sum"]
    plan = planned(model, 4)
    part = msgspec.structs.replace(plan.padding, layers=plan.padding.layers[:1])
    with pytest.raises(CheckFailedError, match="first: its channels are not padded"):
        applied(model, Plan(padding=part))


def test_functions_and_shared_weights() -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
    net ({X}) => (float[n,c,h,w] y) <float[5,3,1,1] w0, float[5,5,1,1] w1, float[2,5,1,1] w2> {{
        a = own.block (x, w0)
        b = own.block (a, w1)
        c = own.block (b, w1)
        y = Conv (c, w2)
    }}
    <domain: "own", opset_import: ["" : 18]>
    block (d, w) => (r) {{ e = Conv (d, w) r = Relu (e) }}"""
    model = filled(parser.parse_model(text))
    padded = applied(model, planned(model, 4))
    shapes = [list(i.dims) for i in padded.graph.initializer]
    assert sorted(shapes) == [[2, 8, 1, 1], [8, 3, 1, 1], [8, 8, 1, 1]]
    (expected,), (result,) = (run(m, drawn(model)) for m in (model, padded))
    np.testing.assert_array_equal(result, expected)
    assert proof(model, padded).verdict == "equal"


def test_a_stray_number_in_the_padding_is_found() -> None:
    model, _ = CASES["relu"]
    for name, place in (("w1", (0, 7, 0, 0)), ("w1", (0, 1, 0, 0))):
        padded = applied(model, planned(model, 4))
        (weight,) = [i for i in padded.graph.initializer if i.name.startswith(name)]
        numbers = numpy_helper.to_array(weight).copy()
        numbers[place] += 1e-8 if place[1] == 7 else 1
        weight.CopyFrom(numpy_helper.from_array(numbers, weight.name))
        verdict = proof(model, padded).verdict
        # Behind Relu(0) = 0 a number in the padding meets zeros only.
        assert verdict == ("equal" if place[1] == 7 else "different")


def test_a_padded_prelu_is_proved_as_the_ops_of_its_companion() -> None:
    model, _ = CASES["prelu"]
    model = onnx.ModelProto.FromString(model.SerializeToString())
    (slope,) = [weight for weight in model.graph.initializer if weight.name == "c"]
    numbers = np.array([0.5, 0.25, 1.0, 0.75, 0.125], np.float32).reshape(5, 1, 1)
    slope.CopyFrom(numpy_helper.from_array(numbers, "c"))
    node = "PRelu -> b"
    companions = (CompanionPlan(node=node, companion=Companion.PRELU),)
    draft = Draft(companions=companions)
    paddable = paddable_chains(Reading.of(Model(model, None), draft).document, 4)
    padded = applied(model, Plan(companions=companions, padding=paddable.plan))
    assert [n.op_type for n in padded.graph.node] == ["Conv", "Mul", "Max", "Conv"]
    assert proof(model, padded).verdict == "equal"
