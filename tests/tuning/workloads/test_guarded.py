"""Layers of open extents are measured at one size, without a guard."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.operators.products import Product
from tests.rewrite.guards.guarded import guards
from tests.small_models import conv
from tests.tuning.workloads.tool import integers, layers_of, run, workload_of
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.tuning.workloads import model_in_form


def test_the_extents_of_a_workload_are_known_so_it_has_no_guard() -> None:
    layer = conv([1, 2, 6, None], (3, 2, 3, 3), pads=[1, 1, 1, 1])
    workload = workload_of(layer, FoldOptions(), {"x": (1, 2, 6, 16)})
    x = integers(workload.model)
    expected = run(workload.model, x)
    between = replace(workload, is_inside=True)
    for form in workload.forms:
        model = model_in_form(workload, form.form)
        assert model is not None
        np.testing.assert_array_equal(run(model, x), expected)
        assert not guards(onnx.ModelProto.FromString(model))
        if form.input_layout is not None and form.output_layout is not None:
            assert model_in_form(between, form.form)
    assert workload.forms


@pytest.mark.parametrize(("rows", "factors"), [(1, set()), (6, {2}), (24, {2, 4})])
def test_what_a_guard_stands_for_is_a_form_where_it_would_be_measured(
    rows: int, factors: set[int]
) -> None:
    """With open rows every factor is legal, but only these run at the extents of the race."""
    fold = FoldOptions(mix_samples=True)
    product = Product(shape=(rows, 3), weight=(3, 5), dims=("n", 3))
    layers = layers_of(product.model(), fold, {"x": (rows, 3)})
    workloads = list(layers.workloads.values())
    assert {form.spec.factor for workload in workloads for form in workload.forms} == factors
    assert all(
        model_in_form(workload, form.form) for workload in workloads for form in workload.forms
    )
    if not factors:
        (refusal,) = layers.subjects.values()
        assert isinstance(refusal, Refusal)
        assert refusal.code == "unknown-extent"
        assert refusal.reason == "at 1 x 3, where it would be measured, it has no form"


@pytest.mark.parametrize(
    ("width", "axes"), [(16, {"width"}), ("w", {"width", "height", "height+width"})]
)
def test_folds_of_fixed_extents_go_before_what_needs_a_guard(width: int | str, axes: set) -> None:
    layer = conv([1, 2, "h", width], (3, 2, 3, 3), pads=[1, 1, 1, 1])
    workload = workload_of(layer, FoldOptions(), {"x": (1, 2, 8, 16)})
    assert {form.spec.axis for form in workload.forms} - {"rank", "channel"} <= axes
