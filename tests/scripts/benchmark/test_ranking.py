"""Ranks of predicted and of measured forms."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared import ROOT
from tests.small_models import conv
from tests.tuning.workloads.tool import workload_of
from widthfold_onnx.tuning.measurement import AS_IS, Measurement

SCRIPTS = ROOT / "scripts"


@pytest.fixture(scope="module")
def ranking() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        return importlib.import_module("benchmark.ranking")


@given(values=st.lists(st.floats(0, 1e9), min_size=3, max_size=20, unique=True))
def test_ranks_compare_orders_only(ranking: ModuleType, values: list[float]) -> None:
    assert ranking.rank_correlation(values, [value * 2 for value in values]) in (1.0, None)
    assert ranking.rank_correlation(values, [-value for value in values]) in (-1.0, None)
    assert ranking.rank_correlation(values, [1.0] * len(values)) is None
    assert ranking.rank_correlation(values[:2], values[:2]) is None


def test_ranks_of_ties_are_their_mean(ranking: ModuleType) -> None:
    assert ranking.rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 15.0]) == 0.5
    assert ranking.rank_correlation([1.0, 1.0, 2.0], [1.0, 2.0, 3.0]) == 0.866025


def test_predictions_are_compared_with_what_was_measured(ranking: ModuleType) -> None:
    layer = workload_of(conv([1, 1, 64, 64], (1, 1, 1, 31), pads=[0, 15, 0, 15]))
    first, _, third = layer.forms[:3]
    date = "2026-01-01T00:00:00+00:00"

    def measured(ratio: float) -> Measurement:
        return Measurement("ok", ratio, ratio, ratio, 2 * layer.predicted_seconds, 9, "", date)

    store = {AS_IS: measured(1.0), first.spec.text: measured(2.0), third.spec.text: measured(3.0)}
    (measurement,) = ranking.compare([layer], lambda subject, form: store.get(form))
    assert measurement.subject == layer.subject
    assert measurement.scale == 2.0
    assert measurement.measured == [2.0, 3.0]
    assert measurement.predicted == [
        layer.predicted_seconds / form.predicted_seconds for form in (first, third)
    ]
    assert list(ranking.compare([layer], lambda subject, form: None)) == []
