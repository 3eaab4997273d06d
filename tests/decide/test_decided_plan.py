"""A decided plan and its outcomes: layers that are left out later, and a plan that does not fit."""

from __future__ import annotations

import dataclasses

import onnx
import pytest
from msgspec.structs import replace

from tests.decide.net import NET, OPTIONS
from tests.small_models import build
from widthfold_onnx.decide.decided_plan import DecidedPlan
from widthfold_onnx.decide.fixed import decide_fixed
from widthfold_onnx.errors import InternalError
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import Model
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.reports.described.tuning import deployment, outcome
from widthfold_onnx.results import Gain, SearchReport, SizeGain
from widthfold_onnx.rewrite.plan import PlanTimes
from widthfold_onnx.rewrite.record import FOLD_KEY

REFUSAL = Refusal(Code.FOLD_NOT_PROVED, "the proof does not show it equal: its extents")


@pytest.fixture
def model() -> onnx.ModelProto:
    return build(NET)


def test_unproved_layers_are_refused_and_the_others_stay(model: onnx.ModelProto) -> None:
    decided_plan = decide_fixed(Model(model, None), OPTIONS)
    names = {layer.name for layer in decided_plan.plan.layers if layer.node == "b"}
    rest = decided_plan.without_unproved(dict.fromkeys(names, REFUSAL), Model(model, None))
    assert [(s.node, s.status, s.code) for s in rest.outcomes.sites] == [
        ("b", "refused", "fold-not-proved"),
        ("a", "folded", "folded"),
    ]
    folded_model = rest.fit().rewriting.carry_out()
    nodes = folded_model.graph.node
    recorded = {n.name for n in nodes if any(p.key == FOLD_KEY for p in n.metadata_props)}
    assert recorded == {"a"}
    weights = {tuple(tensor.dims) for tensor in folded_model.graph.initializer}
    assert (5, 3, 1, 1) in weights
    assert (2, 5, 1, 1) not in weights


def test_layers_that_are_not_folded_may_have_another_refusal(model: onnx.ModelProto) -> None:
    decided_plan = decide_fixed(Model(model, None), dataclasses.replace(OPTIONS, skip=("b",)))
    refusal = Refusal(Code.SATURATES, "left alone, as its fold saturates")
    rest = decided_plan.with_refusals({NodeName("", "b"): refusal})
    skipped, folded = rest.outcomes.sites
    assert (skipped.status, skipped.code, skipped.reason) == ("kept", "saturates", refusal.reason)
    assert folded == decided_plan.outcomes.sites[1]
    assert (rest.plan, rest.reading) == (decided_plan.plan, decided_plan.reading)


def test_a_plan_without_unproved_layers_was_not_timed(model: onnx.ModelProto) -> None:
    gain = Gain(ratio=1.5, low=1.4, high=1.6, pairs=9)
    whole = SearchReport(
        provider="cpu",
        threads=1,
        target="cpu",
        layers=2,
        forms=3,
        measured=5,
        pending=0,
        predicted=0,
        interrupted=False,
        store_read_only=False,
        sizes=[SizeGain(shapes={"x": [1, 3, 4, 24]}, gain=gain, verdict="faster")],
        whole=gain,
        accepted=True,
        original_setting="all",
        folded_setting="extended",
    )
    decided_plan = decide_fixed(Model(model, None), OPTIONS)
    timed_plan = replace(decided_plan.plan, measured=PlanTimes(whole=gain, setting="extended"))
    outcomes = dataclasses.replace(decided_plan.outcomes, search=whole)
    decided_plan = DecidedPlan(timed_plan, decided_plan.reading, outcomes)
    rest = decided_plan.without_unproved(
        {decided_plan.plan.layers[0].name: REFUSAL}, Model(model, None)
    )
    assert rest.plan.measured == PlanTimes()
    assert rest.outcomes.search is not None
    assert (outcome(rest.outcomes.search), deployment(rest.outcomes.search)) == (
        "the whole model was not timed",
        "",
    )
    assert [(row.gain, row.verdict) for row in rest.outcomes.search.sizes] == [(None, None)]
    assert (rest.outcomes.search.layers, rest.outcomes.search.measured) == (2, 5)
    names = {layer.name for layer in decided_plan.plan.layers}
    nothing = decided_plan.without_unproved(dict.fromkeys(names, REFUSAL), Model(model, None))
    assert nothing.outcomes.search is not None
    assert not nothing.outcomes.search.accepted


def test_a_decided_plan_that_does_not_fit_its_model_is_a_fault(model: onnx.ModelProto) -> None:
    decided_plan = decide_fixed(Model(model, None), OPTIONS)
    other = onnx.ModelProto.FromString(model.SerializeToString())
    other.graph.node[0].name = "renamed"
    decided_plan = decided_plan.without_unproved({}, Model(other, None))
    with pytest.raises(InternalError, match="b: the model has no such layer"):
        decided_plan.fit()
