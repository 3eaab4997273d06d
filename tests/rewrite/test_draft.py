"""A draft holds forms as they are; a plan of it makes the same model."""

from __future__ import annotations

import msgspec
import onnx
import pytest

import widthfold_onnx as wf
from tests.small_models import TWO_CONVS, build
from widthfold_onnx.decide.decisions import read_sites
from widthfold_onnx.errors import InternalError, UsageError
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import Model
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.plan import Plan, plan_of
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rewrite.rewriting import rewrite
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.selection import preferred_form

OPTIONS = FoldOptions(factor=4, max_flops_growth=30.0)


def drafted(model: onnx.ModelProto) -> tuple[Reading, Draft]:
    draft = Draft.unchanged(OPTIONS)
    reading = Reading.of(Model(model, None), draft)
    forms = {}
    for site, layer in read_sites(reading):
        assert isinstance(layer, Layer)
        form = preferred_form(layer, OPTIONS)
        assert isinstance(form, Form)
        forms[site.node_name] = form
    return reading, draft.with_forms(forms)


def test_a_plan_of_a_draft_makes_the_model_that_its_forms_make() -> None:
    model = build(TWO_CONVS)
    reading, draft = drafted(model)
    plan = msgspec.json.decode(plan_of(draft).text(), type=Plan)
    assert plan == plan_of(draft)
    assert [layer.node for layer in plan.layers] == ["Conv -> y", "first"]
    assert plan.limits.max_flops_growth == 30.0
    new_model = rewrite(reading, draft.forms).carry_out()
    assert new_model == wf.apply(model, plan)
    assert new_model != model


def test_forms_serve_a_model_that_is_read_anew() -> None:
    model = build(TWO_CONVS)
    reading, draft = drafted(model)
    first = rewrite(reading, draft.forms).carry_out()
    again = rewrite(Reading.of(Model(model, None), draft), draft.forms).carry_out()
    assert again == first


def test_a_draft_without_its_last_form_changes_nothing() -> None:
    _, draft = drafted(build(TWO_CONVS))
    first, last = NodeName("", "first"), NodeName("", "Conv -> y")
    assert draft.without([first]).forms.keys() == {last}
    assert draft.is_changing
    assert not draft.without([first, last]).is_changing


def test_a_form_of_no_layer_is_a_fault() -> None:
    model = build(TWO_CONVS)
    _, draft = drafted(model)
    model.graph.node[0].name = "stem"
    reading = Reading.of(Model(model, None), draft)
    with pytest.raises(InternalError, match="layer first has a form and cannot be read"):
        rewrite(reading, draft.forms)


@pytest.mark.parametrize(("freeze", "frozen"), [(True, ("w1", "w2")), (False, ())])
def test_weights_are_frozen_if_the_options_ask_for_it(
    freeze: bool, frozen: tuple[str, ...]
) -> None:
    model = build(TWO_CONVS)
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in model.graph.initializer
    )
    options = FoldOptions(factor=4, freeze_weights=freeze)
    assert Draft.first(Model(model, None), options).frozen == frozen
    assert not Draft.unchanged(options).is_changing


def test_sizes_that_are_to_be_fixed_must_be_given() -> None:
    with pytest.raises(UsageError, match="--fixed-shapes declares the sizes of --input-shape"):
        Draft.first(Model(build(TWO_CONVS), None), FoldOptions(factor=4, fixed_shapes=True))
