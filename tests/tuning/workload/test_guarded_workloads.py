"""Layers of open extents are measured at one size, without a guard."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.operators.products import Product
from tests.rewrite.guards.guarded import guards
from tests.tuning.workload.tool import conv, integers, layers, run, workload
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.tuning.workloads import reformed


def test_the_extents_of_a_unit_are_known_so_it_has_no_guard() -> None:
    layer = conv([1, 2, 6, None], (3, 2, 3, 3), pads=[1, 1, 1, 1])
    unit = workload(layer, FoldOptions(), {"x": (1, 2, 6, 16)})
    x = integers(unit.model)
    expected = run(unit.model, x)
    between = replace(unit, is_inside=True)
    for form in unit.forms:
        model = reformed(unit, form.spec, FoldOptions())
        assert model is not None
        np.testing.assert_array_equal(run(model, x), expected)
        assert not guards(onnx.ModelProto.FromString(model))
        if form.input_layout is not None and form.output_layout is not None:
            assert reformed(between, form.spec, FoldOptions())
    assert unit.forms


@pytest.mark.parametrize(("rows", "factors"), [(1, set()), (6, {2}), (24, {2, 4})])
def test_what_a_guard_stands_for_is_a_form_where_it_would_be_measured(
    rows: int, factors: set[int]
) -> None:
    """With open rows every factor is legal, but only these run at the extents of the race."""
    fold = FoldOptions(mix_samples=True)
    product = Product(shape=(rows, 3), weight=(3, 5), dims=("n", 3))
    units = layers(product.model(), fold, {"x": (rows, 3)})
    workloads = list(units.workloads.values())
    assert {form.spec.factor for workload in workloads for form in workload.forms} == factors
    assert all(
        reformed(workload, form.spec, fold) for workload in workloads for form in workload.forms
    )
    if not factors:
        (why,) = units.subjects.values()
        assert isinstance(why, Refusal)
        assert why.code == "unknown-extent"
        assert why.reason == "at 1 x 3, where it would be measured, it has no form"


@pytest.mark.parametrize(("width", "axes"), [(16, {"width"}), ("w", {"width", "height"})])
def test_folds_of_fixed_extents_go_before_what_needs_a_guard(width: int | str, axes: set) -> None:
    layer = conv([1, 2, "h", width], (3, 2, 3, 3), pads=[1, 1, 1, 1])
    unit = workload(layer, FoldOptions(), {"x": (1, 2, 8, 16)})
    assert {form.spec.axis for form in unit.forms} - {"rank", "channel"} <= axes
