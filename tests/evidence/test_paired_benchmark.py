"""Each model runs at the setting that suits it best, chosen in its share of the budget."""

from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.evidence.machine import Machine, costs
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime import paired_benchmark
from widthfold_onnx.runtime.clock import paired
from widthfold_onnx.runtime.paired_benchmark import (
    Setting,
    ratio_of_levels,
    ratios_to,
    settings_of,
)
from widthfold_onnx.runtime.sessions.session import Level


@pytest.mark.parametrize(
    ("times", "levels", "speedup", "same"),
    [
        ((9, 6, 3, 4), ("extended", "all"), 2.0, 3.0),
        ((6, 9, 5, 3), ("all", "extended"), 2.0, 1.2),
        ((6, 9, 4, 7), ("all", "all"), 1.5, 1.5),
        ((6, 5, 9, 8), ("extended", "extended"), 0.625, 2 / 3),
    ],
)
def test_each_model_runs_at_its_own_best(measured, times, levels, speedup, same):
    timing, machine = measured(costs(*times))
    assert (timing.original.level, timing.rewritten.level) == levels
    assert machine.opened[5][:2] == ("a.onnx", levels[0])  # the copy
    assert timing.speedup == pytest.approx(speedup, rel=1e-6)
    assert timing.same_level == pytest.approx(same, rel=1e-6)
    advice = "the original alone is 1.5x as fast at level extended as at level all"
    assert (timing.note == advice) is (times == (9, 6, 3, 4))


def test_the_first_run_of_a_session_does_not_choose(measured):
    # Two rounds pass the share of the budget; the mean of both would be 225 and 210.
    cold = {("a.onnx", Level.ALL): 250}
    timing, _ = measured(costs(200, 210, 200, 210), first=cold, time_budget=10)
    assert timing.original.level == "all"
    assert timing.same_level == pytest.approx(1.0)


def test_each_setting_comes_first_in_its_turn(measured):
    _, machine = measured(costs(5, 6, 5, 6))
    numbers = [number for number, _ in machine.runs[: 4 * paired_benchmark.CHOICE_ROUNDS[0]]]
    rounds = [numbers[i : i + 4] for i in range(0, len(numbers), 4)]
    assert all(sorted(one) == [1, 2, 3, 4] for one in rounds)
    for place in range(4):
        counts = [[one[place] for one in rounds[1:]].count(number) for number in (1, 2, 3, 4)]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(("cost", "rounds"), [(0.05, 1000), (0.1, 500), (1, 50), (20, 15)])
def test_short_runs_choose_in_more_rounds(measured, monkeypatch, cost, rounds):
    counted = []
    choosing = paired_benchmark._choosing

    def spied(*arguments):
        result = choosing(*arguments)
        counted.append(len(machines[0].runs))
        return result

    machines = []
    opened = Machine.open_session

    def open_session(machine, *arguments, **options):
        machines.append(machine)
        return opened(machine, *arguments, **options)

    monkeypatch.setattr(Machine, "open_session", open_session)
    monkeypatch.setattr(paired_benchmark, "_choosing", spied)
    measured(costs(cost, cost, cost, cost), time_budget=20)
    assert counted == [pytest.approx(4 * rounds, abs=4)]


def test_one_file_against_itself_runs_at_one_setting(measured):
    # As opened: for shapes, both levels of each side, the copy. Noise makes the second choose.
    timing, _ = measured([0, 5, 6, 6, 5, 5], same_file=True)
    assert timing.original.level == timing.rewritten.level == "all"
    other, _ = measured([0, 5, 6, 6, 5, 5])
    assert (other.original.level, other.rewritten.level) == ("all", "extended")


def test_choosing_stops_at_its_share_of_the_budget(measured):
    _, machine = measured(costs(400, 400, 400, 400), time_budget=10)
    chosen = [number for number, _ in machine.runs].index(5)  # the copy runs only afterwards
    assert chosen <= 8 + 3, "a round that warms up, and one that takes the share"
    _, quick = measured(costs(1, 1, 1, 1), time_budget=10)
    assert [number for number, _ in quick.runs].index(5) >= 4 * paired_benchmark.CHOICE_ROUNDS[0]


def test_pairs_get_what_choosing_left_of_the_budget(measured):
    budgets = []

    def watched(*sides, budget, fewest, clock):
        budgets.append(budget)
        return paired(*sides, budget=0.0, clock=lambda: 1, wall=lambda: 1)

    measured(costs(100, 100, 100, 100), pairs=watched, time_budget=10)
    assert budgets == [pytest.approx(10 - 4 * 0.4)]  # four rounds pass 15 % of it


def test_the_settings_of_the_cpu():
    all_, extended = settings_of(Provider.CPU, {"k": "v"})
    assert all_ == Setting(Level.ALL, {"k": "v"})
    assert extended == Setting(Level.EXTENDED, {"k": "v"})
    assert str(extended) == "extended, k=v"


def test_the_settings_of_cuda_sweep_layout_search_and_bias():
    settings = settings_of(Provider.CUDA, {})
    names = ("prefer_nhwc", "cudnn_conv_algo_search", "fuse_conv_bias")
    values = [tuple(setting.options[name] for name in names) for setting in settings]
    assert values[0] == ("0", "HEURISTIC", "0")  # the common one
    assert sorted(values) == sorted(product("01", ("HEURISTIC", "EXHAUSTIVE"), "01"))
    assert {setting.level for setting in settings} == {Level.ALL}
    assert all(len(setting.options) == 3 for setting in settings)


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        ({"prefer_nhwc": "1"}, 4),
        ({"cudnn_conv_algo_search": "DEFAULT"}, 4),
        ({"prefer_nhwc": "0", "cudnn_conv_algo_search": "HEURISTIC"}, 2),
        ({"prefer_nhwc": "0", "cudnn_conv_algo_search": "DEFAULT", "fuse_conv_bias": "1"}, 1),
        ({"use_tf32": "0"}, 8),
    ],
)
def test_what_the_caller_chose_is_not_swept(chosen, count):
    settings = settings_of(Provider.CUDA, chosen)
    assert len(settings) == count
    assert all(chosen.items() <= setting.options.items() for setting in settings)
    assert len({str(setting) for setting in settings}) == count


def test_tensorrt_searches_by_itself():
    assert settings_of(Provider.TENSORRT, {"a": "b"}) == [Setting(Level.ALL, {"a": "b"})]


@pytest.fixture
def machine(monkeypatch):
    """Three models; b is the fastest at level all, a at level extended, where c has no time."""
    times = {**costs(6, 4, 3, 9), ("c.onnx", Level.EXTENDED): 5}
    found = Machine(times)
    monkeypatch.setattr(paired_benchmark, "open_session", found.open_session)
    monkeypatch.setattr(paired_benchmark, "clock_of", lambda *arguments: lambda: found.now)
    monkeypatch.setattr(paired_benchmark, "time", SimpleNamespace(perf_counter=found.seconds))
    monkeypatch.setattr(paired_benchmark, "paired", partial(paired, wall=lambda: found.now))
    return found


OPTIONS = VerifyOptions(provider=Provider.CPU, time_budget=2.0)
SHAPES = {"x": (1, 256)}


def test_parts_run_at_the_setting_that_suits_the_base(machine):
    paths = [Path(f"{name}.onnx") for name in "abc"]
    b, c = ratios_to(paths[0], paths[1:], OPTIONS, SHAPES)
    assert (b.ratio, b.low, b.high) == pytest.approx((9 / 4,) * 3)
    assert (c.ratio, c.seconds) == pytest.approx((5 / 4, 4e-3))
    assert b.rounds == c.rounds > 50
    assert [level for _, level, _ in machine.opened[2:]] == [Level.EXTENDED] * 2


def test_the_levels_of_a_model_are_compared_with_a_control(machine):
    timed = ratio_of_levels(Path("a.onnx"), OPTIONS, SHAPES)
    assert (timed.original_setting, timed.setting) == ("all", "extended")
    assert (timed.pairing.ratio, timed.pairing.control) == pytest.approx((1.5, 0.0))
    assert timed.advice.startswith("the original alone is 1.5x as fast at level extended")
