"""Times two functions against each other, with a control that measures the machine's noise.

Identical models timed one after the other were seen to differ by 2.94x on a busy host. So all
runs are interleaved, the statistic is the median of paired log ratios, and a second copy of the
original takes part in the same loop: what it shows against the first copy is noise.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from widthfold_onnx.arrays import Array
from widthfold_onnx.options import Provider

Run = Callable[[int], object]
"""Runs once; the argument counts the rounds, so that all sides of a pair take the same inputs."""

Verdict = Literal["faster", "slower", "no difference", "inconclusive"]
Clock = Callable[[], int]
"""Nanoseconds, from any origin."""

WARMUP_ROUNDS = 10
WARMUP_SECONDS = 0.2
WARMUP_SHARE = 0.25
"""Warm-up stops at this share of the budget even if it is not complete."""

MIN_PAIRS = 30
MIN_SECONDS = 0.5
HALF_WIDTH = 0.01
"""The interval is narrow enough at this half width, of the log ratio."""

MIN_CLEAR = 6
"""Below six pairs not even pairs that all agree exclude 1 at 95 %: 2 * 0.5**5 > 0.05."""

SMALLEST_DIFFERENCE = 1.02
"""Least ratio of two times that is called a difference, however steady the machine is."""

_RESAMPLES = 4000
_NANO = 1e-9


@dataclass(frozen=True, eq=False)
class Pairing:
    """The result of paired timing.

    Attributes:
        samples: seconds of every run, [rounds, 3]: original, rewritten, copy.
        ratio: exp of the median log of original / rewritten; above 1 the rewritten is faster.
        low: lower end of its bootstrap 95 % interval.
        high: upper end.
        control: largest deviation from 1 of the original against its copy, interval included.
        converged: the interval became narrow within the budget.
        verdict: see `judge`.
    """

    samples: npt.NDArray[np.float64]
    ratio: float
    low: float
    high: float
    control: float
    converged: bool
    verdict: Verdict


def clock_of(provider: Provider, threads: int) -> Clock:
    """Return the clock of a run: thread processor time if one thread does all, else wall time.

    On a busy host the wall time of a run includes other processes. One thread on the CPU works in
    the thread that calls, so its processor time is what a run would take on a free core: paired,
    identical models differed by 2.0 % instead of 4.8 % (standard deviation on a loaded host).
    """
    return (
        time.thread_time_ns if clock_name(provider, threads) == "thread" else time.perf_counter_ns
    )


def clock_name(provider: Provider, threads: int) -> Literal["wall", "thread"]:
    """Return the name of the clock that `clock_of` chooses."""
    return "thread" if provider is Provider.CPU and threads == 1 else "wall"


def paired(
    original: Run,
    rewritten: Run,
    copy: Run,
    *,
    budget: float,
    fewest: int = 1,
    clock: Clock = time.perf_counter_ns,
    wall: Clock = time.perf_counter_ns,
) -> Pairing:
    """Time the original, the rewritten model and a copy of the original in one loop.

    All six orders of the three take turns, so that none is always first or always follows the
    same one.

    Args:
        original: side A.
        rewritten: side B.
        copy: side A again, in a session of its own.
        budget: seconds for everything; one warm-up round is always run.
        fewest: pairs that are run even if they take longer.
        clock: measures a run, see `clock_of`.
        wall: measures the budget.
    """
    sides = (original, rewritten, copy)
    start = wall()
    _warm_up(sides, budget * WARMUP_SHARE, clock, wall)
    orders = itertools.cycle(itertools.permutations(range(3)))
    rounds: list[list[int]] = []
    check_at = MIN_PAIRS
    while True:
        times = [0, 0, 0]
        for side in next(orders):
            before = clock()
            sides[side](len(rounds))
            times[side] = max(clock() - before, 1)
        rounds.append(times)
        late = (wall() - start) * _NANO >= budget and len(rounds) >= fewest
        if late or len(rounds) >= check_at:
            samples = np.array(rounds, dtype=np.float64) * _NANO
            ratio, low, high = interval(np.log(samples[:, 0] / samples[:, 1]))
            narrow = (high - low) / 2 <= HALF_WIDTH and len(rounds) >= MIN_PAIRS
            enough = samples[:, :2].sum(axis=0).min() >= MIN_SECONDS
            if late or (narrow and enough):
                break
            check_at += max(check_at // 4, 1)  # sparse checks: each one sorts all the rounds
    control = math.expm1(max(map(abs, interval(np.log(samples[:, 0] / samples[:, 2])))))
    low, high, converged = math.exp(low), math.exp(high), bool(narrow and enough)
    return Pairing(
        samples=samples,
        ratio=math.exp(ratio),
        low=low,
        high=high,
        control=control,
        converged=converged,
        verdict=judge(low, high, control, len(rounds), converged=converged),
    )


def noise(control: float) -> float:
    """Return the least ratio beyond noise: 1.02, or 1 + 2 * control if that is more."""
    return max(SMALLEST_DIFFERENCE, 1 + 2 * control)


def judge(low: float, high: float, control: float, pairs: int, *, converged: bool) -> Verdict:
    """Return the verdict on an interval of original / rewritten.

    Faster needs the whole interval above `noise(control)`, slower the mirror image.

    >>> judge(1.09, 1.11, 0.01, 50, converged=True)
    'faster'
    >>> judge(1.09, 1.11, 0.05, 50, converged=True)
    'no difference'
    >>> judge(0.90, 1.30, 0.01, 50, converged=False)
    'inconclusive'
    """
    bar = noise(control)
    if pairs >= MIN_CLEAR:
        if low > bar:
            return "faster"
        if high < 1 / bar:
            return "slower"
    return "no difference" if converged else "inconclusive"


def _warm_up(sides: tuple[Run, ...], limit: float, clock: Clock, wall: Clock) -> None:
    start = wall()
    spent = [0] * len(sides)
    for count in itertools.count(1):
        for index, side in enumerate(sides):
            before = clock()
            side(count)
            spent[index] += clock() - before
        warm = count >= WARMUP_ROUNDS and min(spent) * _NANO >= WARMUP_SECONDS
        if warm or (wall() - start) * _NANO >= limit:
            return


def interval(values: Array) -> tuple[float, float, float]:
    """Return the median and its bootstrap 95 % interval.

    A resample of n values is n uniform ranks; the median of n uniforms is Beta((n + 1) / 2,
    (n + 1) / 2). So the median's rank is drawn at once instead of n ranks (David and Nagaraja,
    Order Statistics, section 2.1).
    """
    ordered = np.sort(values)
    count = len(ordered)
    half = (count + 1) / 2
    ranks = np.random.default_rng(0).beta(half, half, _RESAMPLES) * count
    low, high = np.quantile(ordered[ranks.astype(np.int64)], (0.025, 0.975))
    return float(np.median(ordered)), float(low), float(high)
