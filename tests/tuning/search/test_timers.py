"""Timers yield the results of whole models at each size, each model at a setting that suits."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.evidence.timing.machine import FIRST_TIMED, Machine, costs
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime import clock, contest, settings
from widthfold_onnx.runtime.clock import RUN_SPREAD, SESSIONS
from widthfold_onnx.runtime.contest import DECIDING_PROCESSES, DECIDING_RUNS, OPEN_RUNS
from widthfold_onnx.runtime.inputs import input_sets
from widthfold_onnx.runtime.inputs.feeds import Distribution
from widthfold_onnx.runtime.intervals import speed_verdict
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning.search import timers
from widthfold_onnx.tuning.search.timers import (
    time_in_process,
    time_in_turn,
    time_levels,
    time_over_processes,
)

OPTIONS = VerifyOptions(provider=Provider.CPU, time_budget=2.0)
SHAPES = {"x": (1, 256)}


@pytest.fixture
def machine(monkeypatch):
    """Three models; b is the fastest at level all, a at level extended, where c has no time."""
    times = {**costs(6, 4, 3, 9), ("c.onnx", Level.EXTENDED): 5}
    machine_of_test = Machine(times)
    monkeypatch.setattr(settings, "open_session", machine_of_test.open_session)
    monkeypatch.setattr(contest, "isolated", lambda function, *rest: function(*rest))
    for module in (settings, contest, timers):
        monkeypatch.setattr(module, "clock_of", lambda *arguments: lambda: machine_of_test.now)
    for module in (clock, settings, contest):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=machine_of_test.seconds))
    return machine_of_test


@pytest.fixture
def models(tmp_path):
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for path in paths:
        path.write_bytes(b"")
    return paths


@pytest.mark.parametrize(
    ("own", "cost", "runs", "verdict"),
    [
        (400, 390, OPEN_RUNS, "inconclusive"),
        (400, 300, OPEN_RUNS, "faster"),  # two rounds choose nothing, however far apart they are
        (40, 39, OPEN_RUNS, "inconclusive"),
        (40, 30, DECIDING_RUNS, "faster"),
        (40, 50, DECIDING_RUNS, "slower"),
    ],
)
def test_a_final_trial_runs_enough_however_long_a_run_takes(
    machine, models, own, cost, runs, verdict
):
    machine.costs = costs(own, 2 * own, cost, 2 * cost)
    options = VerifyOptions(provider=Provider.CPU, time_budget=0.1)
    ((timed,),) = time_over_processes(*models, options, [SHAPES])
    sessions = DECIDING_PROCESSES * min(SESSIONS)
    assert len(machine.opened[FIRST_TIMED:]) == 2 * sessions
    assert timed.pairs == sessions * runs
    assert speed_verdict(timed.low, timed.high, timed.control) == verdict
    assert (timed.original_setting, timed.setting) == ("all", "all")


@pytest.mark.parametrize(("cost", "is_conclusive"), [(3, True), (4.9, False)])
def test_a_final_trial_ends_when_it_is_sure_which_model_is_faster(
    machine, models, cost, is_conclusive
):
    machine.costs = costs(5, 6, cost, 6)
    ((timed,),) = time_over_processes(*models, OPTIONS, [SHAPES])
    two_processes = 2 * 2 * max(SESSIONS)
    assert (len(machine.opened[FIRST_TIMED:]) == two_processes) == is_conclusive
    assert timed.low > 1


@pytest.mark.parametrize("cost", [0.02, 0.5, 5])
def test_a_final_trial_of_short_runs_holds_its_budget(machine, models, cost):
    noisy = np.random.default_rng(0).uniform(0.8, 1.2, 400) * cost
    machine.costs = [cost] * FIRST_TIMED + list(noisy)
    ((timed,),) = time_over_processes(*models, OPTIONS, [SHAPES])
    assert timed.pairs >= DECIDING_PROCESSES * min(SESSIONS) * OPEN_RUNS
    assert machine.seconds() < OPTIONS.time_budget + 0.1


def test_a_trial_in_one_process_times_each_model_once_at_its_own_best(machine, models):
    """Model a takes 4 ms at best, b 3 ms: each at another level."""
    ((timed,),) = time_in_process(*models, OPTIONS, [SHAPES])
    assert len(machine.opened) == FIRST_TIMED, "the sessions that chose are timed"
    best, other = ([number for number, _ in machine.runs].count(i) for i in (1, 0))
    assert timed.pairs - (best - other) == other - math.ceil(0.1 / 22e-3), "but for the warm-up"
    assert (timed.original_setting, timed.setting) == ("extended", "all")
    assert (timed.ratio, timed.seconds) == pytest.approx((4 / 3, 3e-3))
    assert 4 / 3 / 1.03 < timed.low < timed.ratio < timed.high < 4 / 3 * 1.03


def test_a_trial_in_one_process_chooses_settings_as_long_whatever_its_budget(machine, models):
    """Runs of 1 ms at level all and 2 ms at level extended, as many of either."""
    machine.costs = costs(1, 2, 1, 2)
    list(time_in_process(*models, replace(OPTIONS, time_budget=0.1), [SHAPES]))
    rounds = [number for number, _ in machine.runs].count(1)  # at a setting that is not the best
    assert rounds * 6e-3 == pytest.approx(settings.CHOICE_SECONDS, rel=0.05)


def test_runs_that_chose_among_alike_settings_do_not_count(machine, models):
    machine.costs = costs(100, 101, 100, 101)
    ((timed,),) = time_in_process(*models, OPTIONS, [SHAPES])
    assert timed.pairs == settings.MIN_ROUNDS
    assert [number for number, _ in machine.runs].count(0) == 1 + 2 * settings.MIN_ROUNDS


def test_each_size_chooses_its_settings(machine, models):
    """First a is the faster one at level all, then at level extended."""
    rounds = 2 + settings.MIN_ROUNDS
    machine.costs = [(400,) * rounds + (900,) * 99, 600, (300,) * rounds + (900,) * 99, 600]
    first, second = time_in_process(*models, OPTIONS, [SHAPES, {"x": (2, 256)}])
    assert (first[0].original_setting, second[0].original_setting) == ("all", "extended")
    assert (first[0].ratio, second[0].ratio) == pytest.approx((4 / 3, 1.0))


@pytest.mark.parametrize(("cost", "count"), [(3, 2), (5, 1)], ids=["faster", "slower"])
def test_larger_sizes_follow_in_the_same_sessions_until_one_is_surely_slower(
    machine, models, cost, count
):
    machine.costs = costs(4, 9, cost, 9)
    larger = {"x": (2, 256)}
    assert len(list(time_in_process(*models, OPTIONS, [SHAPES, larger]))) == count
    parts = time_in_turn(models[1], models[:1], Distribution.NORMAL, OPTIONS, [SHAPES, larger])
    assert len(list(parts)) == count
    assert len(machine.opened) == FIRST_TIMED + 3, "the second trial opens three sessions"


@pytest.mark.parametrize("seed", range(5))
def test_a_trial_in_one_process_tells_no_difference_by_few_long_runs(machine, models, seed):
    """Two runs of each model take longer than the patience of a choice."""
    spread = np.random.default_rng(seed).normal(1, RUN_SPREAD, (6, 100))
    machine.costs = [tuple(1500 * row) for row in spread]
    ((timed,),) = time_in_process(*models, replace(OPTIONS, time_budget=1.0), [SHAPES])
    assert timed.pairs == 5
    assert timed.low < 1 < timed.high


def test_inputs_are_drawn_once_for_each_size_and_kind(machine, models, monkeypatch):
    """The choice of the setting draws the inputs of the first size."""
    draws = []

    def spy(session, shapes, options, kind):
        draws.append((shapes, kind))
        return input_sets.timed_inputs(session, shapes, options, kind)

    monkeypatch.setattr(timers, "timed_inputs", spy)
    machine.costs = costs(4, 9, 3, 9)
    larger, kind = {"x": (2, 256)}, Distribution.CONSTANT
    list(time_in_turn(models[1], models[:1], kind, OPTIONS, [SHAPES, larger]))
    assert draws == [(larger, kind)]


def test_parts_run_at_the_setting_that_suits_the_base(machine):
    paths = [Path(f"{name}.onnx") for name in "abc"]
    ((b, c),) = time_in_turn(paths[0], paths[1:], Distribution.NORMAL, OPTIONS, [SHAPES])
    assert b.ratio == pytest.approx(9 / 4)
    assert 9 / 4 / 1.03 < b.low < b.ratio < b.high < 9 / 4 * 1.03
    assert (c.ratio, c.seconds) == pytest.approx((5 / 4, 4e-3))
    assert b.pairs == c.pairs < 64, "runs that never vary tell all in 0.6 s"
    assert [level for _, level, _ in machine.opened[2:]] == [Level.EXTENDED] * 2


@pytest.mark.parametrize("level", [Level.ALL, Level.EXTENDED])
def test_trials_at_one_level_open_no_other(machine, models, level):
    """Each model runs once for each pair: there is no setting to choose."""
    ((timed,),) = time_in_process(*models, OPTIONS, [SHAPES], level=level)
    assert timed.ratio == pytest.approx(6 / 3 if level is Level.ALL else 4 / 9)
    warming_up = math.ceil(0.1 * timed.seconds**-1 / (1 + timed.ratio))
    assert [number for number, _ in machine.runs].count(0) == timed.pairs + warming_up
    kind = Distribution.NORMAL
    list(time_in_turn(models[1], models[:1], kind, OPTIONS, [SHAPES], level=level))
    assert [opened for _, opened, _ in machine.opened] == [level] * 4
    runs_of_trials = len(machine.runs)
    ((timed,),) = time_over_processes(*models, OPTIONS, [SHAPES], level=level)
    assert timed.ratio == pytest.approx(6 / 3 if level is Level.ALL else 4 / 9)
    assert {opened for _, opened, _ in machine.opened} == {level}
    assert len(machine.runs) > runs_of_trials


@pytest.mark.parametrize(("cost", "least", "most"), [(10.0, 40, 50), (5.0, 64, 999)])
def test_parts_are_timed_until_more_runs_would_tell_hardly_more(machine, cost, least, most):
    random = np.random.default_rng(0)
    machine.costs = [tuple(random.uniform(0.9, 1.1, 1100) * ms) for ms in (5.0, 9.0, cost)]
    options = replace(OPTIONS, time_budget=100.0)
    kind = Distribution.NORMAL
    ((part,),) = time_in_turn(Path("a.onnx"), [Path("b.onnx")], kind, options, [SHAPES])
    assert least <= part.pairs <= most


def test_the_levels_of_a_model_are_compared_with_a_control(machine):
    ((timed,),) = time_levels(Path("a.onnx"), OPTIONS, [SHAPES])
    assert (timed.original_setting, timed.setting) == ("all", "extended")
    assert (timed.ratio, timed.control) == pytest.approx((1.5, 0.0))
    assert timed.note.startswith("the original alone is 1.5x as fast at level extended")
