"""The statistics of timing, on simulated processes and sessions whose spread is known."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from widthfold_onnx.runtime import clock
from widthfold_onnx.runtime.intervals import (
    MIN_PROCESSES,
    USUAL_SPREAD,
    Pairing,
    interval,
    noise,
    one_session,
    speed_verdict,
)

SMALL = (0.003, 0.005, 0.03)
STEADY = (0.0005, 0.005, 0.03)
DRIFTING = (0.01, 0.004, 0.03)
LONG = (0.003, 0.006, 0.018)
"""Spread of processes, sessions and runs, relative; as nets of 0.02 to 34 ms were seen to have."""


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

    The spread of a process is the spread of the ratio, so it moves the rewritten side only.
    """
    process, session, run = spreads
    shape = (processes, 2, sessions, runs)
    logs = run * random.standard_t(3, shape) / np.sqrt(3)
    logs += session * random.standard_normal((processes, 2, sessions, 1))
    logs[:, 1] += process * random.standard_normal((processes, 1, 1)) - np.log(ratio)
    return np.exp(logs) * 1e-3


def coverage(spreads: tuple[float, float, float], **sizes: int) -> float:
    """Share of the intervals that hold the ratio."""
    random = np.random.default_rng(1)
    pairing = [Pairing.of(simulated(random, spreads, ratio=1.3, **sizes)) for _ in range(200)]
    return float(np.mean([entry.low <= 1.3 <= entry.high for entry in pairing]))


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
            pairing = Pairing.of(simulated(random, spreads, processes=processes))
            assert pairing.verdict in ("no difference", "inconclusive")


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
    assert speed_verdict(1.05, 1.07, 0.0) == "faster"
    assert speed_verdict(1.05, 1.07, 0.03) == "inconclusive"
    assert speed_verdict(1.01, 1.019, 0.0) == "no difference"
    assert speed_verdict(0.90, 0.95, 0.0) == "slower"
    assert speed_verdict(0.90, 0.95, 0.06) == "inconclusive"
    assert speed_verdict(1.01, 1.03, 0.01) == "inconclusive"
    assert noise(0.001) == 1.02


def test_one_session_allows_for_others() -> None:
    random = np.random.default_rng(7)
    held = []
    for _ in range(200):
        runs = USUAL_SPREAD * random.standard_normal() + 0.03 * random.standard_t(2, 40)
        _, low, high = one_session(runs)
        held.append(low <= 0 <= high)
    assert np.mean(held) >= 0.92
