"""What is guarded is measured at one size, and kept apart from what is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.rewrite.guarded import guards
from tests.rewrite.products import Product
from tests.tuning.races import kept, quiet
from tests.tuning.races import workload as raced
from tests.tuning.tool import conv, integers, layers, run, workload
from widthfold_onnx.options import FoldOptions, Provider, SearchOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results.tuning import AS_IS, timed
from widthfold_onnx.tuning.measure import children
from widthfold_onnx.tuning.measure.bench import Bench
from widthfold_onnx.tuning.measure.children import Budget
from widthfold_onnx.tuning.measure.successive_halving import Began, Outcome, Setup
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.workload.workloads import reformed

GUARD = FoldOptions(guard_shapes=True)


def test_the_extents_of_a_unit_are_known_so_it_has_no_guard() -> None:
    layer = conv([1, 2, 6, None], (3, 2, 3, 3), pads=[1, 1, 1, 1])
    found = workload(layer, GUARD, {"x": (1, 2, 6, 16)})
    x = integers(found.model)
    expected = run(found.model, x)
    between = replace(found, inside=True)
    for form in found.forms:
        model = reformed(found, form.spec, GUARD)
        assert model is not None
        np.testing.assert_array_equal(run(model, x), expected)
        assert not guards(onnx.ModelProto.FromString(model))
        if form.reads is not None and form.returns is not None:
            packed = reformed(between, form.spec, GUARD)
            assert packed == reformed(between, form.spec, FoldOptions())
    assert found.forms


@pytest.mark.parametrize(("rows", "factors"), [(1, set()), (6, {2}), (24, {2, 4})])
def test_what_a_guard_stands_for_is_a_form_where_it_would_be_measured(
    rows: int, factors: set[int]
) -> None:
    """With open rows every factor is legal, but only these run at the extents of the race."""
    fold = replace(GUARD, mix_samples=True)
    product = Product(shape=(rows, 3), weight=(3, 5), dims=("n", 3))
    found = layers(product.model(), fold, {"x": (rows, 3)})
    workloads = list(found.workloads.values())
    assert {form.spec.factor for workload in workloads for form in workload.forms} == factors
    assert all(
        reformed(workload, form.spec, fold) for workload in workloads for form in workload.forms
    )
    if not factors:
        (why,) = found.subjects.values()
        assert isinstance(why, Refusal)
        assert why.code == "unknown-extent"
        assert why.reason == "at 1 x 3, where it would be measured, it has no form"


@pytest.mark.parametrize(
    ("fold", "mark"),
    [
        (FoldOptions(), ""),
        (GUARD, " guarded: extents"),
    ],
)
def test_the_store_keeps_them_apart(
    fold: FoldOptions, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def isolated(function, workloads, setup, seconds, *, on_progress, **limits) -> None:
        for one in workloads:
            on_progress(Began(one.subject, AS_IS))
            on_progress(Outcome(one.subject, AS_IS, timed(1.0, 1.0, 1.0, 1.0, 4)))
            for form in one.forms:
                on_progress(Outcome(one.subject, form.spec, timed(2.0, 2.0, 2.0, 1.0, 4)))

    monkeypatch.setattr(children, "isolated", isolated)
    with Store(tmp_path / "store.sqlite") as store:
        options = SearchOptions(provider=Provider.CPU)
        bench = Bench(Setup(options, fold), store, "machine")
        bench.measure([raced("one", "a")], Budget(60.0), quiet)
        assert kept(store).keys() == {("one", AS_IS), ("one", f"a{mark}")}
        assert bench.known("one", "a") is not None
        other = FoldOptions() if mark else GUARD
        plain = Bench(Setup(options, other), store, "machine")
        assert plain.known("one", "a") is None
        assert plain.known("one", AS_IS) is not None
