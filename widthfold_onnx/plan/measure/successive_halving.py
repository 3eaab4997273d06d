"""Race the forms of one layer against the layer as it is, in a child process.

Successive halving: every form runs a few times in turn with the layer as it is, the better ones
run more often. Pairs of neighbouring runs are compared, as in `runtime.clock`, so that a machine
that slows down for a while slows both sides. A form is not run at all if its multiply-adds alone
take longer than the layer as it is, even at a rate that no layer reaches on this machine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import FoldOptions, RuntimeOptions
from widthfold_onnx.plan.workload.build import reformed
from widthfold_onnx.plan.workload.workloads import Workload
from widthfold_onnx.results import Measurement
from widthfold_onnx.results.store import NO_SUCH_FORM, NO_TIME, OUT_OF_REACH, lost, timed
from widthfold_onnx.runtime.ceilings import RUNS, operations
from widthfold_onnx.runtime.clock import Clock, Run, clock_of, measured
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.sessions.session import Level, open_session


class Rung(NamedTuple):
    """One round: the number of best forms that run, and the pairs of runs of each."""

    forms: int
    pairs: int


RUNGS = (Rung(sys.maxsize, 4), Rung(6, 10), Rung(2, 40))

HOPELESS = 2.0
"""A form is not run again if it is this many times slower in its first pairs than the layer as it
is, or than the best form so far."""

FIRST_PAIRS = 2
"""One pair does not tell: what else the machine did at that moment made the fastest form of a layer
three times as slow."""

FORM_SECONDS = 10.0
"""Seconds after which a form gets no more pairs than the first rung has."""

PEAK_MARGIN = 1.5
"""How much faster than the best matrix product measured here a layer might compute."""

UNFAIR = 2.0
"""A layer may take this many times its part of the time left: most take less."""

OPENING = 0.005
"""Seconds that opening a form takes, by run of its first pairs."""

FIRST_SHARE = 0.7
"""Share of a layer's time after which no further form starts; the first one always does."""


@dataclass(frozen=True)
class Setup:
    """The settings of a race: how models run, limits of forms, level and rungs."""

    how: RuntimeOptions
    fold: FoldOptions
    level: Level = Level.ALL
    rungs: tuple[Rung, ...] = RUNGS


@dataclass(frozen=True)
class Began:
    """A form is about to run for the first time; "" is the layer as it is."""

    subject: str
    key: str


@dataclass(frozen=True)
class Ran:
    """The result of a form."""

    subject: str
    key: str
    found: Measurement


@dataclass(frozen=True)
class Done:
    """All forms of a layer are done."""

    subject: str


Report = Callable[[Began | Ran | Done], None]
Times = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
"""Seconds of the layer as it is and of a form, by pair."""


def race(workloads: Sequence[Workload], setup: Setup, seconds: float, *, report: Report) -> None:
    """Race all forms of all workloads, and report as they run.

    Args:
        workloads: in the order in which they are raced.
        setup: the settings.
        seconds: time that all of them together should take.
        report: gets every start and every result.

    Raises:
        UnverifiedError: the runtime cannot be used, or does not run a layer as it is.
    """
    end = time.perf_counter() + seconds
    with tempfile.TemporaryDirectory() as folder:
        track = _Runner(setup, Path(folder))
        peak = track.peak()
        for index, workload in enumerate(workloads):
            report(Began(workload.subject, ""))
            part = UNFAIR * _need(workload) / sum(map(_need, [workload, *workloads[index:]]))
            share = part * (end - time.perf_counter())
            for ran in _race(workload, track, peak, share, report):
                report(ran)
            report(Done(workload.subject))


def _need(workload: Workload) -> float:
    """Return the time that a race needs, in seconds for one run of every form."""
    return (len(workload.forms) + 1) * (workload.predicted + OPENING)


def _race(
    workload: Workload, track: _Runner, peak: float, seconds: float, report: Report
) -> Iterator[Ran]:
    start = time.perf_counter()
    first, *later = track.setup.rungs
    original = track.runner(workload.model)
    _, own = _pairs(track.clock, original, original, first.pairs)
    usual = float(np.median(own))
    yield Ran(workload.subject, "", timed(1.0, 1.0, 1.0, usual, len(own)))
    times: dict[str, Times] = {}
    hopeless: set[str] = set()

    def late(share: float) -> bool:
        return time.perf_counter() - start > share * seconds

    def run(key: str, pairs: int) -> str:
        """Run a form; return why there is no result, "" if there is one."""
        report(Began(workload.subject, key))
        model = reformed(workload, key, track.setup.fold)
        if model is None:
            return NO_SUCH_FORM
        try:
            form = track.runner(model)
            if key in times:
                found = _pairs(track.clock, original, form, pairs)
            else:
                found = _pairs(track.clock, original, form, FIRST_PAIRS)
                best = max((_ratio(*pair) for pair in times.values()), default=1.0)
                if HOPELESS * _ratio(*found) < max(best, 1.0):
                    hopeless.add(key)
                elif pairs > FIRST_PAIRS:
                    more = _pairs(track.clock, original, form, pairs - FIRST_PAIRS, warm=True)
                    found = (
                        np.concatenate([found[0], more[0]]),
                        np.concatenate([found[1], more[1]]),
                    )
        except UnverifiedError as error:
            return str(error)
        times[key] = found
        return ""

    for form in workload.forms:
        if out_of_reach(form.macs, usual, peak):
            why = OUT_OF_REACH
        elif times and late(FIRST_SHARE):
            why = NO_TIME
        else:
            why = run(form.key, first.pairs)
        if why:
            yield Ran(workload.subject, form.key, lost(why))
    for rung in later:
        running = [key for key in times if key not in hopeless]
        for key in sorted(running, key=lambda key: -_ratio(*times[key]))[: rung.forms]:
            if not late(1.0):
                run(key, rung.pairs)
    for key, pairs in times.items():
        yield Ran(workload.subject, key, measured(*pairs))


def out_of_reach(macs: float, usual: float, peak: float) -> bool:
    """Check whether a form cannot win: its multiply-adds alone take longer than the layer as it is.

    Args:
        macs: multiply-adds of one run of the form.
        usual: seconds of the layer as it is.
        peak: floating-point operations per second of the best matrix product.
    """
    return 2 * macs > usual * peak * PEAK_MARGIN


def _ratio(base: Array, form: Array) -> float:
    """Return the ratio of the shortest times: whatever disturbs one of a few runs prolongs it."""
    return float(base.min() / form.min())


def _pairs(clock: Clock, original: Run, form: Run, rounds: int, *, warm: bool = False) -> Times:
    """Return the seconds of both in alternating order, after one run of each unless `warm`."""
    start = time.perf_counter()
    sides = (original, form)
    times: list[list[float]] = []
    for count in range(0 if warm else -1, rounds):
        pair = [0.0, 0.0]
        for side in (0, 1) if count % 2 else (1, 0):
            before = clock()
            sides[side](count)
            pair[side] = max(clock() - before, 1) * 1e-9
        times.append(pair)
        if len(times) > RUNGS[0].pairs and time.perf_counter() - start > FORM_SECONDS:
            break
    base, other = np.array(times[0 if warm else 1 :]).T
    return base, other


class _Runner:
    """Opens models with the settings of the race."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.setup = setup
        self.clock = clock_of(setup.how)
        self._file = folder / "layer.onnx"

    def runner(self, model: bytes) -> Run:
        """Return a call that runs a model once on random inputs.

        Raises:
            UnverifiedError: the runtime does not load it.
        """
        self._file.write_bytes(model)
        session = open_session(self._file, self.setup.how, self.setup.level, tf32=True)
        shapes = {p.name: tuple(int(d or 1) for d in p.dims) for p in session.inputs}
        once = session.bound(random_feeds(session.inputs, 0, shapes))
        return lambda count: once()

    def peak(self) -> float:
        """Return the floating-point operations per second of the best matrix product."""
        return operations(self._shortest)

    def _shortest(self, model: onnx.ModelProto) -> float:
        run = self.runner(model.SerializeToString())
        times, _ = _pairs(self.clock, run, run, RUNS)
        return float(times.min())
