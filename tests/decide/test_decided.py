"""What was decided, without layers that are left out later."""

from __future__ import annotations

import dataclasses

import onnx
import pytest

from tests.decide.net import NET, OPTIONS
from tests.small_models import build
from widthfold_onnx.decide.fixed import decide_fixed
from widthfold_onnx.decide.outcomes import Decided
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import Model
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.reports.described.tuning import deployment, outcome
from widthfold_onnx.results import Gain, SearchReport, SizeGain
from widthfold_onnx.rewrite.plan import PlanTimes
from widthfold_onnx.rewrite.record import FOLD_KEY
from widthfold_onnx.rewrite.rewriting import rewrite

REFUSAL = Refusal(Code.FOLD_NOT_PROVED, "the proof does not show it equal: its extents")


@pytest.fixture
def model() -> onnx.ModelProto:
    return build(NET)


def test_unproved_layers_are_refused_and_the_others_stay(model: onnx.ModelProto) -> None:
    decided = decide_fixed(Model(model, None), OPTIONS)
    rest = decided.without({NodeName("", "b"): REFUSAL}, Model(model, None))
    assert [(s.node, s.status, s.code) for s in rest.outcomes.sites] == [
        ("b", "refused", "fold-not-proved"),
        ("a", "folded", "folded"),
    ]
    folded_model = rewrite(rest.reading, rest.draft.forms).carry_out()
    nodes = folded_model.graph.node
    recorded = {n.name for n in nodes if any(p.key == FOLD_KEY for p in n.metadata_props)}
    assert recorded == {"a"}
    weights = {tuple(tensor.dims) for tensor in folded_model.graph.initializer}
    assert (5, 3, 1, 1) in weights
    assert (2, 5, 1, 1) not in weights


def test_layers_that_are_not_folded_may_have_another_refusal(model: onnx.ModelProto) -> None:
    outcomes = decide_fixed(Model(model, None), dataclasses.replace(OPTIONS, skip=("b",))).outcomes
    refusal = Refusal(Code.SATURATES, "left alone, as its fold saturates")
    skipped, folded = outcomes.with_refusals({NodeName("", "b"): refusal}).sites
    assert (skipped.status, skipped.code, skipped.reason) == ("kept", "saturates", refusal.reason)
    assert folded == outcomes.sites[1]


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
    reading, draft, outcomes = decide_fixed(Model(model, None), OPTIONS)
    measured = PlanTimes(whole=gain, setting="extended")
    decided = Decided(
        reading, draft, dataclasses.replace(outcomes, search=whole, measured=measured)
    )
    rest = decided.without({NodeName("", "b"): REFUSAL}, Model(model, None))
    assert rest.plan.measured == PlanTimes()
    assert rest.outcomes.search is not None
    assert (outcome(rest.outcomes.search), deployment(rest.outcomes.search)) == (
        "the whole model was not timed",
        "",
    )
    assert [(row.gain, row.verdict) for row in rest.outcomes.search.sizes] == [(None, None)]
    assert (rest.outcomes.search.layers, rest.outcomes.search.measured) == (2, 5)
    nothing = decided.without(dict.fromkeys(draft.forms, REFUSAL), Model(model, None))
    assert nothing.outcomes.search is not None
    assert not nothing.outcomes.search.accepted
