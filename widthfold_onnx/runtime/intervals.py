"""Compare two models by the times of their runs: a ratio, its interval, a verdict.

The runs come from several sessions of both models in several processes (`runtime.clock`). The
sessions of the original are also compared with each other: their differences are noise, the A/A
control.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.results import SpeedVerdict
from widthfold_onnx.runtime.clock import Times

USUAL_SPREAD = 0.01
"""Assumed standard deviation of the log ratio of two sessions in one process; measured:
sqrt(2) * `clock.SESSION_SPREAD`, about 0.006."""

USUAL_WEIGHT = 2
"""Degrees of freedom of the assumed spread; it counts like so many further processes."""

MIN_PROCESSES = 4
HALF_WIDTH = 0.01
HALF_SHARE = 0.05
"""The interval of a log ratio is narrow enough if half its width is at most `HALF_WIDTH`, or at
most `HALF_SHARE` of the log ratio, and there are `MIN_PROCESSES`."""

MIN_DIFFERENCE = 1.02
"""Least ratio of two times that is called a difference, however steady the machine is."""

CONCLUSIVE_HALF_WIDTHS = 3.0
"""A ratio is surely above or below 1 if its log is this many half widths of its interval from 0.
One half width would do for a single test, but timing repeats the test until it succeeds."""

MAX_WIDTH_RATIO = 1.2
"""Timing of one session of each side ends when its interval is at most this many times as wide as
the spread of sessions alone makes it, which more runs cannot narrow."""

_RESAMPLES = 2000
_NORMAL = 1.96


@dataclass(frozen=True, eq=False)
class Pairing:
    """The result of paired timing.

    Attributes:
        samples: seconds of every run, [process, original or rewritten, session, run].
        ratio: original / rewritten: exp of the mean over processes and sessions of the median log
            ratio of runs. Above 1 the rewritten model is faster.
        low: lower end of its 95 % interval.
        high: upper end.
        control: the ratio of the sessions of the original to each other, minus 1. It has no
            interval; that of `ratio` allows for chance.
        converged: True if the interval is narrow enough.
        verdict: see `speed_verdict`.
    """

    samples: Times
    ratio: float
    low: float
    high: float
    control: float
    converged: bool
    verdict: SpeedVerdict

    @classmethod
    def of(cls, samples: Times) -> Self:
        """Compute all from `samples`."""
        logs = np.log(samples)
        log_ratio, log_low, log_high = interval(logs[:, 0] - logs[:, 1])
        copies = logs[:, 0, ::2] - logs[:, 0, 1::2]
        control = math.expm1(abs(interval(copies)[0]))
        enough = max(HALF_WIDTH, HALF_SHARE * abs(log_ratio))
        narrow = (log_high - log_low) / 2 <= enough and len(samples) >= MIN_PROCESSES
        low, high = math.exp(log_low), math.exp(log_high)
        verdict = speed_verdict(low, high, control)
        return cls(samples, math.exp(log_ratio), low, high, control, narrow, verdict)

    @property
    def is_conclusive(self) -> bool:
        """True if it is beyond doubt, and beyond noise, which side is faster."""
        is_judged = self.verdict in ("faster", "slower")
        return is_judged and _is_conclusive(*map(math.log, (self.ratio, self.low, self.high)))

    @property
    def pairs(self) -> int:
        """Number of runs of each side."""
        return self.samples[:, 0].size


def interval(logs: Array) -> tuple[float, float, float]:
    """Return the mean of the sessions' medians with its 95 % interval.

    Each end is the outer one of two intervals:

    - A bootstrap over processes and their sessions. It includes the spread within a process, but is
      too narrow for few processes.
    - Student's t over the means of the processes, which is right for any number of them. As a few
      means may agree by chance, `USUAL_SPREAD` counts as well, as in moderated tests (Smyth, Linear
      models and empirical Bayes methods, 2004). So even one process has an interval.

    Runs are not resampled: the medians already contain their noise, and it would count twice.

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
    """Return the median log ratio of two sessions, with a 95 % interval for any other sessions.

    The interval combines a bootstrap over the runs with `USUAL_SPREAD`. Instead of resampling n
    values, the bootstrap draws the rank of their median: the median of n uniform ranks has the
    distribution Beta((n + 1) / 2, (n + 1) / 2) (David and Nagaraja, Order Statistics, section 2.1).

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


def is_settled(numerator: Times, denominator: Times) -> bool:
    """Check whether two sessions were timed enough: the interval is narrow, or conclusive.

    Both arrays hold seconds, [pair].
    """
    middle, low, high = one_session(np.log(numerator / denominator))
    is_narrow = high - low <= MAX_WIDTH_RATIO * 2 * _NORMAL * USUAL_SPREAD
    return is_narrow or _is_conclusive(middle, low, high)


def is_conclusively_faster(times: Times, others: Times) -> bool:
    """Check whether a session is surely faster than another; both arrays hold seconds, [pair]."""
    middle, low, high = one_session(np.log(others / times))
    return middle > 0 and _is_conclusive(middle, low, high)


def _is_conclusive(middle: float, low: float, high: float) -> bool:
    return abs(middle) > CONCLUSIVE_HALF_WIDTHS * max(high - middle, middle - low)


def noise(control: float) -> float:
    """Return the least ratio beyond noise: 1.02, or 1 + 2 * control if that is more."""
    return max(MIN_DIFFERENCE, 1 + 2 * control)


def speed_verdict(low: float, high: float, control: float) -> SpeedVerdict:
    """Return the verdict on an interval of original / rewritten.

    Faster needs the whole interval above `noise(control)`, slower the mirror image, and no
    difference an interval within 2 % of 1.

    >>> speed_verdict(1.09, 1.11, 0.01), speed_verdict(0.90, 0.92, 0.01)
    ('faster', 'slower')
    >>> speed_verdict(0.99, 1.01, 0.05)
    'no difference'
    >>> speed_verdict(1.09, 1.11, 0.06), speed_verdict(0.90, 1.30, 0.01)
    ('inconclusive', 'inconclusive')
    """
    bar = noise(control)
    if low > bar:
        return "faster"
    if high < 1 / bar:
        return "slower"
    within = low >= 1 / MIN_DIFFERENCE and high <= MIN_DIFFERENCE
    return "no difference" if within else "inconclusive"
