"""Time two calls of this process against each other, where more processes would cost too much.

The interval covers one session of each side (`runtime.intervals.one_session`).
"""

from __future__ import annotations

import itertools
import math
import time
from typing import NamedTuple

import numpy as np

from widthfold_onnx.results import SpeedVerdict
from widthfold_onnx.runtime.clock import Clock, Run, Times, in_turn, warm_up
from widthfold_onnx.runtime.intervals import one_session, speed_verdict

FEWEST = 30
SECONDS = 1.5
"""Rounds that are run, and seconds that they take at least, as far as the budget lasts."""


class Pair(NamedTuple):
    """The result; `samples` are seconds by side (original, rewritten, copy) and round."""

    samples: Times
    ratio: float
    low: float
    high: float
    control: float
    verdict: SpeedVerdict


def paired(original: Run, rewritten: Run, copy: Run, *, budget: float, clock: Clock) -> Pair:
    """Time the original, the rewritten model and a copy of the original in one loop."""
    sides = (original, rewritten, copy)
    start = time.perf_counter()
    warm_up(sides)
    rounds = in_turn(sides, clock)
    began = time.perf_counter()
    next(rounds)
    once = time.perf_counter() - began
    remaining = min(start + budget - time.perf_counter(), max(SECONDS, FEWEST * once))
    samples = np.array(list(itertools.islice(rounds, max(int(remaining / once), 1)))).T
    first, second, third = np.log(samples)
    ratio, low, high = map(math.exp, one_session(first - second))
    control = math.expm1(max(map(abs, one_session(first - third))))
    return Pair(samples, ratio, low, high, control, speed_verdict(low, high, control))
