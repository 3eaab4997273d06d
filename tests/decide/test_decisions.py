"""Decisions of layers: which sites are read, and the plan that they make."""

from __future__ import annotations

import dataclasses

import onnx
import pytest
from msgspec.structs import replace

from tests.small_models import build
from widthfold_onnx.decide.decisions import (
    Drafting,
    decisions_of,
    is_selected,
    layer_plans,
    unchanged_site,
)
from widthfold_onnx.decide.fixed import decide_fixed
from widthfold_onnx.errors import InternalError, UsageError
from widthfold_onnx.model.messages import NodeName
from widthfold_onnx.options import AxisName, FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.reports.described.tuning import deployment, outcome
from widthfold_onnx.results import Gain, SearchReport, SizeGain
from widthfold_onnx.rewrite.plan import EMPTY, PlanTimes
from widthfold_onnx.rewrite.record import FOLD_KEY
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.selection import preferred_form

NET = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 3, 4, 24] x) => (float[1, 2, 4, 24] y) <float[5, 3, 1, 1] v, float[2, 5, 1, 1] w>
{ [b] a = Conv (x, v)  [relu] r = Relu (a)  [a] y = Conv (r, w) }"""
OPTIONS = FoldOptions(factor=4, axis=AxisName.WIDTH)
LATER = Refusal(Code.NO_GAIN, "later")


def choose(layer: Layer) -> Form | Refusal:
    return preferred_form(layer, OPTIONS, 4)


@pytest.fixture
def model() -> onnx.ModelProto:
    return build(NET)


@pytest.mark.parametrize(
    ("name", "nodes", "skip", "selected"),
    [
        ("enc/conv", (), (), True),
        ("enc/conv", ("enc/*",), (), True),
        ("enc/conv", ("dec/*", "enc/*"), (), True),
        ("enc/conv", ("dec/*",), (), False),
        ("enc/conv", ("enc/*",), ("*conv",), False),
        ("Enc/conv", ("enc/*",), (), False),
    ],
)
def test_patterns_select_and_skip(
    name: str, nodes: tuple[str, ...], skip: tuple[str, ...], selected: bool
) -> None:
    assert is_selected(name, FoldOptions(nodes=nodes, skip=skip)) == selected


def test_every_site_is_decided_in_graph_order(model: onnx.ModelProto) -> None:
    options = FoldOptions(factor=4, skip=("b",))
    decisions = decisions_of(Drafting(model, None, options).reading(EMPTY), options, choose)
    assert [(d.site.name, d.layer is None) for d in decisions] == [("b", True), ("a", False)]
    skipped, folded = (decision.outcome for decision in decisions)
    assert isinstance(skipped, Refusal)
    assert skipped.code == Code.NOT_SELECTED
    assert isinstance(folded, Form)


@pytest.mark.parametrize("changes", [{"nodes": ("relu",)}, {"skip": ("c*",)}])
def test_a_pattern_without_a_site_is_an_error(
    model: onnx.ModelProto, changes: dict[str, tuple[str, ...]]
) -> None:
    options = FoldOptions(factor=4, **changes)
    with pytest.raises(UsageError, match=r"no layer is named '(relu|c\*)'; `inspect` lists them"):
        decisions_of(Drafting(model, None, options).reading(EMPTY), options, choose)


def test_a_plan_has_the_layers_with_a_form_sorted_by_name(model: onnx.ModelProto) -> None:
    reading = Drafting(model, None, OPTIONS).reading(EMPTY)
    plan = EMPTY.with_layers(layer_plans(decisions_of(reading, OPTIONS, choose)))
    assert [layer.node for layer in plan.layers] == ["a", "b"]
    assert layer_plans(decisions_of(reading, OPTIONS, lambda layer: LATER)) == []
    drafting = Drafting(model, None, OPTIONS)
    assert drafting.plan(EMPTY, choose) == plan


def test_unproved_layers_are_refused_and_the_others_stay(model: onnx.ModelProto) -> None:
    decided_plan = decide_fixed(model, None, OPTIONS)
    names = {layer.name for layer in decided_plan.plan.layers if layer.node == "b"}
    rest = decided_plan.without_unproved(names, model, None)
    assert [(s.node, s.status, s.code) for s in rest.sites] == [
        ("b", "refused", "guard-not-proved"),
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
    decided_plan = decide_fixed(model, None, dataclasses.replace(OPTIONS, skip=("b",)))
    refusal = Refusal(Code.SATURATES, "left alone, as its fold saturates")
    rest = decided_plan.with_refusals({NodeName("", "b"): refusal})
    skipped, folded = rest.sites
    assert (skipped.status, skipped.code, skipped.reason) == ("kept", "saturates", refusal.reason)
    assert folded == decided_plan.sites[1]
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
    decided_plan = decide_fixed(model, None, OPTIONS)
    timed_plan = replace(decided_plan.plan, measured=PlanTimes(whole=gain, setting="extended"))
    decided_plan = dataclasses.replace(decided_plan, plan=timed_plan, search=whole)
    rest = decided_plan.without_unproved({decided_plan.plan.layers[0].name}, model, None)
    assert rest.plan.measured == PlanTimes()
    assert rest.search is not None
    assert (outcome(rest.search), deployment(rest.search)) == (
        "the whole model was not timed",
        "",
    )
    assert [(row.gain, row.verdict) for row in rest.search.sizes] == [(None, None)]
    assert (rest.search.layers, rest.search.measured) == (2, 5)
    names = {layer.name for layer in decided_plan.plan.layers}
    nothing = decided_plan.without_unproved(names, model, None)
    assert nothing.search is not None
    assert not nothing.search.accepted


def test_a_decided_plan_that_does_not_fit_its_model_is_a_fault(model: onnx.ModelProto) -> None:
    decided_plan = decide_fixed(model, None, OPTIONS)
    other = onnx.ModelProto.FromString(model.SerializeToString())
    other.graph.node[0].name = "renamed"
    decided_plan = decided_plan.without_unproved((), other, None)
    with pytest.raises(InternalError, match="b: the model has no such layer"):
        decided_plan.fit()


def test_a_layer_that_stays_has_no_form() -> None:
    report = unchanged_site(NodeName("", "a"), "Conv", "kept", "no-gain", "too short")
    assert (report.node, report.graph, report.status) == ("a", "", "kept")
    assert (report.axis, report.factor, report.form, report.gain) == (None, None, None, None)
