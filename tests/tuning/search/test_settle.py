"""The whole model is tried with the forms of all layers together, then without each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.small_models import build, save
from tests.tuning.search.nets import ALL, FLAT, ONE_AXIS, found, options, status, two_then_four
from tests.tuning.world import World, doubled, enter, folded
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Effort, FoldOptions, SearchOptions
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.tune import tune


def test_what_hurts_in_its_place_is_dropped_and_the_rest_is_kept(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = enter(monkeypatch, World(doubled, {**ALL, "second": -1.0}))
    report = found(model)
    assert folded(model.with_name("out.onnx")) == {"first", "third"}
    assert status(report) == {"first": "folded", "second": "no-gain", "third": "folded"}
    assert "but not in the whole model" in report.sites[1].reason
    assert report.search.whole.ratio == pytest.approx(10 / 8)
    assert world.compared[-1] == (set(), {"first", "third"})


@pytest.mark.parametrize(("together", "count"), [(0.02, 3), (-0.02, 1)])
def test_what_may_help_or_hurt_stays_if_it_helps_together(
    model: Path, monkeypatch: pytest.MonkeyPatch, together: float, count: int
) -> None:
    """One by one the first and the second move a model of 9 s less than the noise of 0.5 %."""
    saved = {"first": together, "second": together, "third": 1.0}
    world = enter(monkeypatch, World(doubled, saved))
    assert found(model).summary.folded == count
    *each, sure, final = world.compared
    assert each == [(ALL.keys() - {name}, ALL.keys()) for name in ALL]
    assert sure == ({"third"}, ALL.keys())
    assert (final[0], len(final[1])) == (set(), count)


def test_of_a_form_without_which_nothing_runs_nothing_is_known(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crashing(World):
        def _turns(self, *args):
            raise UnverifiedError("out of memory")

    enter(monkeypatch, Crashing(doubled, ALL))
    found(model)
    assert folded(model.with_name("out.onnx")) == set(ALL)


def test_layers_agree_where_the_whole_model_was_never_timed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone a fold by 2 is the best, between packed tensors a fold by 4: two of its ends go."""

    def alone(layer, form):
        inside = 5 if layer.get("inside") and form["factor"] == 4 else 1
        return two_then_four(form, inside)

    enter(monkeypatch, World(alone, ALL))
    tune([model], FoldOptions(**ONE_AXIS), SearchOptions(**options(model)))
    report = found(model, measure=False)
    assert {(site.status, site.factor) for site in report.sites} == {("folded", 4)}
    assert report.search.whole is None


@pytest.mark.parametrize("effort", list(Effort))
@pytest.mark.parametrize(("saved", "count"), [(1.0, 3), (-1.0, 0)])
def test_layers_of_one_axis_are_lifted_together_where_no_one_gains_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: float, count: int, effort: Effort
) -> None:
    model = save(build(FLAT), tmp_path / "model.onnx")
    world = enter(monkeypatch, World(lambda layer, form: (0.9, 0.8), dict.fromkeys(ALL, saved)))
    report = found(model, {"pad_channels": 0}, effort=effort)
    assert [site.axis for site in report.sites if site.status == "folded"] == ["rank"] * count
    assert world.compared[0] == (set(), ALL.keys())
    assert (report.search.whole is None) == (not count)  # the final trial is left out


@pytest.mark.parametrize("effort", list(Effort))
def test_a_chain_is_not_torn_by_what_its_layers_gain_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effort: Effort
) -> None:
    """In its place the second layer saves nothing that could be told from noise, and it stays."""

    def alone(layer, form):
        return (1.3, 1.2) if layer["weight"] == [2, 1, 3] and form["axis"] == "rank" else (1.0, 0.9)

    model = save(build(FLAT), tmp_path / "model.onnx")
    world = enter(monkeypatch, World(alone, {**ALL, "second": -0.1}))
    found(model, {"pad_channels": 0}, effort=effort)
    assert folded(model.with_name("out.onnx")) == ALL.keys()
    assert all(len(side) in (0, 1, 3) for sides in world.compared for side in sides)


def test_of_groups_that_all_hurt_the_least_harmful_one_is_tried_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(layer, form):
        if layer["weight"] == [1, 2, 3]:
            return (2.0, 1.9) if form["axis"] == "width" else (1.0, 0.9)
        return (1.3, 1.2) if form["axis"] == "rank" else (1.0, 0.9)

    model = save(build(FLAT), tmp_path / "model.onnx")
    saved = {"first": -0.1, "second": -0.1, "third": -1.0}
    world = enter(monkeypatch, World(alone, saved))
    found(model, {"pad_channels": 0})
    assert world.compared[-1] == (set(), {"first", "second"})


def test_lifted_layers_are_timed_at_the_level_that_suits_each_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one level for both sides they may win because that level does not suit the other."""
    model = save(build(FLAT), tmp_path / "model.onnx")
    world = enter(monkeypatch, World(lambda layer, form: (0.9, 0.8), dict.fromkeys(ALL, -1.0)))
    monkeypatch.setattr(world, "_turns", lambda *arguments: pytest.fail("at one level only"))
    assert found(model, {"pad_channels": 0}).summary.folded == 0
    assert world.compared == [(set(), ALL.keys())]


def test_a_plan_that_was_timed_is_not_left_for_one_that_was_not(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later `tune` between packed tensors makes another plan the best on paper."""

    def alone(layer, form):
        ratios = two_then_four(form)
        return "not yet" if layer.get("inside") and not isinstance(ratios, str) else ratios

    enter(monkeypatch, World(alone, ALL))
    timed = found(model)
    assert {(site.status, site.factor) for site in timed.sites} == {("folded", 2)}
    with Store(model.with_name("store.sqlite")) as store:
        for key, measured in store.items():
            if measured.reason == "not yet":
                four = json.loads(key.candidate)["factor"] == 4
                fields = {"status": "ok", "reason": "", "ratio": 9.0, "low": 9.0, "high": 9.0}
                store.put(key, replace(measured, **fields) if four else measured)
    again = found(model, measure=False)
    assert {(site.status, site.factor) for site in again.sites} == {("folded", 2)}
    assert again.search.whole == timed.search.whole
