"""Time runs in turn, and decide how often to repeat them.

All runs are interleaved: identical models timed one after the other may differ by 2.94x on a busy
host. Sessions of one file differ as well, by where their memory lies, and so do processes, so both
are repeated (Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013). The
measurements behind the constants are in docs/verification.md#why-runs-are-timed-so.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from widthfold_onnx.options import RuntimeOptions
from widthfold_onnx.runtime.provider_traits import traits_of
from widthfold_onnx.system import has_fine_thread_clock

Run = Callable[[int], object]
"""Runs a model once. The argument is the number of the round, which chooses the inputs: all sides
of a round run on the same ones."""

Clock = Callable[[], int]
"""Nanoseconds, from any origin."""

Times = npt.NDArray[np.float64]
"""Seconds of runs; each use names its axes. A round runs every side once; a pair is a round of two
sides."""

WARMUP_ROUNDS = 1
WARMUP_SECONDS = 0.1
"""Sessions run untimed for at least this many rounds and seconds after their first run: early runs
may take 250 % longer than later ones."""

PROCESS_START_SECONDS = 0.4
"""Seconds that a process takes to start and to load the runtime."""

SESSIONS = (2, 4)
"""Fewest and most sessions of each model in a process; even, as the A/A control pairs them."""

MIN_TIMED_SECONDS = 0.1
"""A process times for at least that many seconds, because starting it takes longer."""

RUN_SPREAD = 0.038
SESSION_SPREAD = 0.004
PROCESS_SPREAD = 0.004
"""Typical relative standard deviations of runs, of sessions, and of the ratio of a process."""


class Repeats(NamedTuple):
    """Numbers of sessions of each model in a process, and of runs of each session."""

    sessions: int
    runs: int


def clock_of(options: RuntimeOptions) -> Clock:
    """Return the clock to time runs with: processor time of the thread, or wall time.

    Wall time includes other processes on a busy host; processor time is what a run would take on a
    free core. Processor time is used where the provider computes in the calling thread: with
    one thread, and without provider options, which may move the work elsewhere. Not on Windows,
    whose clock of processor time is too coarse.
    """
    return time.thread_time_ns if clock_name(options) == "thread" else time.perf_counter_ns


def clock_name(options: RuntimeOptions) -> Literal["wall", "thread"]:
    """Return the kind of clock that `clock_of` returns."""
    in_caller = (
        traits_of(options.provider).in_caller
        and options.threads == 1
        and not options.provider_options
    )
    return "thread" if in_caller and has_fine_thread_clock() else "wall"


def repeats(run: float, opening: float, seconds: float, *, fewest_runs: int = 1) -> Repeats:
    """Return the sessions of each model and the runs of each session that a process should have.

    They narrow the interval most for the time they take (Kalibera and Jones, section 6): the best
    number of runs is sqrt(cost of a session / cost of a run) * spread of runs / spread of sessions;
    that of sessions follows likewise from the cost and spread of processes.

    >>> repeats(run=20e-6, opening=0.002, seconds=1.5)
    Repeats(sessions=4, runs=625)
    >>> repeats(run=0.03, opening=0.04, seconds=1.5)
    Repeats(sessions=2, runs=6)

    Args:
        run: seconds of a run.
        opening: seconds of opening a session.
        seconds: time that a process may take; the fewest runs may exceed it.
        fewest_runs: of each session.
    """
    cost = opening + (1 + WARMUP_ROUNDS) * run
    fewest, most = SESSIONS
    useful = math.sqrt(2 * PROCESS_START_SECONDS / cost) * SESSION_SPREAD / PROCESS_SPREAD
    sessions = most if useful >= most else fewest
    best = math.sqrt(cost / run) * RUN_SPREAD / SESSION_SPREAD
    affordable = (seconds - PROCESS_START_SECONDS) / (2 * sessions) - cost
    runs = min(max(best, MIN_TIMED_SECONDS / (2 * sessions * run)), affordable / run)
    return Repeats(sessions, max(round(runs), fewest_runs))


def alternate(sides: Sequence[Run], rounds: int, clock: Clock, *, seed: int = 0) -> Times:
    """Warm all sides up, time them in turn, and return seconds, [side, round]."""
    warm_up(sides)
    return np.array(list(itertools.islice(in_turn(sides, clock, seed=seed), rounds))).T


def in_turn(sides: Sequence[Run], clock: Clock, *, seed: int = 0) -> Iterator[list[float]]:
    """Run rounds without end; yield the seconds of all sides after each.

    The order of a round is random, and the next round reverses it: a run at the beginning of a
    round or after another session takes about 1 % longer, and 3 to 10 % if it takes microseconds.
    """
    draws = np.random.default_rng(seed)
    order: list[int] = []
    for number in itertools.count():
        order = order[::-1] if number % 2 else draws.permutation(len(sides)).tolist()
        seconds = [0.0] * len(sides)
        for side in order:
            seconds[side] = seconds_of(sides[side], number, clock)
        yield seconds


def seconds_of(run: Run, count: int, clock: Clock) -> float:
    """Return the seconds of one run, at least 1 ns."""
    start = clock()
    run(count)
    return max(clock() - start, 1) * 1e-9


def warm_up(sides: Sequence[Run]) -> None:
    """Run all sides, untimed, for `WARMUP_ROUNDS` and `WARMUP_SECONDS`."""
    start = time.perf_counter()
    for count in itertools.count():
        if count >= WARMUP_ROUNDS and time.perf_counter() - start >= WARMUP_SECONDS:
            return
        for side in sides:
            side(count)
