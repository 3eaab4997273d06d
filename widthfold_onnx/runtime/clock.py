"""Compares two models by runs of several sessions in several processes.

Identical models timed one after the other were seen to differ by 2.94x on a busy host, so all runs
are interleaved. Sessions of one file differ too, by where their memory lies, and so do processes,
so both are repeated (Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013).
The original has as many sessions as the rewritten model: what they show against each other is
noise, the A/A control.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from widthfold_onnx.arrays import Array
from widthfold_onnx.options import RuntimeOptions
from widthfold_onnx.results import Measurement
from widthfold_onnx.results.store import timed
from widthfold_onnx.runtime.sessions.descriptions import described

Run = Callable[[int], object]
"""Runs once; the argument counts the rounds, so that all sides of a pair take the same inputs."""

Verdict = Literal["faster", "slower", "no difference", "inconclusive"]
Clock = Callable[[], int]
"""Nanoseconds, from any origin."""

Times = npt.NDArray[np.float64]

WARMUP_ROUNDS = 1
WARMUP_SECONDS = 0.1
"""After their first run, sessions run untimed for that long, and at least so many rounds: two runs
were seen to take 5 to 250 % more than later ones, all runs of the first milliseconds some percent.
"""

START = 0.4
"""Seconds that a process takes to start and to load the runtime."""

SESSIONS = (2, 4)
"""Fewest and most sessions of each model in a process; even, as the control pairs those of one."""

SHORTEST = 0.1
"""A process times for at least that many seconds, because starting it takes longer."""

RUN_SPREAD = 0.038
SESSION_SPREAD = 0.004
PROCESS_SPREAD = 0.004
"""Standard deviations of one run, of a session and of the ratio in a process, relative.

Measured on nets of 0.02 to 34 ms, in ten processes of three or four sessions of an original and a
fold each (runs 1.8 to 8 %, sessions 0.3 to 0.5 %, processes 0.1 to 0.7 %, a quantized net 2.3 %).
"""

USUAL_SPREAD = 0.01
"""Standard deviation of the log ratio of two sessions in one process, of the same measurement."""

USUAL_WEIGHT = 2
"""Degrees of freedom of that spread beside those of the measured processes."""

MIN_PROCESSES = 4
HALF_WIDTH = 0.01
HALF_SHARE = 0.05
"""The interval is narrow enough at this half width, of the log ratio, or at this share of the log
ratio, from so many processes on."""

SMALLEST_DIFFERENCE = 1.02
"""Least ratio of two times that is called a difference, however steady the machine is."""

_RESAMPLES = 2000
_NORMAL = 1.96
_NANO = 1e-9


class Repeats(NamedTuple):
    """Count what a process repeats: sessions of each model, and runs of each session."""

    sessions: int
    runs: int


@dataclass(frozen=True, eq=False)
class Pairing:
    """The result of paired timing.

    Attributes:
        samples: seconds of every run, [process, original or rewritten, session, run].
        ratio: original / rewritten, the mean over processes and sessions of the log of medians;
            above 1 the rewritten is faster.
        low: lower end of its 95 % interval.
        high: upper end.
        control: deviation from 1 of the sessions of the original against each other; how far chance
            reaches is in the interval of the ratio already.
        converged: the interval became narrow within the budget.
        verdict: see `judge`.
    """

    samples: Times
    ratio: float
    low: float
    high: float
    control: float
    converged: bool
    verdict: Verdict

    @classmethod
    def of(cls, samples: Times) -> Self:
        """Compare the sides of `samples`."""
        logs = np.log(samples)
        ratio, low, high = interval(logs[:, 0] - logs[:, 1])
        copies = logs[:, 0, ::2] - logs[:, 0, 1::2]
        control = math.expm1(abs(interval(copies)[0]))
        enough = max(HALF_WIDTH, HALF_SHARE * abs(ratio))
        narrow = (high - low) / 2 <= enough and len(samples) >= MIN_PROCESSES
        low, high = math.exp(low), math.exp(high)
        verdict = judge(low, high, control)
        return cls(samples, math.exp(ratio), low, high, control, narrow, verdict)

    @property
    def pairs(self) -> int:
        """Number of runs of each side."""
        return self.samples[:, 0].size


def clock_of(how: RuntimeOptions) -> Clock:
    """Return the clock of a run: thread processor time if one thread does all, else wall time.

    On a busy host the wall time of a run includes other processes. One thread on the CPU works in
    the thread that calls, so its processor time is what a run would take on a free core: paired,
    identical models differed by 2.0 % instead of 4.8 % (standard deviation on a loaded host). With
    any option of its own a provider may work elsewhere.
    """
    return time.thread_time_ns if clock_name(how) == "thread" else time.perf_counter_ns


def clock_name(how: RuntimeOptions) -> Literal["wall", "thread"]:
    """Return the name of the clock that `clock_of` chooses."""
    own = described(how.provider).in_caller and how.threads == 1 and not how.provider_options
    return "thread" if own else "wall"


def repeats(run: float, opening: float, seconds: float) -> Repeats:
    """Return how often a process should repeat, so that its time tells most.

    A level is repeated by the square root of what its repetition saves: the cost of the level above
    over its own, times its variance over that of the level above (Kalibera and Jones, section 6).

    >>> repeats(run=20e-6, opening=0.002, seconds=1.5)
    Repeats(sessions=4, runs=625)
    >>> repeats(run=0.03, opening=0.04, seconds=1.5)
    Repeats(sessions=2, runs=6)

    Args:
        run: seconds of a run.
        opening: seconds of opening a session.
        seconds: time that a process may take, as far as one run of each session fits.
    """
    opened = opening + (1 + WARMUP_ROUNDS) * run
    fewest, most = SESSIONS
    useful = math.sqrt(2 * START / opened) * SESSION_SPREAD / PROCESS_SPREAD
    sessions = most if useful >= most else fewest
    best = math.sqrt(opened / run) * RUN_SPREAD / SESSION_SPREAD
    fitting = (seconds - START) / (2 * sessions) - opened
    runs = min(max(best, SHORTEST / (2 * sessions * run)), fitting / run)
    return Repeats(sessions, max(round(runs), 1))


def alternate(
    sides: Sequence[Run], rounds: int, clock: Clock, *, seed: int = 0, warm: bool = False
) -> Times:
    """Return the seconds of all sides by round, [side, round]; what is not `warm` is warmed up.

    The order is random, and every second round has it backwards: a run was seen to take 1 % longer
    at the beginning of a round, or after another session than after its own.
    """
    if not warm:
        _warm_up(sides)
    draws = np.random.default_rng(seed)
    times = np.zeros((len(sides), rounds))
    order: list[int] = []
    for number in range(rounds):
        order = order[::-1] if number % 2 else draws.permutation(len(sides)).tolist()
        for side in order:
            before = clock()
            sides[side](number)
            times[side, number] = max(clock() - before, 1) * _NANO
    return times


def _warm_up(sides: Sequence[Run]) -> None:
    start = time.perf_counter()
    for count in itertools.count():
        if count >= WARMUP_ROUNDS and time.perf_counter() - start >= WARMUP_SECONDS:
            return
        for side in sides:
            side(count)


def interval(logs: Array) -> tuple[float, float, float]:
    """Return the mean of the sessions' medians with its 95 % interval.

    Each end is the further one of two. A bootstrap over processes and their sessions knows what
    lies within a process, but is too narrow for few of them. Student's t over the means of
    processes is right for any number, but few agree by chance. So the usual spread counts as well,
    as in moderated tests (Smyth, Linear models and empirical Bayes methods, 2004), and even one
    process has an interval. Runs are not resampled: their noise is in the medians, and a bootstrap
    of few of them counts it twice.

    Args:
        logs: by process, session and run.
    """
    from scipy.special import stdtrit  # takes long to import, and most commands do not time

    medians = np.median(logs, axis=2)
    means = medians.mean(axis=1)
    middle, count = float(means.mean()), len(means)
    freedom = USUAL_WEIGHT + count - 1
    squares = USUAL_WEIGHT * USUAL_SPREAD**2 + float(((means - middle) ** 2).sum())
    half = float(stdtrit(freedom, 0.975)) * math.sqrt(squares / freedom / count)
    draws = np.random.default_rng(0)
    process = draws.integers(0, count, (_RESAMPLES, count, 1))
    session = draws.integers(0, medians.shape[1], (_RESAMPLES, *medians.shape))
    low, high = np.quantile(medians[process, session].mean(axis=(1, 2)), (0.025, 0.975))
    return middle, min(float(low), middle - half), max(float(high), middle + half)


def one_session(logs: Array) -> tuple[float, float, float]:
    """Return the median of one session of each side with a 95 % interval for other sessions.

    That of the session itself is a bootstrap. A resample of n values is n uniform ranks; the median
    of n uniforms is Beta((n + 1) / 2, (n + 1) / 2). So the median's rank is drawn at once instead
    of n ranks (David and Nagaraja, Order Statistics, section 2.1).

    Args:
        logs: by run.
    """
    half = (len(logs) + 1) / 2
    ranks = np.random.default_rng(0).beta(half, half, _RESAMPLES) * len(logs)
    low, high = np.quantile(np.sort(logs)[ranks.astype(np.int64)], (0.025, 0.975))
    middle, usual = float(np.median(logs)), _NORMAL * USUAL_SPREAD
    return (
        middle,
        middle - math.hypot(middle - low, usual),
        middle + math.hypot(high - middle, usual),
    )


def measured(base: Times, other: Times) -> Measurement:
    """Return the measurement of one session of each side, by the seconds of pairs of runs."""
    ratio, low, high = map(math.exp, one_session(np.log(base / other)))
    return timed(ratio, low, high, float(np.median(other)), len(other))


def noise(control: float) -> float:
    """Return the least ratio beyond noise: 1.02, or 1 + 2 * control if that is more."""
    return max(SMALLEST_DIFFERENCE, 1 + 2 * control)


def judge(low: float, high: float, control: float) -> Verdict:
    """Return the verdict on an interval of original / rewritten.

    Faster needs the whole interval above `noise(control)`, slower the mirror image, and no
    difference an interval within 2 % of 1.

    >>> judge(1.09, 1.11, 0.01), judge(0.90, 0.92, 0.01)
    ('faster', 'slower')
    >>> judge(0.99, 1.01, 0.05)
    'no difference'
    >>> judge(1.09, 1.11, 0.06), judge(0.90, 1.30, 0.01), judge(1.01, 1.03, 0.01)
    ('inconclusive', 'inconclusive', 'inconclusive')
    """
    bar = noise(control)
    if low > bar:
        return "faster"
    if high < 1 / bar:
        return "slower"
    within = low >= 1 / SMALLEST_DIFFERENCE and high <= SMALLEST_DIFFERENCE
    return "no difference" if within else "inconclusive"
