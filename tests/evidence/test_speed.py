"""Timing against a machine of our own: its clock moves only when a session runs."""

from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence import contest, rotation, speed
from widthfold_onnx.evidence.contest import Setting, settings_of
from widthfold_onnx.evidence.speed import time_models
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.results import NodeTime
from widthfold_onnx.runtime.clock import paired
from widthfold_onnx.runtime.ports import Port
from widthfold_onnx.runtime.session import Level

MILLI = 1_000_000
NODES = [NodeTime(name=f"n{i}", op="Conv", provider="P" if i else "Q", us=1.0) for i in range(41)]


class Machine:
    """Sessions whose runs take a stated time.

    Attributes:
        costs: ms of a run, by (file, level), or by the order in which sessions were opened.
        first: ms of the first run of a session, by (file, level), where that differs.
        runs: (number of the session, input set) of every run.
    """

    def __init__(self, costs, first=None):
        self.costs, self.first = costs, first or {}
        self.now = 0
        self.opened = []
        self.runs = []

    def open_session(self, model, provider, level=Level.ALL, threads=1, **options):
        self.opened.append((model.name, level, threads))
        return Session(self, len(self.opened) - 1, model.name, level)

    def seconds(self):
        return self.now * 1e-9


class Session:
    provider = Provider.CPU
    inputs = (Port("x", "float32", (1, 256)),)

    def __init__(self, machine, number, name, level):
        self.machine, self.number = machine, number
        costs = machine.costs
        self.ms = costs[number] if isinstance(costs, list) else costs.get((name, level), 0)
        self.warmup = machine.first.get((name, level), self.ms)

    def bound(self, feeds):
        def once():
            self.machine.runs.append((self.number, float(feeds["x"][0, 0])))
            self.machine.now += int(self.warmup * MILLI)
            self.warmup = self.ms

        return once


@pytest.fixture
def measured(monkeypatch, tmp_path):
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for path in paths:
        path.write_bytes(b"")

    def measure(
        costs, *, load=0.0, before=None, cores=2, same_file=False, first=None, pairs=None, **options
    ):
        machine = Machine(costs, first)
        fakes = {
            "open_session": machine.open_session,
            "time": SimpleNamespace(perf_counter=machine.seconds),
            "clock_of": lambda provider, threads: lambda: machine.now,
            "paired": pairs or partial(paired, wall=lambda: machine.now),
            "profile": lambda open_with, feeds: NODES,
            "peak_mib": lambda *arguments: 12.34,
            "file_bytes": lambda model: 5 if model.name == "a.onnx" else 6,
            "load_average": lambda: load,
            "cores": lambda: cores,
        }
        for name, fake in fakes.items():
            for module in (contest, speed):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, fake)
        monkeypatch.setattr(rotation, "last_cache_bytes", lambda: 0)
        pair = (paths[0], paths[0]) if same_file else paths
        options = VerifyOptions(provider=Provider.CPU, **options)
        return time_models(*pair, options, {"x": (1, 256)}, load=before), machine

    return measure


def costs(a_all, a_extended, b_all, b_extended):
    return {
        ("a.onnx", Level.ALL): a_all,
        ("a.onnx", Level.EXTENDED): a_extended,
        ("b.onnx", Level.ALL): b_all,
        ("b.onnx", Level.EXTENDED): b_extended,
    }


# ---------------------------------------------------------------- settings


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
    numbers = [number for number, _ in machine.runs[: 4 * contest.CHOICE_ROUNDS[0]]]
    rounds = [numbers[i : i + 4] for i in range(0, len(numbers), 4)]
    assert all(sorted(one) == [1, 2, 3, 4] for one in rounds)
    for place in range(4):
        counts = [[one[place] for one in rounds[1:]].count(number) for number in (1, 2, 3, 4)]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(("cost", "rounds"), [(0.05, 1000), (0.1, 500), (1, 50), (20, 15)])
def test_short_runs_choose_in_more_rounds(measured, monkeypatch, cost, rounds):
    counted = []
    medians = contest._medians

    def spied(*arguments):
        result = medians(*arguments)
        counted.append(len(machines[0].runs))
        return result

    machines = []
    opened = Machine.open_session

    def open_session(machine, *arguments, **options):
        machines.append(machine)
        return opened(machine, *arguments, **options)

    monkeypatch.setattr(Machine, "open_session", open_session)
    monkeypatch.setattr(contest, "_medians", spied)
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
    assert chosen <= 4 + 3, "one round of four sessions took the share, then the pairs begin"
    _, quick = measured(costs(1, 1, 1, 1), time_budget=10)
    assert [number for number, _ in quick.runs].index(5) >= 4 * contest.CHOICE_ROUNDS[0]


def test_pairs_get_what_choosing_left_of_the_budget(measured):
    budgets = []

    def watched(*sides, budget, clock):
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


# ---------------------------------------------------------------- verdict and samples


@pytest.mark.parametrize(
    ("rewritten", "verdict"), [(8, "faster"), (12.5, "slower"), (10.1, "no difference")]
)
def test_the_verdict_is_that_of_the_pairs(measured, rewritten, verdict):
    timing, _ = measured(costs(10, 90, rewritten, 90), time_budget=100)
    assert timing.verdict == verdict
    assert timing.low == timing.high == pytest.approx(10 / rewritten)
    assert (timing.provider, timing.threads, timing.note) == ("cpu", 1, "")


def test_too_few_pairs_are_inconclusive(measured):
    timing, _ = measured(costs(1000, 9000, 1000, 9000), time_budget=10)
    assert timing.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("load", "threads", "cores", "verdict", "noted"),
    [
        (0.0, 1, 2, "faster", False),
        (1.0, 1, 2, "faster", False),
        (1.1, 1, 2, "faster", True),
        (0.0, 2, 2, "faster", False),
        (0.1, 2, 2, "inconclusive", True),
        (1.9, 2, 4, "faster", False),
        (2.1, 2, 4, "inconclusive", True),
    ],
)
def test_several_threads_on_a_crowded_machine_show_nothing(
    measured, load, threads, cores, verdict, noted
):
    times = costs(10, 90, 8, 90)
    timing, machine = measured(times, load=load, threads=threads, cores=cores, time_budget=100)
    assert timing.verdict == verdict
    assert bool(timing.note) is noted
    assert (f"load {load:.1f} on {cores} cores" in timing.note) is noted
    assert {count for _, _, count in machine.opened} == {threads}


def test_the_copy_of_the_original_is_the_control(measured):
    timing, _ = measured([0, 10, 99, 8, 99, 11], time_budget=100)
    assert timing.control == pytest.approx(0.1)
    assert set(timing.control_ms) == {11.0}
    assert timing.verdict == "faster"
    noisy, _ = measured([0, 10, 99, 9, 99, 11], time_budget=100)
    assert noisy.verdict == "no difference"


def test_the_sides_hold_their_own_figures(measured):
    timing, _ = measured(costs(10, 90, 8, 90), time_budget=100)
    before, after = timing.original, timing.rewritten
    assert (before.median_ms, before.p90, before.p99) == (10.0, 10.0, 10.0)
    assert (after.median_ms, set(after.samples_ms)) == (8.0, {8.0})
    assert (before.file_bytes, after.file_bytes, before.peak_mib) == (5, 6, 12.3)
    assert len(before.nodes) == len(NODES)
    assert sum(before.providers.values()) == len(NODES)
    assert timing.pairs == len(before.samples_ms) == len(timing.control_ms)


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (500, 500), (501, 251), (1201, 401)])
def test_samples_are_thinned_evenly(count, kept):
    samples = speed._thinned(np.arange(1, count + 1) * 1e-3)
    assert len(samples) == kept <= speed.KEPT_SAMPLES
    assert samples[0] == 1.0
    assert len(set(np.diff(samples))) <= 1
    assert samples[-1] > count - count / kept


def test_percentiles_are_those_of_all_samples(measured):
    def pairs(*sides, budget, clock):
        times = np.tile(np.arange(1, 1002) * 1e-3, (3, 1)).T
        return replace(paired(*sides, budget=0.0, clock=lambda: 1, wall=lambda: 1), samples=times)

    side = measured(costs(10, 90, 8, 90), pairs=pairs)[0].original
    assert (side.median_ms, side.p90, side.p99) == (501.0, 901.0, 991.0)
    assert len(side.samples_ms) == 334


# ---------------------------------------------------------------- inputs


@pytest.mark.parametrize(
    ("cache", "count"), [(0, 4), (4 * 1024, 5), (10 * 1024 - 1, 10), (1 << 30, 64)]
)
def test_the_input_sets_together_exceed_the_last_cache(monkeypatch, cache, count):
    monkeypatch.setattr(rotation, "last_cache_bytes", lambda: cache)
    sets = rotation._feeds(Session(Machine({}), 0, "", ""), {"x": (1, 256)})
    assert len(sets) == count
    size = sum(array.nbytes for item in sets for array in item.values())
    assert size > cache or count == rotation.INPUT_SETS[1]
    assert all(np.count_nonzero(item["x"]) == 256 for item in sets)
    assert len({item["x"].tobytes() for item in sets}) == count


def test_on_a_gpu_they_exceed_its_own_cache(monkeypatch):
    monkeypatch.setattr(rotation, "last_cache_bytes", lambda: 0)
    session = Session(Machine({}), 0, "", "")
    session.provider = Provider.CUDA
    session.inputs = (Port("x", "float32", (1, 4 << 20)),)
    sets = rotation._feeds(session, {"x": (1, 4 << 20)})
    assert len(sets) == 5  # of 16 MiB: more than the 60 MB of an H200


def test_all_sides_take_the_input_sets_in_turn(measured):
    _, machine = measured(costs(10, 90, 8, 90), time_budget=100)
    timed = machine.runs[-12:]
    rounds = [timed[i : i + 3] for i in range(0, 12, 3)]
    assert all(len({value for _, value in one}) == 1 for one in rounds)
    assert len({one[0][1] for one in rounds}) == rotation.INPUT_SETS[0]


def test_progress_names_both_models(measured, monkeypatch, tmp_path):
    measured(costs(10, 90, 8, 90))
    lines = []
    time_models(
        tmp_path / "a.onnx",
        tmp_path / "b.onnx",
        VerifyOptions(provider=Provider.CPU, time_budget=0.1),
        {"x": (1, 256)},
        report=lines.append,
    )
    assert lines == [
        "timing: choosing settings",
        "timing: alternating runs",
        "profile of a.onnx",
        "profile of b.onnx",
    ]


# ---------------------------------------------------------------- stored inputs, our own load


def test_without_random_inputs_the_stored_ones_are_timed(measured, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.full((1, 256), 7, np.float32))
    timing, machine = measured(costs(10, 90, 8, 90), seeds=0, inputs=(str(path),))
    assert {value for _, value in machine.runs} == {7.0}
    assert (timing.note, timing.shapes) == ("timed on the stored inputs", {"x": [1, 256]})


def test_stored_inputs_are_timed_where_no_random_ones_run(measured, monkeypatch, tmp_path):
    def stops(*arguments):
        raise UnverifiedError("no random input was found that runs")

    monkeypatch.setattr(rotation, "random_feeds", stops)
    with pytest.raises(UnverifiedError, match="no random input"):
        measured(costs(10, 90, 8, 90))
    np.save(tmp_path / "x.npy", np.full((1, 256), 7, np.float32))
    timing, _ = measured(costs(10, 90, 8, 90), inputs=(str(tmp_path / "x.npy"),))
    assert timing.note == "timed on the stored inputs"


def test_random_inputs_are_preferred_and_their_shapes_are_kept(measured, tmp_path):
    np.save(tmp_path / "x.npy", np.full((1, 256), 7, np.float32))
    timing, machine = measured(costs(10, 90, 8, 90), inputs=(str(tmp_path / "x.npy"),))
    assert 7.0 not in {value for _, value in machine.runs}
    assert (timing.note, timing.shapes) == ("", {"x": [1, 256]})


def test_stored_sets_of_other_shapes_take_no_turn(monkeypatch, tmp_path):
    class Open(Session):
        inputs = (Port("x", "float32", (1, "n")),)

    monkeypatch.setattr(rotation, "last_cache_bytes", lambda: 0)
    paths = []
    for number, size in enumerate((4, 8, 4)):
        paths.append(str(tmp_path / f"{number}.npy"))
        np.save(paths[-1], np.full((1, size), number, np.float32))
    sets = rotation._stored(Open(Machine({}), 0, "", ""), VerifyOptions(inputs=tuple(paths)))
    assert [item["x"].tolist() for item in sets] == [[[0.0] * 4], [[2.0] * 4]] * 2


@pytest.mark.parametrize(("before", "crowded"), [(None, True), (0.0, False), (9.0, True)])
def test_what_the_comparison_of_values_added_to_the_load_is_not_a_busy_machine(
    measured, before, crowded
):
    timing, _ = measured(costs(10, 90, 8, 90), load=1.5, before=before, threads=2, cores=2)
    assert timing.crowded is crowded
    assert (timing.verdict == "inconclusive") is crowded
