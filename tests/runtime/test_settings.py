"""The setting that suits a model best is chosen in a share of the budget."""

from __future__ import annotations

from itertools import product

import pytest

from tests.evidence.timing.machine import FIRST_TIMED, Machine, costs
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime import contest, settings
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.settings import Setting, level_in, settings_of


def test_the_first_run_of_a_session_does_not_choose(measured):
    # Two rounds pass the share of the budget; the mean of both would be 225 and 210.
    cold = {("a.onnx", Level.ALL): 250}
    timing, _ = measured(costs(200, 210, 200, 210), first=cold, time_budget=10)
    assert timing.original.level == "all"
    assert timing.same_level == pytest.approx(1.0)
    assert (timing.original.first_ms, timing.original.median_ms) == (250.0, 200.0)


def test_disturbed_runs_do_not_choose(measured):
    # After the first run, which only warms up, two of five are disturbed; one takes the share.
    timing, _ = measured(costs((40, 75, 75, 40), 50, 40, 50), time_budget=1)
    assert (timing.original.level, timing.rewritten.level) == ("all", "all")


def test_every_second_round_runs_the_settings_backwards(measured):
    _, machine = measured(costs(50, 51, 50, 51))
    numbers = [number for number, _ in machine.runs[: 4 * (1 + settings.MIN_ROUNDS)]]
    _, *rounds = [numbers[i : i + 4] for i in range(0, len(numbers), 4)]  # the first one warms up
    assert all(sorted(entry) == [0, 1, 2, 3] for entry in rounds)
    assert rounds[1::2] == [entry[::-1] for entry in rounds[0:-1:2]]
    assert len(set(map(tuple, rounds))) > 2


@pytest.mark.parametrize(
    ("cost", "rounds"), [(0.05, 500 + 1000), (0.3, 500), (1, 150), (40, 1 + 5)]
)
def test_short_runs_choose_in_more_rounds(measured, monkeypatch, cost, rounds):
    counts = []
    choose_settings = settings.choose_settings

    def spied(*arguments):
        result = choose_settings(*arguments)
        counts.append(len(machines[0].runs))
        return result

    machines = []
    opened = Machine.open_session

    def open_session(machine, *arguments, **options):
        machines.append(machine)
        return opened(machine, *arguments, **options)

    monkeypatch.setattr(Machine, "open_session", open_session)
    monkeypatch.setattr(contest, "choose_settings", spied)
    measured(costs(cost, cost, cost, cost), time_budget=20)
    assert counts == [pytest.approx(4 * rounds, abs=4)]


@pytest.mark.parametrize(
    ("costs_ms", "rounds"), [((100, 200, 200, 100), 3), ((100, 200, 100, 101), 5)]
)
def test_long_runs_choose_in_few_rounds_where_a_setting_of_each_model_is_surely_the_fastest(
    measured, costs_ms, rounds
):
    _, machine = measured(costs(*costs_ms), time_budget=20)
    choosing = [number for number, _ in machine.runs].index(FIRST_TIMED)
    assert choosing == 4 * (1 + rounds)


def test_one_file_against_itself_runs_at_one_setting(measured):
    # As opened: both levels of each side. Noise makes the second choose.
    noisy = [5, 6, 6, 5, *[5] * 99]
    timing, _ = measured(noisy, same_file=True)
    assert timing.original.level == timing.rewritten.level == "all"
    other, _ = measured(noisy)
    assert (other.original.level, other.rewritten.level) == ("all", "extended")


def test_choosing_stops_at_its_share_of_the_budget(measured):
    _, machine = measured(costs(400, 400, 400, 400), time_budget=10)
    chosen = [number for number, _ in machine.runs].index(FIRST_TIMED)
    assert chosen <= 8 + 3, "a round that warms up, and one that takes the share"
    _, quick = measured(costs(1, 1, 1, 1), time_budget=10)
    numbers = [number for number, _ in quick.runs]
    assert numbers.index(FIRST_TIMED) >= 4 * settings.MIN_ROUNDS


def test_the_settings_of_the_cpu():
    options = RuntimeOptions(provider=Provider.CPU, provider_options={"k": "v"})
    all_, extended = settings_of(options)
    assert all_ == Setting(Level.ALL, options)
    assert extended == Setting(Level.EXTENDED, options)
    assert str(extended) == "extended, k=v"
    assert level_in(str(extended)) is level_in("extended") is Level.EXTENDED
    assert settings_of(options, Level.EXTENDED) == [extended]


def test_the_settings_of_cuda_sweep_layout_search_and_bias():
    settings = settings_of(RuntimeOptions(provider=Provider.CUDA))
    names = ("prefer_nhwc", "cudnn_conv_algo_search", "fuse_conv_bias")
    values = [tuple(s.options.provider_options[name] for name in names) for s in settings]
    assert values[0] == ("0", "HEURISTIC", "0")  # the common one
    assert sorted(values) == sorted(product("01", ("HEURISTIC", "EXHAUSTIVE"), "01"))
    assert {setting.level for setting in settings} == {Level.ALL}
    assert all(len(setting.options.provider_options) == 3 for setting in settings)


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
    settings = settings_of(RuntimeOptions(provider=Provider.CUDA, provider_options=chosen))
    assert len(settings) == count
    assert all(chosen.items() <= s.options.provider_options.items() for s in settings)
    assert len({str(setting) for setting in settings}) == count


def test_tensorrt_searches_by_itself():
    options = RuntimeOptions(provider=Provider.TENSORRT, provider_options={"a": "b"})
    assert settings_of(options) == [Setting(Level.ALL, options)]
