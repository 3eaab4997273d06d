"""A pixel shuffle takes any extent: right for a form of any extent, wrong for one that is cut."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from tests.rewrite.graphs import Builder, ops, run
from tests.rewrite.regions import LEVELS, proved
from widthfold_onnx import FoldOptions
from widthfold_onnx.model.graph import Document
from widthfold_onnx.plan.candidates import every_form
from widthfold_onnx.plan.decisions import applied, plan
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rewrite.record import FOLD_KEY
from widthfold_onnx.rules.base import LinearSite, Reformulation
from widthfold_onnx.rules.forms import forms

ASSUMED = FoldOptions(ragged=True, input_shapes={"x": (2, 3, 5, 7)})

# Kernel and pads at stride 2; one output row is cut where 2 does not divide what they make.
EVEN, ODD = (4, [1, 1, 1, 1]), (3, [1, 1, 1, 1])


def upsampling(dims: list[int | str], kernel: int, pads: list[int]) -> onnx.ModelProto:
    g = Builder(dims, np.random.default_rng(1))
    weight = g.integers(3, 2, kernel, kernel)
    value = g.op("ConvTranspose", "x", weight, channels=2, strides=[2, 2], pads=pads)
    return g.model([g.op("Relu", value)])


def sub_pixel(
    model: onnx.ModelProto, options: FoldOptions
) -> tuple[onnx.ModelProto, list[Reformulation | Refusal]]:
    """The model with the sub-pixel form if it is legal, and all outcomes of that form."""
    found: list[Reformulation | Refusal] = []

    def choose(site: LinearSite) -> Reformulation | Refusal:
        found.extend(outcome for _, outcome in forms(site, options, (1, 1, 1)))
        return found[0]

    document = Document(onnx.ModelProto.FromString(model.SerializeToString()), None)
    return applied(document, plan(document, options, choose), options), found


@pytest.mark.parametrize("dims", [[2, 3, "h", 7], [2, 3, 5, "w"]])
@pytest.mark.parametrize(("kernel", "pads"), [EVEN, (2, [0] * 4), (3, [1, 1, 0, 0])])
def test_what_is_not_cut_is_right_at_every_extent(dims, kernel, pads) -> None:
    model = upsampling(dims, kernel, pads)
    result, (form,) = sub_pixel(model, ASSUMED)
    assert isinstance(form, Reformulation)
    assert "DepthToSpace" in ops(result)
    assert proved(model, result) == ["exact"]
    for extent in (5, 7, 1, 2, 6, 10, 14):
        shape = [extent if isinstance(dim, str) else dim for dim in dims]
        x = np.random.default_rng(extent).integers(-3, 4, shape).astype(np.float32)
        for level in LEVELS:
            np.testing.assert_array_equal(run(result, x, level)[0], run(model, x, level)[0])


@pytest.mark.parametrize("dims", [[2, 3, "h", 7], [2, 3, 5, "w"], [2, 3, "h", "w"]])
def test_what_is_cut_is_refused_where_its_extent_is_assumed(dims) -> None:
    _, (outcome,) = sub_pixel(upsampling(dims, *ODD), ASSUMED)
    assert isinstance(outcome, Refusal)
    assert outcome.code == "unguarded-extent"


@pytest.mark.parametrize(
    ("layer", "open_axis", "recorded", "verdict"),
    [
        *((EVEN, axis, None, "exact") for axis in (2, 3)),
        *((EVEN, axis, (2, 3, 5, 7)[axis], "different") for axis in (2, 3)),
        *((ODD, axis, None, "different") for axis in (2, 3)),
        *((ODD, axis, (2, 3, 5, 7)[axis], "different") for axis in (2, 3)),
    ],
)
def test_the_proof_asks_for_what_tests_an_extent_unless_any_is_right(
    layer, open_axis, recorded, verdict
) -> None:
    """Planted: an extent that the form was made for is open in both models, the record anyhow."""
    model = upsampling([2, 3, 5, 7], *layer)
    result, _ = sub_pixel(model, FoldOptions(ragged=True))
    for proto in (model, result):
        proto.graph.input[0].type.tensor_type.shape.dim[open_axis].dim_param = "open"
        del proto.graph.value_info[:]
    (entry,) = [e for node in result.graph.node for e in node.metadata_props if e.key == FOLD_KEY]
    record = json.loads(entry.value)
    assert record["axes"][open_axis - 2]["length"] == (2, 3, 5, 7)[open_axis]
    record["axes"][open_axis - 2]["length"] = recorded
    entry.value = json.dumps(record)
    assert verdict in proved(model, result)
    assert verdict == "different" or proved(model, result) == ["exact"]


@pytest.mark.parametrize("dims", [[1, 2, "h", 6], [1, 2, "h", "w"]])
def test_what_states_extents_is_recorded_with_them(dims: list[int | str]) -> None:
    """Groups that lie apart are no pixel shuffle: Reshapes state both extents."""
    g = Builder(dims, np.random.default_rng(1))
    weight, pads = g.integers(2, 2, 2, 1), [1, 0, 1, 0]
    y = g.op("ConvTranspose", "x", weight, channels=4, strides=[2, 1], pads=pads, group=2)
    model = g.model([y])
    options = FoldOptions(input_shapes={"x": (1, 2, 16, 6)})

    def sub_pixels(site: LinearSite) -> list[Reformulation]:
        return [form for form in every_form(site, options) if form.factor == 1]

    def opened() -> Document:
        return Document(onnx.ModelProto.FromString(model.SerializeToString()), None)

    every: list[Reformulation] = []
    plan(opened(), options, lambda site: every.extend(sub_pixels(site)) or Refusal("no", "later"))
    assert every
    for index in range(len(every)):
        document = opened()
        decisions = plan(document, options, lambda site, i=index: sub_pixels(site)[i])
        assert proved(model, applied(document, decisions, options)) == ["exact"], every[index].form
