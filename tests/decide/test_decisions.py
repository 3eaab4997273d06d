"""Decisions of layers: which sites are read, and the plan that they make."""

from __future__ import annotations

import onnx
import pytest

from tests.decide.net import NET, OPTIONS
from tests.folding import read
from tests.small_models import build
from widthfold_onnx.decide.decisions import (
    decisions_of,
    forms_of,
)
from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import FoldOptions, Selection
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.form import Answer, Form
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.selection import preferred_form

LATER = Refusal(Code.NO_GAIN, "later")


def choose(layer: Layer) -> Answer:
    return preferred_form(layer, OPTIONS)


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
    assert Selection(nodes, skip).includes(name) == selected


def test_every_site_is_decided_in_graph_order(model: onnx.ModelProto) -> None:
    options = FoldOptions(factor=4, skip=("b",))
    decisions = decisions_of(read(model, options), options.selection, choose)
    assert [(d.site.name, d.layer is None) for d in decisions] == [("b", True), ("a", False)]
    skipped, folded = (decision.answer for decision in decisions)
    assert isinstance(skipped, Refusal)
    assert skipped.code == Code.NOT_SELECTED
    assert isinstance(folded, Form)


@pytest.mark.parametrize("changes", [{"nodes": ("relu",)}, {"skip": ("c*",)}])
def test_a_pattern_without_a_site_is_an_error(
    model: onnx.ModelProto, changes: dict[str, tuple[str, ...]]
) -> None:
    options = FoldOptions(factor=4, **changes)
    with pytest.raises(UsageError, match=r"no layer is named '(relu|c\*)'; `inspect` lists them"):
        decisions_of(read(model, options), options.selection, choose)


def test_refused_layers_have_no_form(model: onnx.ModelProto) -> None:
    reading = read(model, OPTIONS)
    forms = forms_of(decisions_of(reading, OPTIONS.selection, choose))
    assert forms.keys() == {("", "a"), ("", "b")}
    assert forms_of(decisions_of(reading, OPTIONS.selection, lambda layer: LATER)) == {}
