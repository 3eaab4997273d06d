"""Layers race at a level: which of them, in how many forms, and which form is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tuning.search.nets import ALL, found
from tests.tuning.workloads.tool import search_text
from tests.tuning.world import World, doubled, enter
from widthfold_onnx.options import Effort
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning.bench import MIN_GAIN
from widthfold_onnx.tuning.effort import SPENDING
from widthfold_onnx.tuning.search.race import MAX_LEVEL_RATIO
from widthfold_onnx.tuning.search.report import NEGLIGIBLE


def test_the_best_low_end_wins_and_the_lost_never(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sure = {2: (3.0, 1.2), 4: (2.0, 1.9), 8: "out of memory", 16: (1.9, 1.8)}

    def alone(layer, form):
        return sure.get(form["factor"], (0.5, 0.4)) if form["axis"] == "width" else (0.5, 0.4)

    enter(monkeypatch, World(alone, ALL))
    report = found(model)
    assert {(site.axis, site.factor) for site in report.sites} == {("width", 4)}
    assert {(site.gain.ratio, site.gain.low) for site in report.sites} == {(2.0, 1.9)}


@pytest.mark.parametrize(("low", "count"), [(MIN_GAIN - 1e-3, 0), (MIN_GAIN + 1e-6, 3)])
def test_a_form_must_be_surely_faster(
    model: Path, monkeypatch: pytest.MonkeyPatch, low: float, count: int
) -> None:
    world = enter(monkeypatch, World(lambda layer, form: (1.2, low), ALL))
    report = found(model)
    assert report.summary.folded == count
    assert (report.search.whole is None) == (len(world.compared) == 0) == (count == 0)
    if not count:
        assert {site.code for site in report.sites} == {"no-gain"}
        assert all("1.20x [1.03, 1.37]" in site.reason for site in report.sites)


def test_layers_race_where_the_original_is_fast_and_the_best_level_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Level EXTENDED is as fast as ALL, so both race; the first promises as much and is kept."""
    world = enter(monkeypatch, World(doubled, ALL, levels=MAX_LEVEL_RATIO))
    report = found(model)
    assert {Level.ALL, Level.EXTENDED} == set(world.at)
    assert len(world.raced) == 2 * 6
    assert (report.search.original_setting, report.search.folded_setting) == ("all", "all")
    assert search_text(report.search).endswith("; deploy it at level all")
    assert {level for _, level in world.levels} == {None}
    only = enter(monkeypatch, World(doubled, ALL, levels=0.9 / MAX_LEVEL_RATIO))
    model.with_name("store.sqlite").unlink()
    found(model)
    assert set(only.at) == {Level.ALL}
    assert {level for _, level in only.levels} == {Level.ALL}
    unsure = World(doubled, ALL, noise=0.15, levels=0.9 / MAX_LEVEL_RATIO)
    enter(monkeypatch, unsure)
    model.with_name("store.sqlite").unlink()
    found(model)
    assert set(unsure.at) == {Level.ALL}
    assert {level for _, level in unsure.levels} == {None}


def test_the_level_counts_that_promises_the_fastest_model(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original runs in 10 s at level ALL and in 5 s at EXTENDED, folds save as much at both.

    The best fold is by 2 at ALL, and by 4 at EXTENDED.
    """

    def alone(layer, form):
        factor = 4 if world.at[-1] is Level.EXTENDED else 2
        return (2.0, 1.8) if (form["axis"], form["factor"]) == ("width", factor) else (0.5, 0.4)

    world = enter(monkeypatch, World(alone, ALL, levels=2.0))
    report = found(model)
    assert (world.at[0], {site.factor for site in report.sites}) == (Level.ALL, {4})
    nothing = enter(monkeypatch, World(lambda layer, form: (0.5, 0.4), ALL, levels=2.0))
    nothing.advice = "it is faster otherwise"
    model.with_name("store.sqlite").unlink()
    report = found(model)
    assert (report.search.original_setting, report.search.folded_setting) == ("extended", "")
    assert search_text(report.search).endswith("no choice of forms gains; it is faster otherwise")


def test_what_cannot_move_the_model_does_not_race(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer takes a second of a model of 10 s; of a model of 1,000 s it takes too little."""
    world = enter(monkeypatch, World(doubled, ALL))
    monkeypatch.setattr("tests.tuning.world.WHOLE", 1000.0)
    report = found(model, effort=Effort.DEFAULT)
    assert (world.raced, report.search.pending, report.search.whole) == ([], 0, None)
    assert {site.reason for site in report.sites} == {NEGLIGIBLE}
    report = found(model, effort=Effort.THOROUGH)
    assert len(world.raced) == 6


@pytest.mark.parametrize("effort", [Effort.QUICK, Effort.DEFAULT])
def test_less_effort_times_fewer_forms_and_a_thorough_search_the_rest(
    model: Path, monkeypatch: pytest.MonkeyPatch, effort: Effort
) -> None:
    world = enter(monkeypatch, World(lambda layer, form: (1.5, 1.4), ALL))
    report = found(model, effort=effort)
    whole = len(world.compared) + 1  # the original at its levels
    assert report.search.measured == 6 * (SPENDING[effort].forms + 1) + whole
    assert (len(world.compared) == 1) == (effort is Effort.QUICK)
    assert (report.search.pending, report.summary.folded) == (0, 3)
    assert found(model, effort=effort).search.measured == 0
    assert found(model).search.measured > report.search.forms / 2
    assert found(model).search.measured == 0
