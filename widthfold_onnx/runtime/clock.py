"""Time runs in turn, and say how often to repeat them.

Identical models timed one after the other were seen to differ by 2.94x on a busy host, so all runs
are interleaved. Sessions of one file differ, too, by where their memory lies, and so do processes.
So both are repeated (Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013).
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
"""Runs once; the argument counts the rounds, so that all sides of a pair take the same inputs."""

Clock = Callable[[], int]
"""Nanoseconds, from any origin."""

Times = npt.NDArray[np.float64]
"""Seconds of runs. Whoever returns them names the axes: a round runs every side once, a pair is a
round of two sides."""

WARMUP_ROUNDS = 1
WARMUP_SECONDS = 0.1
"""After their first run, sessions run untimed for that long, and at least so many rounds: two runs
were seen to take 5 to 250 % more than later ones, all runs of the first milliseconds some percent.
"""

PROCESS_START_SECONDS = 0.4
"""Seconds that a process takes to start and to load the runtime."""

SESSIONS = (2, 4)
"""Fewest and most sessions of each model in a process; even, as the control pairs those of one."""

MIN_TIMED_SECONDS = 0.1
"""A process times for at least that many seconds, because starting it takes longer."""

RUN_SPREAD = 0.038
SESSION_SPREAD = 0.004
PROCESS_SPREAD = 0.004
"""Standard deviations of one run, of a session and of the ratio in a process, relative.

Measured on nets of 0.02 to 34 ms, in ten processes of three or four sessions of an original and a
fold each (runs 1.8 to 8 %, sessions 0.3 to 0.5 %, processes 0.1 to 0.7 %, a quantized net 2.3 %).
"""


class Repeats(NamedTuple):
    """Numbers of sessions of each model in a process, and of runs of each session."""

    sessions: int
    runs: int


def clock_of(options: RuntimeOptions) -> Clock:
    """Return the clock of a run: thread processor time if one thread does all, else wall time.

    On a busy host the wall time of a run includes other processes. One thread on the CPU works in
    the thread that calls, so its processor time is what a run would take on a free core: paired,
    identical models differed by 2.0 % instead of 4.8 % (standard deviation on a loaded host). With
    any option of its own a provider may work elsewhere. Windows has no processor time that is fine
    enough.
    """
    return time.thread_time_ns if clock_name(options) == "thread" else time.perf_counter_ns


def clock_name(options: RuntimeOptions) -> Literal["wall", "thread"]:
    """Return the name of the clock that `clock_of` chooses."""
    in_caller = (
        traits_of(options.provider).in_caller
        and options.threads == 1
        and not options.provider_options
    )
    return "thread" if in_caller and has_fine_thread_clock() else "wall"


def repeats(run: float, opening: float, seconds: float, *, fewest_runs: int = 1) -> Repeats:
    """Return the sessions and runs of a process that narrow the interval most for their time.

    A process repeats sessions, and a session repeats runs. The best number of runs is sqrt(cost of
    a session / cost of a run) * spread of runs / spread of sessions. The best number of sessions
    follows likewise from processes (Kalibera and Jones, section 6).

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
    """Return the seconds of all sides by round, [side, round]; they are warmed up before."""
    warm_up(sides)
    return np.array(list(itertools.islice(in_turn(sides, clock, seed=seed), rounds))).T


def in_turn(sides: Sequence[Run], clock: Clock, *, seed: int = 0) -> Iterator[list[float]]:
    """Run all sides once, again and again; yield their seconds after each round.

    The order is random, and every second round has it backwards. At the beginning of a round, or
    after another session, a run took 1 % longer; in models of some microseconds 3 to 10 %.
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
    """Return the seconds of a run, which are never 0."""
    start = clock()
    run(count)
    return max(clock() - start, 1) * 1e-9


def warm_up(sides: Sequence[Run]) -> None:
    """Run all sides until their first, slow runs are over."""
    start = time.perf_counter()
    for count in itertools.count():
        if count >= WARMUP_ROUNDS and time.perf_counter() - start >= WARMUP_SECONDS:
            return
        for side in sides:
            side(count)
