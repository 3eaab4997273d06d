"""The statistics of timing, on simulated processes and sessions whose spread is known."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from widthfold_onnx.runtime import clock
from widthfold_onnx.runtime.clock import (
    SESSIONS,
    SHORTEST,
    START,
    WARMUP_ROUNDS,
    Repeats,
    alternate,
    repeats,
)
from widthfold_onnx.runtime.intervals import (
    MIN_PROCESSES,
    USUAL_SPREAD,
    Pairing,
    interval,
    judge,
    noise,
    one_session,
)

MILLI = 1_000_000

SMALL = (0.003, 0.005, 0.03)
STEADY = (0.0005, 0.005, 0.03)
DRIFTING = (0.01, 0.004, 0.03)
LONG = (0.003, 0.006, 0.018)
"""Spread of processes, sessions and runs, relative; as nets of 0.02 to 34 ms were seen to have."""


class Machine:
    """A clock that only moves when a side runs."""

    def __init__(self) -> None:
        self.now = 0
        self.calls: list[tuple[str, int]] = []

    def clock(self) -> int:
        return self.now

    def side(self, name: str, milliseconds: float) -> clock.Run:
        def run(count: int) -> None:
            self.calls.append((name, count))
            self.now += int(milliseconds * MILLI)

        return run


def simulated(
    random: np.random.Generator,
    spreads: tuple[float, float, float],
    *,
    ratio: float = 1.0,
    processes: int = MIN_PROCESSES,
    sessions: int = 4,
    runs: int = 15,
) -> clock.Times:
    """Seconds of all runs of two models whose times have the given ratio; runs have heavy tails.

    The spread of a process is that of the ratio, so it moves the rewritten side only.
    """
    process, session, run = spreads
    shape = (processes, 2, sessions, runs)
    logs = run * random.standard_t(3, shape) / np.sqrt(3)
    logs += session * random.standard_normal((processes, 2, sessions, 1))
    logs[:, 1] += process * random.standard_normal((processes, 1, 1)) - np.log(ratio)
    return np.exp(logs) * 1e-3


def coverage(spreads: tuple[float, float, float], **sizes: int) -> float:
    """How often the interval holds the ratio."""
    random = np.random.default_rng(1)
    found = [Pairing.of(simulated(random, spreads, ratio=1.3, **sizes)) for _ in range(200)]
    return float(np.mean([one.low <= 1.3 <= one.high for one in found]))


@pytest.mark.parametrize("spreads", [SMALL, STEADY, DRIFTING])
@pytest.mark.parametrize("processes", [1, 2, MIN_PROCESSES, 9])
def test_the_interval_holds_the_ratio_as_often_as_it_says(
    spreads: tuple[float, float, float], processes: int
) -> None:
    assert coverage(spreads, processes=processes) >= 0.93


def test_the_interval_of_a_long_model_with_few_sessions_and_runs_holds_it_too() -> None:
    assert coverage(LONG, sessions=2, runs=6) >= 0.93


def test_runs_alone_know_nothing_of_sessions_and_processes() -> None:
    """Taken for runs of one session, as if sessions were alike, the same samples promise more."""
    random = np.random.default_rng(1)
    held = []
    for _ in range(100):
        logs = np.log(simulated(random, DRIFTING, runs=200))
        pooled = (logs[:, 0] - logs[:, 1]).ravel()
        draws = random.choice(pooled, (200, pooled.size))
        low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
        held.append(low <= 0 <= high)
    assert np.mean(held) < 0.5


def test_processes_that_agree_by_chance_do_not_make_the_interval_narrow() -> None:
    logs = np.log(simulated(np.random.default_rng(2), LONG, sessions=2, runs=6))
    alike = logs[:, 0] - logs[:, 1]
    alike -= np.median(alike, axis=2).mean(axis=1)[:, None, None]
    middle, low, high = interval(alike)
    assert middle == pytest.approx(0, abs=1e-12)
    assert high - low > 0.5 * USUAL_SPREAD


def test_one_noisy_process_widens_the_interval() -> None:
    logs = np.zeros((MIN_PROCESSES, 2, 10))
    quiet = interval(logs)
    logs[0] = 0.2
    assert interval(logs)[2] - interval(logs)[1] > 5 * (quiet[2] - quiet[1])


@pytest.mark.parametrize("spreads", [SMALL, STEADY, DRIFTING, LONG])
def test_identical_models_are_never_faster_or_slower(spreads: tuple[float, float, float]) -> None:
    random = np.random.default_rng(3)
    for processes in (1, 2, MIN_PROCESSES):
        for _ in range(100):
            found = Pairing.of(simulated(random, spreads, processes=processes))
            assert found.verdict in ("no difference", "inconclusive")


@pytest.mark.parametrize("percent", [3, 5, 10])
@pytest.mark.parametrize("spreads", [SMALL, DRIFTING, LONG])
def test_more_work_is_found_or_inconclusive(
    spreads: tuple[float, float, float], percent: int
) -> None:
    random = np.random.default_rng(4)
    counts = Counter(
        Pairing.of(simulated(random, spreads, ratio=1 / (1 + percent / 100))).verdict
        for _ in range(100)
    )
    assert set(counts) <= {"slower", "inconclusive"}
    assert counts["slower"] == 100 or percent < 10


def test_the_control_is_that_of_all_sessions_of_the_original() -> None:
    samples = np.full((MIN_PROCESSES, 2, 4, 5), 1e-3)
    quiet = Pairing.of(samples)
    assert (quiet.converged, quiet.verdict, quiet.pairs) == (True, "no difference", 80)
    samples[:, 1] /= 1.1
    assert Pairing.of(samples).verdict == "faster"
    samples[:, 0, ::2] *= 1.1
    noisy = Pairing.of(samples)
    assert noisy.control == pytest.approx(0.1, abs=0.02)
    assert noisy.ratio > 1.1
    assert noisy.verdict == "inconclusive"


def test_a_large_gain_need_not_be_known_as_well() -> None:
    logs = 0.012 * np.random.default_rng(5).standard_normal((MIN_PROCESSES, 2, 2, 1))
    samples = np.exp(logs.repeat(5, axis=3))
    assert not Pairing.of(samples).converged
    samples[:, 1] /= 2
    assert Pairing.of(samples).converged


def test_few_processes_have_not_converged() -> None:
    samples = np.full((MIN_PROCESSES, 2, 2, 5), 1e-3)
    assert Pairing.of(samples).converged
    assert not Pairing.of(samples[1:]).converged


def test_a_noisy_control_raises_the_bar() -> None:
    assert judge(1.05, 1.07, 0.0) == "faster"
    assert judge(1.05, 1.07, 0.03) == "inconclusive"
    assert judge(1.01, 1.019, 0.0) == "no difference"
    assert judge(0.90, 0.95, 0.0) == "slower"
    assert judge(0.90, 0.95, 0.06) == "inconclusive"
    assert noise(0.001) == 1.02


def test_one_session_allows_for_others() -> None:
    random = np.random.default_rng(7)
    held = []
    for _ in range(200):
        runs = USUAL_SPREAD * random.standard_normal() + 0.03 * random.standard_t(2, 40)
        _, low, high = one_session(runs)
        held.append(low <= 0 <= high)
    assert np.mean(held) >= 0.92


def test_every_second_round_runs_backwards_and_all_sides_see_the_same_round() -> None:
    machine = Machine()
    sides = [machine.side(name, 1) for name in "abcd"]
    alternate(sides, 40, machine.clock, warm=True)
    rounds = [machine.calls[i : i + 4] for i in range(0, len(machine.calls), 4)]
    assert [{count for _, count in one} for one in rounds] == [{count} for count in range(40)]
    orders = ["".join(name for name, _ in one) for one in rounds]
    assert all(two == one[::-1] for one, two in zip(orders[::2], orders[1::2], strict=True))
    assert len(set(orders[::2])) > 5
    for place in range(4):
        assert set(Counter(order[place] for order in orders)) == set("abcd")
    assert any(one[-1] != two[0] for one, two in pairwise(orders))


def test_each_side_gets_its_own_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "WARMUP_SECONDS", 0.0)
    machine = Machine()
    sides = [machine.side("a", 2), machine.side("b", 3)]
    times = alternate(sides, 5, machine.clock)
    np.testing.assert_allclose(times, [[2e-3] * 5, [3e-3] * 5])
    assert len(machine.calls) == 2 * (5 + WARMUP_ROUNDS)


@pytest.mark.parametrize("run", [1e-6, 2e-5, 4e-4, 3e-3, 0.03, 0.3, 5.0, 40.0])
@pytest.mark.parametrize("opening", [0.001, 0.04, 1.0])
def test_a_process_takes_no_longer_than_it_may(run: float, opening: float) -> None:
    seconds = 1.5
    found = repeats(run, opening, seconds)
    assert found.sessions in SESSIONS
    assert found.runs >= 1
    taken = 2 * found.sessions * (opening + (1 + WARMUP_ROUNDS + found.runs) * run)
    assert found.runs == 1 or START + taken <= seconds + found.sessions * run
    if run < 1e-3:
        assert 2 * found.sessions * found.runs * run >= 0.9 * SHORTEST or opening == 1.0


def test_what_is_costly_is_repeated_less() -> None:
    assert repeats(0.001, 0.001, 10.0).sessions > repeats(0.001, 1.0, 10.0).sessions
    assert repeats(0.001, 1.0, 100.0).runs > repeats(0.001, 0.05, 100.0).runs
    assert repeats(40.0, 0.1, 1.5) == Repeats(min(SESSIONS), 1)
