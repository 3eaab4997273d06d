"""Race the forms of one layer against the layer as it is; runs in a child process.

Successive halving: every form runs a few times in turn with the layer as it is, the better ones
run more often. Pairs of neighbouring runs are compared, as in `runtime.clock`, so that a machine
that slows down for a while does so for both sides. A form is not run at all if its multiply-adds
alone would take longer than the layer takes as it is, at a rate that no layer here reaches.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import FoldOptions, Provider
from widthfold_onnx.plan.units import Unit, reformed
from widthfold_onnx.runtime.clock import Run, interval
from widthfold_onnx.runtime.feeds import random_feeds
from widthfold_onnx.runtime.session import Level, open_session

RUNGS = ((4, 6), (10, 3), (40, 1))
"""Pairs so far, and how many forms go on; the last rung is run by those that it names."""

HOPELESS = 2.0
"""A form whose first pair is slower than this is not run again."""

PEAK_MARGIN = 1.5
"""How much faster than the best matrix product measured here a layer might compute."""

PEAK_EXTENT = 512
PEAK_RUNS = 15
UNIT_SECONDS = 12.0


@dataclass(frozen=True)
class Setup:
    """Where the race takes place."""

    provider: Provider
    provider_options: tuple[tuple[str, str], ...]
    threads: int
    fold: FoldOptions


@dataclass(frozen=True)
class Began:
    """A form is about to run for the first time; "" is the layer as it is."""

    subject: str
    key: str


@dataclass(frozen=True)
class Ran:
    """What the pairs of a form say: time as it is / time of the form, and seconds of the form.

    `reason` says why a form was not run; unless it is `final`, another race may run it.
    """

    subject: str
    key: str
    ratio: float
    low: float
    high: float
    seconds: float
    pairs: int
    reason: str = ""
    final: bool = True


@dataclass(frozen=True)
class Done:
    """Nothing more will be said of this layer."""

    subject: str


Report = Callable[[Began | Ran | Done], None]


def race(
    units: Iterable[Unit], setup: Setup, *, report: Callable[[Began | Ran | Done], None]
) -> None:
    """Race all forms of all units, and report as they run.

    Raises:
        UnverifiedError: the runtime cannot be used, or does not run a layer as it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        track = _Track(setup, Path(folder))
        peak = track.peak()
        for unit in units:
            report(Began(unit.subject, ""))
            _race(unit, track, peak, report)
            report(Done(unit.subject))


def _race(unit: Unit, track: _Track, peak: float, report: Report) -> None:
    start = time.perf_counter()
    original = track.runner(unit.model)
    _, own = _pairs(original, original, 2)
    seconds = float(np.median(own))
    report(Ran(unit.subject, "", 1.0, 1.0, 1.0, seconds, len(own)))
    times: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for key, macs in sorted(unit.forms, key=lambda form: (form[1], form[0])):
        if 2 * macs > seconds * peak * PEAK_MARGIN:
            report(_nothing(unit, key, "its multiply-adds alone would take longer"))
            continue
        if time.perf_counter() - start > UNIT_SECONDS:
            report(_nothing(unit, key, "no time was left", final=False))
            continue
        report(Began(unit.subject, key))
        try:
            model = reformed(unit, key, track.setup.fold)
            form = None if model is None else track.runner(model)
            if form is None:
                report(_nothing(unit, key, "it does not exist at these extents"))
                continue
            pairs = _pairs(original, form, 1)
            if pairs[1][0] < HOPELESS * pairs[0][0]:
                pairs = _pairs(original, form, RUNGS[0][0])
        except UnverifiedError as error:
            report(_nothing(unit, key, str(error)))
            continue
        times[key] = pairs
    left = list(times)
    for (_, kept), (rounds, _) in itertools.pairwise(RUNGS):
        left = sorted(left, key=lambda key: -_ratio(*times[key]))[:kept]
        for key in left:
            model = reformed(unit, key, track.setup.fold)
            if model is not None and time.perf_counter() - start < 2 * UNIT_SECONDS:
                report(Began(unit.subject, key))
                times[key] = _pairs(original, track.runner(model), rounds)
    for key, (base, form_times) in times.items():
        middle, low, high = map(math.exp, interval(np.log(base / form_times)))
        median = float(np.median(form_times))
        report(Ran(unit.subject, key, middle, low, high, median, len(base)))


def _nothing(unit: Unit, key: str, reason: str, *, final: bool = True) -> Ran:
    return Ran(unit.subject, key, 0.0, 0.0, 0.0, 0.0, 0, reason, final)


def _ratio(base: np.ndarray, form: np.ndarray) -> float:
    return float(np.median(base / form))


def _pairs(original: Run, form: Run, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of both in alternating order, after one run of each to warm up."""
    sides = (original, form)
    times = np.zeros((rounds, 2))
    for count in range(-1, rounds):
        for side in (0, 1) if count % 2 else (1, 0):
            before = time.perf_counter_ns()
            sides[side](count)
            if count >= 0:
                times[count, side] = max(time.perf_counter_ns() - before, 1) * 1e-9
    return times[:, 0], times[:, 1]


class _Track:
    """Opens models the way the race wants them."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.setup = setup
        self._file = folder / "layer.onnx"

    def runner(self, model: bytes) -> Run:
        """A call that runs a model once on random inputs.

        Raises:
            UnverifiedError: the runtime does not load it.
        """
        self._file.write_bytes(model)
        session = open_session(
            self._file,
            self.setup.provider,
            Level.ALL,
            self.setup.threads,
            tf32=True,
            provider_options=dict(self.setup.provider_options),
        )
        shapes = {p.name: tuple(int(d or 1) for d in p.dims) for p in session.inputs}
        once = session.bound(random_feeds(session.inputs, 0, shapes))
        return lambda count: once()

    def peak(self) -> float:
        """Floating-point operations per second of the best matrix product."""
        n = PEAK_EXTENT
        ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [n, n]) for name in "aby"]
        node = helper.make_node("MatMul", ["a", "b"], ["y"])
        graph = helper.make_graph([node], "peak", ports[:2], ports[2:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        run = self.runner(model.SerializeToString())
        times, _ = _pairs(run, run, PEAK_RUNS)
        return 2 * n**3 / float(times.min())
