"""Decisions of the search, by measurements that were made up."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cli.tool import build, save
from tests.folding import optimize
from tests.tuning.search.three import ALL, ONE_AXIS, THREE, found, options, status
from tests.tuning.search.world import World, doubled, enter, folded
from tests.tuning.workload.tool import search_text
from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import Effort, FoldOptions, Provider, SearchOptions
from widthfold_onnx.runtime.sessions.session import Level
from widthfold_onnx.tuning.measure.bench import SMALLEST_GAIN
from widthfold_onnx.tuning.measure.effort import SPENDING
from widthfold_onnx.tuning.search import context as context_module
from widthfold_onnx.tuning.search.outcomes import NEGLIGIBLE
from widthfold_onnx.tuning.search.search import CLOSE
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.tune import tune


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(build(THREE), tmp_path / "model.onnx")


def test_what_pays_is_folded_and_the_report_says_how_much(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = enter(monkeypatch, World(doubled, ALL))
    report = found(model, fold={"pad_channels": 0})
    assert folded(model.with_name("out.onnx")) == ALL.keys()
    assert {(s.status, s.axis, s.factor) for s in report.sites} == {("folded", "width", 2)}
    assert all((s.gain.ratio, s.gain.low, s.gain.pairs) == (2.0, 1.8, 40) for s in report.sites)
    search = report.search
    assert search is not None
    assert (search.accepted, search.interrupted, search.layers) == (True, False, 3)
    assert search.whole.ratio == pytest.approx(10 / 7)
    assert [size.shapes for size in search.sizes] == [{"x": [1, 1, 4, 32]}]
    assert search.measured > search.forms > 20
    assert len(world.raced) == 6  # alone, and between packed tensors


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


@pytest.mark.parametrize(("low", "count"), [(SMALLEST_GAIN - 1e-3, 0), (SMALLEST_GAIN + 1e-6, 3)])
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


def test_where_nothing_ran_the_report_says_so(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, World(lambda layer, form: "no kernel", ALL))
    report = found(model)
    assert set(status(report).values()) == {"no-gain"}
    assert all(site.reason.endswith(" forms ran: no kernel") for site in report.sites)
    assert all(site.gain is None for site in report.sites)
    assert model.with_name("out.onnx").read_bytes() == model.read_bytes()


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


def test_what_the_original_gains_by_its_level_alone_is_said(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = enter(monkeypatch, World(doubled, dict.fromkeys(ALL, -1.0)))
    world.advice = "it is faster otherwise"
    report = found(model)
    assert (report.search.accepted, report.search.note) == (False, world.advice)
    assert search_text(report.search).endswith(
        "folded, the whole model ran at 0.91x [0.90, 0.91] at x 1x1x4x32; its low end 0.905 is not "
        "above 1.020, up to which noise counts (A/A control 1.005); it is faster otherwise"
    )


def test_a_gain_within_the_noise_is_told_with_the_rule_that_it_fails(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, World(doubled, ALL, noise=0.25))
    message = search_text(found(model).search)
    assert (
        "ran at 1.43x [1.07, 1.79] at x 1x1x4x32; its low end 1.071 is not above 1.500" in message
    )
    assert "(A/A control 1.250)" in message


def test_a_model_that_does_not_run_is_not_shipped(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, World(doubled, dict.fromkeys(ALL, math.nan)))
    report = found(model)
    assert model.with_name("out.onnx").read_bytes() == model.read_bytes()
    assert not report.search.accepted
    assert search_text(report.search).endswith(
        "folded, the whole model was not timed: the child process died of SIGSEGV"
    )


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


@pytest.mark.parametrize(
    ("saved", "noise"), [(0.0, 0.005), (0.05, 0.005), (0.4, 0.1), (-1.0, 0.005)]
)
def test_without_a_gain_beyond_the_noise_the_output_is_the_input(
    model: Path, monkeypatch: pytest.MonkeyPatch, saved: float, noise: float
) -> None:
    enter(monkeypatch, World(doubled, dict.fromkeys(ALL, saved), noise))
    report = found(model)
    assert model.with_name("out.onnx").read_bytes() == model.read_bytes()
    assert (report.search.accepted, report.written, report.verification) == (
        False,
        "out.onnx",
        None,
    )
    assert set(status(report).values()) == {"no-gain"}
    assert report.search.whole is not None


def test_an_interrupt_decides_with_what_is_known(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(layer, form):
        if len(world.raced) > 2:  # the last of three layers
            raise KeyboardInterrupt
        return doubled(layer, form)

    world = enter(monkeypatch, World(alone, ALL))
    report = found(model)
    assert len(world.compared) == 1  # the plan against the original, and no other trial
    assert report.search.interrupted
    assert report.search.accepted
    assert sorted(status(report).values()) == ["folded", "folded", "no-gain"]
    assert report.search.pending >= 1  # the last, and what was to run between packed tensors
    assert f", ended early, {report.search.pending} layer" in search_text(report.search)


def test_what_was_not_measured_in_time_is_not_called_known(model: Path) -> None:
    report = found(model, time_budget=1e-6)
    assert report.search.pending == 3
    assert "3 layers left to measure" in search_text(report.search)
    ran = [site for site in report.sites if site.gain is not None]
    assert len(ran) <= 1, "the first layer alone races when no time is left"


def two_then_four(form, times: float = 1.0) -> tuple[float, float] | str:
    """Folds of the width: by 2 is the best, by 4 the next, all else is slower."""
    if (form["axis"], form["lift"], form["tile_major"]) != ("width", 0, False):
        return "not in this test"
    ratio = times * {2: 2.0, 4: 1.9}.get(form["factor"], 0.5)
    return ratio, ratio


def test_layers_agree_where_the_whole_model_was_never_timed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone a fold by 2 is the best, between packed tensors the one by 4: two of its ends go."""

    def alone(layer, form):
        inside = 5 if layer.get("inside") and form["factor"] == 4 else 1
        return two_then_four(form, inside)

    enter(monkeypatch, World(alone, ALL))
    tune([model], FoldOptions(**ONE_AXIS), SearchOptions(**options(model)))
    report = found(model, measure=False)
    assert {(site.status, site.factor) for site in report.sites} == {("folded", 4)}
    assert report.search.whole is None


def test_only_the_last_trial_is_against_the_original(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No form pays alone, by 4 it does between packed tensors: that is no quick trial's to say."""

    def alone(layer, form):
        inside = 5 if layer.get("inside") and form["factor"] == 4 else 0.5
        return two_then_four(form, inside)

    world = enter(monkeypatch, World(alone, ALL))
    assert found(model).summary.folded > 0
    against = [b for (base, _), b in zip(world.compared, world.budgets, strict=True) if not base]
    assert against == [SPENDING[Effort.THOROUGH].final]


FLAT = THREE.replace("4,32]", "32]").replace(",1,3]", ",3]").replace("[0,1,0,1]", "[1,1]")


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
    assert (report.search.whole is None) == (not count)  # the last trial is left out


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
        found = two_then_four(form)
        return "not yet" if layer.get("inside") and not isinstance(found, str) else found

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


def test_layers_race_where_the_original_is_fast_and_the_best_level_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Level EXTENDED is as fast as ALL, so both race; the first promises as much and is kept."""
    world = enter(monkeypatch, World(doubled, ALL, levels=CLOSE))
    report = found(model)
    assert {Level.ALL, Level.EXTENDED} == set(world.at)
    assert len(world.raced) == 2 * 6
    assert (report.search.original_setting, report.search.folded_setting) == ("all", "all")
    assert search_text(report.search).endswith("; deploy it at level all")
    only = enter(monkeypatch, World(doubled, ALL, levels=0.9 / CLOSE))
    model.with_name("store.sqlite").unlink()
    found(model)
    assert set(only.at) == {Level.ALL}


def test_the_level_counts_that_promises_the_fastest_model(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original runs in 10 s at level ALL and in 5 s at EXTENDED, folds save as much at both."""
    world = enter(monkeypatch, World(doubled, ALL, levels=2.0))
    report = found(model)
    assert (world.at[0], report.summary.folded) == (Level.ALL, 3)
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
    monkeypatch.setattr("tests.tuning.search.world.WHOLE", 1000.0)
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


def test_what_was_tuned_does_not_race_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = enter(monkeypatch, World(lambda layer, form: (1.5, 1.4), ALL))
    tune(
        [model],
        FoldOptions(**ONE_AXIS),
        SearchOptions(**{**options(model), "effort": Effort.QUICK}),
    )
    assert len(world.raced) == 6
    found(model, effort=Effort.QUICK)
    assert len(world.raced) == 6


@pytest.mark.parametrize("changes", [{"threads": 0}, {"threads": 2000}, {"time_budget": math.nan}])
def test_numbers_out_of_their_range_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"threads is \d+; it must lie in|time-budget is nan"):
        SearchOptions(**changes)


def test_no_time_is_spent_for_an_output_that_cannot_be(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = enter(monkeypatch, World(doubled, ALL))
    for out in (model, model.parent / "missing" / "out.onnx", model.parent):
        with pytest.raises(UsageError, match="output"):
            optimize(model, out, FoldOptions(), None, SearchOptions(**options(model)))
    assert (world.raced, world.compared) == ([], [])


def test_a_target_must_fit_the_provider_that_was_found(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = (Provider.CPU, {"x": (1, 1, 4, 32)})
    monkeypatch.setattr(context_module, "isolated", lambda *arguments: here)
    with pytest.raises(UsageError, match="target h100 is of provider cuda, not cpu"):
        found(model, provider=Provider.AUTO, target="h100")
