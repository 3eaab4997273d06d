"""The parts of a plan that fit a model, and the misfits by name."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import widthfold_onnx as wf
from tests.lacking import needs_prelu
from tests.small_models import TWO_CONVS, build
from widthfold_onnx import CheckFailedError, Plan
from widthfold_onnx.decide.match import Misfit, match, read_for
from widthfold_onnx.model.loader import Model
from widthfold_onnx.options import Companion
from widthfold_onnx.rewrite.draft import CompanionPlan, Draft
from widthfold_onnx.rewrite.plan import plan_of
from widthfold_onnx.runtime import kernels


def matched(model: onnx.ModelProto, plan: Plan) -> tuple[Draft, list[Misfit]]:
    return match(read_for(Model(model, None), plan), plan)


def other_kernel(model: onnx.ModelProto) -> None:
    weight = model.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(np.ones((4, 2, 1, 5), np.float32), weight.name))
    model.graph.node[0].attribute[0].ints[:] = [0, 2, 0, 2]


def other_extents(model: onnx.ModelProto) -> None:
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[3].dim_value = 20


def other_name(model: onnx.ModelProto) -> None:
    model.graph.node[0].name = "stem"


def other_type(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in model.graph.initializer:
        numbers = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_kernel, ["first: weight is [4, 2, 1, 5], planned [4, 2, 1, 3]", "first: "]),
        (other_extents, ["first: input is [1, 2, 8, 20], planned [1, 2, 8, 16]", "Conv -> y"]),
        (other_name, ["first: the model has no such layer"]),
        (other_type, ['first: element is "DOUBLE", planned "FLOAT"']),
    ],
)
def test_what_does_not_fit_is_named_and_the_rest_can_be_applied(
    change: Callable[[onnx.ModelProto], None], words: list[str]
) -> None:
    model = build(TWO_CONVS)
    plan = wf.plan(model, factor=4)
    change(model)
    with pytest.raises(CheckFailedError) as error:
        wf.apply(model, plan)
    assert all(word in str(error.value) for word in words), error.value
    misfits = {misfit.name.node for misfit in matched(model, plan)[1]}
    rest = wf.apply(model, plan, partial=True)
    assert len(plan.layers) - len(misfits) == sum(
        any(entry.key == "widthfold.fold" for entry in node.metadata_props)
        for node in rest.graph.node
    )


def test_a_form_that_needs_zeros_in_the_weight_is_refused_where_they_are_gone() -> None:
    """Groups of a block-diagonal weight: another training need not keep the zeros."""
    model = build(TWO_CONVS)
    weight = np.zeros((4, 2, 1, 3), np.float32)
    weight[:2, 0], weight[2:, 1] = 1, 2
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w1"))
    plan = wf.plan(model, factor=4)
    (layer,) = [layer for layer in plan.layers if layer.node == "first"]
    spec = msgspec.structs.replace(layer.form, group=2)
    grouped = msgspec.structs.replace(plan, layers=(msgspec.structs.replace(layer, form=spec),))
    assert wf.apply(model, grouped) is not model
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight + 1, "w1"))
    with pytest.raises(CheckFailedError, match="the weight is not zero between 2 groups"):
        wf.apply(model, grouped)


def test_a_model_that_contains_folds_takes_no_plan() -> None:
    model = build(TWO_CONVS)
    plan = wf.plan(model, factor=4)
    with pytest.raises(CheckFailedError, match="fold the original instead"):
        wf.apply(wf.fold(model, factor=4), plan)


def test_frozen_weights_and_companions_that_are_missing_are_named() -> None:
    model = build(TWO_CONVS)
    changes = {
        "frozen": ("w1",),
        "companions": ({"node": "act", "companion": "prelu"},),
    }
    plan = msgspec.convert({"schema": "widthfold.plan/1", **changes}, Plan)
    misfits = list(map(str, matched(model, plan)[1]))
    assert misfits == [
        "w1: no weight of this name is an input",
        "act: companion prelu: no node of this name matches",
    ]
    assert str(plan) == "act  companion prelu\nw1   frozen"


def test_a_companion_that_is_refused_has_its_reason() -> None:
    model = build(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,2,8,16] x, float[1] s) => (float[1,2,8,16] y) { [act] y = PRelu (x, s) }"""
    )
    plan = Plan(companions=(CompanionPlan(node="act", companion=Companion.PRELU),))
    with pytest.raises(CheckFailedError, match="act: companion prelu: the slope s is an input"):
        wf.apply(model, plan)


def test_a_companion_that_the_runtime_computes_otherwise_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,1,8,16] x) => (float[1,1,8,16] y) <float[1] s = {0.25}, float[1,1,1,3] w>
        {
            [act] a = PRelu (x, s)
            [conv] y = Conv <pads = [0,1,0,1]> (a, w)
        }"""
    )
    monkeypatch.setattr(kernels, "prelu_keeps_inf", lambda: True)
    plan = wf.plan(model, factor=4, companion=["prelu"])
    assert str(plan.companions[0].name) == "act"
    monkeypatch.setattr(kernels, "prelu_keeps_inf", lambda: False)
    with pytest.raises(CheckFailedError, match=r"act: companion prelu: .* returns NaN for an Inf"):
        wf.apply(model, plan)
    changed = wf.apply(model, plan, partial=True)
    assert "PRelu" in [node.op_type for node in changed.graph.node]
    assert not wf.plan(model, factor=4, companion=["prelu"]).companions


def test_the_parts_that_fit_are_a_plan_of_their_own() -> None:
    model = build(TWO_CONVS)
    plan = wf.plan(model, factor=4)
    companion = CompanionPlan(node="act", companion=Companion.PRELU)
    more = msgspec.structs.replace(plan, frozen=("w1",), companions=(companion,))
    draft, misfits = matched(model, more)
    assert plan_of(draft, plan.origin) == plan
    assert len(misfits) == 2


@needs_prelu
def test_a_node_is_replaced_by_the_companion_that_the_plan_says_and_no_other() -> None:
    model = build(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,2,8,16] x) => (float[1,2,8,16] y) <float[1] s = {0.25}>
        {
            [p] a = PRelu (x, s)
            [q] y = PRelu (a, s)
        }"""
    )
    companions = (
        CompanionPlan(node="p", companion=Companion.SCALAR),
        CompanionPlan(node="q", companion=Companion.PRELU),
    )
    changed = wf.apply(model, wf.Plan(companions=companions), partial=True)
    first, *others = [node.op_type for node in changed.graph.node]
    assert first == "PRelu"
    assert "PRelu" not in others


def test_a_size_of_the_plan_that_does_not_fit_is_named() -> None:
    model = build(TWO_CONVS)
    plan = msgspec.structs.replace(wf.plan(model, factor=4), sizes=({"x": (1, 2, 8, 17)},))
    with pytest.raises(CheckFailedError, match="the sizes of the plan do not fit the model: "):
        wf.apply(model, plan)
