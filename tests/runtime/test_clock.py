"""Rounds in which sides take turns, on a clock that only moves when a side runs."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest

from widthfold_onnx.runtime import clock
from widthfold_onnx.runtime.clock import (
    MIN_TIMED_SECONDS,
    PROCESS_START_SECONDS,
    SESSIONS,
    WARMUP_ROUNDS,
    Repeats,
    alternate,
    in_turn,
    repeats,
)

MILLI = 1_000_000


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


def test_every_second_round_runs_backwards_and_all_sides_see_the_same_round() -> None:
    machine = Machine()
    sides = [machine.side(name, 1) for name in "abcd"]
    list(islice(in_turn(sides, machine.clock), 40))
    rounds = [machine.calls[i : i + 4] for i in range(0, len(machine.calls), 4)]
    assert [{count for _, count in entry} for entry in rounds] == [{count} for count in range(40)]
    orders = ["".join(name for name, _ in entry) for entry in rounds]
    assert all(two == entry[::-1] for entry, two in zip(orders[::2], orders[1::2], strict=True))
    assert len(set(orders[::2])) > 5
    for place in range(4):
        assert set(Counter(order[place] for order in orders)) == set("abcd")
    assert any(entry[-1] != two[0] for entry, two in pairwise(orders))


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
    plan = repeats(run, opening, seconds)
    assert plan.sessions in SESSIONS
    assert plan.runs >= 1
    seconds_taken = 2 * plan.sessions * (opening + (1 + WARMUP_ROUNDS + plan.runs) * run)
    assert plan.runs == 1 or PROCESS_START_SECONDS + seconds_taken <= seconds + plan.sessions * run
    if run < 1e-3:
        assert 2 * plan.sessions * plan.runs * run >= 0.9 * MIN_TIMED_SECONDS or opening == 1.0


def test_what_is_costly_is_repeated_less() -> None:
    assert repeats(0.001, 0.001, 10.0).sessions > repeats(0.001, 1.0, 10.0).sessions
    assert repeats(0.001, 1.0, 100.0).runs > repeats(0.001, 0.05, 100.0).runs
    assert repeats(40.0, 0.1, 1.5) == Repeats(min(SESSIONS), 1)
    assert repeats(40.0, 0.1, 1.5, fewest_runs=3) == Repeats(min(SESSIONS), 3)
