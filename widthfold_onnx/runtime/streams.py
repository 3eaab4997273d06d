"""Measures how many runs per second two models do when several streams of each run at once.

A stream is a thread with a session of its own; the runtime releases the interpreter's lock while it
runs. Blocks of both models alternate, in several processes, as the runs of
`runtime.paired_benchmark` do: streams share caches and memory, so a model that is faster alone may
lose that gain.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.results import Throughput
from widthfold_onnx.runtime.clock import START, WARMUP_SECONDS, Run
from widthfold_onnx.runtime.intervals import MIN_PROCESSES, interval
from widthfold_onnx.runtime.paired_benchmark import Contest, in_processes
from widthfold_onnx.runtime.sessions.session import Feeds
from widthfold_onnx.runtime.settings import Models, Setting, open_at, rounds_of

SHARE = 0.5
"""Share of the time budget that streams take."""

BLOCK_SECONDS = 0.1
"""A stream begins no further run in a block after that; it does one run at least."""

FEWEST = 2
"""Pairs of blocks in a process: in one of the two each model comes first."""

Rates = npt.NDArray[np.float64]


def throughput(found: Contest, seconds: float) -> Throughput:
    """Measure two models, each at its best setting, in as many processes as an interval needs.

    Args:
        found: the paired timing of both; its settings and inputs are used.
        seconds: after which no further process begins.

    Raises:
        UnverifiedError: a model does not run.
    """
    streams = found.options.streams
    each = max(seconds / MIN_PROCESSES, 2 * START) - START
    task = (found.models, found.choice.settings, streams, found.inputs.shared(streams), each)
    processes: list[Rates] = []
    for rates, late in in_processes(time_streams, *task, ends=time.perf_counter() + seconds):
        processes.append(rates)
        if late or len(processes) == MIN_PROCESSES:
            break
    ratio, low, high = map(math.exp, _ratio([np.log(new / old) for old, new in processes]))
    blocks = np.concatenate(processes, axis=1)
    return Throughput(
        streams=streams,
        original=round(float(np.median(blocks[0])), 3),
        rewritten=round(float(np.median(blocks[1])), 3),
        ratio=ratio,
        low=low,
        high=high,
        blocks=blocks.shape[1],
        processes=len(processes),
    )


def _ratio(logs: Sequence[Array]) -> tuple[float, float, float]:
    """Return the mean over processes of the median of pairs of blocks, with its 95 % interval.

    That is the interval of `intervals.interval` or Student's t over all pairs, the wider one: few
    blocks of wall time scatter more than medians of many runs, which `intervals.interval` expects.
    """
    from scipy.special import stdtrit  # takes long to import, and most commands do not time

    middle, low, high = interval(np.array([[[np.median(row)]] for row in logs]))
    pairs = np.concatenate(logs)
    half = float(stdtrit(len(pairs) - 1, 0.975) * pairs.std(ddof=1) / math.sqrt(len(pairs)))
    return middle, min(low, middle - half), max(high, middle + half)


def time_streams(
    models: Models,
    settings: tuple[Setting, Setting],
    streams: int,
    inputs: Sequence[Feeds],
    seconds: float,
    turn: int,
) -> Rates:
    """Time blocks of both models in turn; to be run in `runtime.child.isolated`.

    Args:
        models: original and rewritten.
        settings: of both.
        streams: how many.
        inputs: the sets that take turns.
        seconds: after which no further pair of blocks begins; there are two at least.
        turn: number of the process; it decides which model comes first.

    Returns:
        Runs per second [original or rewritten, pair of blocks].

    Raises:
        UnverifiedError: a model does not run.
    """
    ends = time.perf_counter() + seconds
    sides = [
        [rounds_of(open_at(model, setting), inputs) for _ in range(streams)]
        for model, setting in zip(models, settings, strict=True)
    ]
    pairs: list[list[float]] = []
    with ThreadPoolExecutor(streams) as pool:
        for runs in sides:
            _rate(pool, runs, WARMUP_SECONDS)
        while len(pairs) < FEWEST or time.perf_counter() < ends:
            pair = [0.0, 0.0]
            for side in (0, 1) if (len(pairs) + turn) % 2 == 0 else (1, 0):
                pair[side] = _rate(pool, sides[side], BLOCK_SECONDS)
            pairs.append(pair)
    return np.array(pairs).T


def _rate(pool: Executor, runs: Sequence[Run], seconds: float) -> float:
    """Return the runs per second of streams that begin together: the sum of their rates.

    The time of each ends with its own last run, so that none is counted while it waits for others.
    It begins with that of all: where cores are fewer, the others have them until a stream starts.
    """
    starts: list[float] = []
    together = threading.Barrier(len(runs), lambda: starts.append(time.perf_counter()))
    try:
        rates = pool.map(partial(_stream, together, starts, seconds), runs)
    except RuntimeError as error:  # no thread for each, so that the others would wait for ever
        together.abort()
        raise UnverifiedError(f"{len(runs)} streams do not run at once: {error}") from error
    return sum(rates)


def _stream(together: threading.Barrier, starts: list[float], seconds: float, run: Run) -> float:
    together.wait()
    (start,) = starts
    for count in itertools.count(1):
        run(count)
        passed = time.perf_counter() - start
        if passed >= seconds:
            break
    return count / passed
