"""The lines of the report."""

from __future__ import annotations

import dataclasses

from tests.decide.net import NET, OPTIONS
from tests.small_models import build
from widthfold_onnx.decide.fixed import decide_fixed
from widthfold_onnx.decide.match import match, read_for
from widthfold_onnx.decide.outcomes import applied
from widthfold_onnx.model.loader import Model


def test_a_layer_that_stays_has_no_form() -> None:
    options = dataclasses.replace(OPTIONS, skip=("b",))
    site, _ = decide_fixed(Model(build(NET), None), options).outcomes.sites
    assert (site.node, site.graph, site.status) == ("b", "", "kept")
    assert (site.axis, site.factor, site.form, site.gain) == (None, None, None, None)


def test_what_a_plan_does_not_name_is_kept_and_what_does_not_fit_is_refused() -> None:
    model = build(NET)
    plan = decide_fixed(Model(model, None), dataclasses.replace(OPTIONS, skip=("b",))).plan
    (last,) = [node for node in model.graph.node if node.name == "a"]
    last.name = "renamed"
    reading = read_for(Model(model, None), plan)
    draft, misfits = match(reading, plan)
    sites = applied(reading, draft, misfits, plan).outcomes.sites
    assert [(site.node, site.status, site.code, site.reason) for site in sites] == [
        ("b", "kept", "not-planned", "the plan does not name it"),
        ("renamed", "kept", "not-planned", "the plan does not name it"),
        ("a", "refused", "differs-from-plan", "the model has no such layer"),
    ]
