from itertools import pairwise

import numpy as np
import pytest

from widthfold_onnx.runtime.clock import interval, judge, paired

MILLI = 1_000_000


class Machine:
    """A clock that only moves when a side runs, by a base time and heavy-tailed noise."""

    def __init__(self, seed, spread=0.02):
        self.now = 0
        self.random = np.random.default_rng(seed)
        self.spread = spread
        self.calls = []

    def clock(self):
        return self.now

    def side(self, name, milliseconds):
        def run(count):
            self.calls.append((name, count))
            noise = 1 + self.spread * abs(self.random.standard_t(2))
            self.now += int(milliseconds * MILLI * noise)

        return run


def measure(original, rewritten, seed, *, budget=60.0, spread=0.02):
    machine = Machine(seed, spread)
    sides = [machine.side("a", original), machine.side("b", rewritten), machine.side("c", original)]
    return paired(*sides, budget=budget, clock=machine.clock, wall=machine.clock), machine


@pytest.mark.parametrize("seed", range(25))
def test_identical_sides_are_never_faster_or_slower(seed):
    result, _ = measure(10, 10, seed)
    assert result.verdict == "no difference"
    assert result.low <= result.ratio <= result.high


@pytest.mark.parametrize("seed", range(10))
def test_identical_sides_under_heavy_noise_and_a_short_budget(seed):
    result, _ = measure(10, 10, seed, budget=3.0, spread=0.5)
    assert result.verdict in ("no difference", "inconclusive")


@pytest.mark.parametrize("seed", range(10))
def test_a_tenth_is_found(seed):
    result, _ = measure(11, 10, seed)
    assert result.verdict == "faster"
    assert result.low < 1.10 < result.high or abs(result.ratio - 1.10) < 0.01


@pytest.mark.parametrize("seed", range(10))
def test_five_percent_slower_is_found(seed):
    result, _ = measure(10, 10.5, seed, spread=0.005)
    assert result.verdict == "slower"
    assert result.ratio == pytest.approx(1 / 1.05, abs=0.01)


def test_all_orders_take_turns_and_all_sides_see_the_same_round():
    _, machine = measure(10, 10, 0)
    timed = machine.calls[-6 * 3 * 5 :]
    rounds = [timed[i : i + 3] for i in range(0, len(timed), 3)]
    assert all(len({count for _, count in one}) == 1 for one in rounds)
    orders = ["".join(name for name, _ in one) for one in rounds]
    assert len(set(orders[:6])) == 6
    assert orders[:6] == orders[6:12]
    assert all(one != two for one, two in pairwise(orders))


def test_stops_when_narrow_with_enough_pairs_and_seconds():
    result, _ = measure(100, 100, 1, spread=0.001)
    assert len(result.samples) == 30
    fast, _ = measure(1, 1, 1, spread=0.001)
    assert fast.samples[:, 0].sum() >= 0.5 - 1e-9


def test_a_short_budget_is_inconclusive_unless_the_bar_is_cleared():
    unclear, machine = measure(200, 202, 2, budget=5.0, spread=0.3)
    assert unclear.verdict == "inconclusive"
    assert machine.now < 7e9
    clear, _ = measure(400, 200, 2, budget=15.0)
    assert len(clear.samples) < 30
    assert clear.verdict == "faster"


def test_a_model_slower_than_the_budget_still_gets_one_pair():
    result, machine = measure(5000, 5000, 3, budget=1.0)
    assert len(result.samples) == 1
    assert len(machine.calls) == 6
    assert result.verdict == "inconclusive"


def test_the_fewest_pairs_are_run_however_long_they_take():
    side = lambda count: None  # noqa: E731
    result = paired(side, side, side, budget=0.0, fewest=7, clock=lambda: 1, wall=lambda: 1)
    assert len(result.samples) == 7


def test_no_budget_left_still_ends():
    result, _ = measure(10, 10, 3, budget=-1.0)
    assert len(result.samples) == 1


def test_a_noisy_control_raises_the_bar():
    assert judge(1.05, 1.07, 0.0, 40, converged=True) == "faster"
    assert judge(1.05, 1.07, 0.03, 40, converged=True) == "no difference"
    assert judge(1.01, 1.019, 0.0, 40, converged=True) == "no difference"
    assert judge(0.90, 0.95, 0.0, 40, converged=True) == "slower"
    assert judge(2.0, 2.1, 0.0, 5, converged=False) == "inconclusive"


def test_a_slow_copy_shows_as_control():
    machine = Machine(4, spread=0.001)
    sides = [machine.side("a", 10), machine.side("b", 9), machine.side("c", 11)]
    result = paired(*sides, budget=60.0, clock=machine.clock, wall=machine.clock)
    assert result.control == pytest.approx(0.10, abs=0.01)
    assert result.verdict == "no difference"


def test_theinterval_agrees_with_plain_resampling():
    values = np.random.default_rng(5).standard_t(3, 41)
    draws = np.random.default_rng(6).choice(values, (20_000, 41))
    expected = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    median, low, high = interval(values)
    assert median == np.median(values)
    np.testing.assert_allclose((low, high), expected, atol=0.08)


def test_theinterval_covers_the_true_median_as_often_as_it_says():
    random = np.random.default_rng(7)
    hits = 0
    for _ in range(400):
        _, low, high = interval(random.standard_t(2, 60))
        hits += low <= 0 <= high
    assert hits >= 0.92 * 400
