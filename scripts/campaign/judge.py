"""Run a model and its fold in ONNX Runtime, as their owner would, and compare outputs and times.

It trusts nothing of widthfold but how a session is opened and how two runs are timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from benchmark.one_process import paired
from benchmark.openvino import at_levels, cell, clock_of, fastest, in_turn, openvino_cell
from benchmark.report import NOT_RUN, Cell

from campaign.models import Inputs
from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.clock import Run
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import Feeds, Port, Session, open_session

HOW = RuntimeOptions(provider=Provider.CPU)
FLOOR = 1e-5
TIMES = 10
"""Outputs agree within TIMES the distance by which rounding moves the original, and at least within
FLOOR, both relative to the largest magnitude of an output. Rounding is seen in two ways: the
runtime's optimizations are switched off, and every input moves by one unit in the last place."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict of the runtime on a fold at one size.

    Attributes:
        size: the shapes and values of the inputs.
        auto: original / fold.
        openvino: original / original in OpenVINO.
        distance: of the outputs, relative to the largest magnitude.
        allowed: the largest right distance.
        wrong: what failed, "" if nothing did.
    """

    size: str
    auto: Cell = NOT_RUN
    openvino: Cell = NOT_RUN
    distance: float | None = None
    allowed: float | None = None
    wrong: str = ""


def judged(original: Path, fold: Path | None, inputs: Inputs, budget: float) -> Judgement:
    """Compare a model with its fold at one size; None: it was left as it is.

    Meant to run in `runtime.child.isolated`.

    Raises:
        UnverifiedError: the original does not run: the list of models is wrong.
    """
    sessions = at_levels(original, HOW)
    feeds = feeds_of(sessions[Level.ALL][0].inputs, inputs)
    values = sessions[Level.ALL][0].run(feeds)
    fixed = {name: feeds[name] for name, value in inputs.items() if not isinstance(value, tuple)}
    shapes = {name: array.shape for name, array in feeds.items()}
    turns = [{**random, **fixed} for random in in_turn(sessions[Level.ALL][0], shapes)]
    runs = fastest({level: _runs(pair, turns) for level, pair in sessions.items()}, HOW)
    size = size_of(inputs)
    rival = openvino_cell(original, turns, runs, budget, HOW)
    if fold is None:
        return Judgement(size=size, auto=Cell(note="as it is"), openvino=rival)
    plain = open_session(original, HOW, Level.DISABLED).run(feeds)
    moved = sessions[Level.ALL][0].run(shaken(feeds))
    allowed = max(FLOOR, TIMES * distance(values, plain), TIMES * distance(values, moved))
    try:
        rewritten = at_levels(fold, HOW)
        apart = distance(values, rewritten[Level.ALL][0].run(feeds))
        best = fastest({level: _runs(pair, turns) for level, pair in rewritten.items()}, HOW)
    except UnverifiedError as error:
        return Judgement(size=size, openvino=rival, wrong=str(error))
    timed = cell(paired(runs[0], best[0], runs[1], budget=budget, clock=clock_of(HOW)))
    wrong = "" if apart <= allowed else f"outputs differ by {apart:.1e}, allowed are {allowed:.1e}"
    return Judgement(
        size=size, auto=timed, openvino=rival, distance=apart, allowed=allowed, wrong=wrong
    )


def size_of(inputs: Inputs) -> str:
    """Write inputs in one line, as in ``audio 1x16000, fmin 46.875``; one needs no name."""
    texts = {
        name: "x".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
        for name, value in inputs.items()
    }
    if len(texts) < 2:
        return "".join(texts.values()) or "as declared"
    return ", ".join(f"{name} {text}" for name, text in texts.items())


def feeds_of(ports: list[Port], inputs: Inputs) -> dict[str, Array]:
    """Return random arrays of the shapes, and the values; others are as declared, 1 where open."""
    shapes = {
        port.name: tuple(dim if isinstance(dim, int) else 1 for dim in port.dims) for port in ports
    }
    shapes |= {name: value for name, value in inputs.items() if isinstance(value, tuple)}
    values = {name: value for name, value in inputs.items() if not isinstance(value, tuple)}
    random = random_feeds([port for port in ports if port.name not in values], 0, shapes)
    types = {port.name: port.dtype for port in ports}
    return random | {name: np.asarray(value, types[name]) for name, value in values.items()}


def shaken(feeds: Feeds) -> Feeds:
    """Return the inputs with every float moved by one unit in the last place, up or down."""
    random, moved = np.random.default_rng(0), dict(feeds)
    for name, array in feeds.items():
        if array.dtype.kind == "f":
            ends = random.choice([-np.inf, np.inf], array.shape).astype(array.dtype)
            moved[name] = np.asarray(np.nextafter(array, ends))
    return moved


def distance(right: Feeds, other: Feeds) -> float:
    """Return the largest difference of two sets of outputs, relative to the largest magnitude.

    It is infinite where shapes differ, or the places or kinds of values that are not finite.
    """
    return max((_apart(right[name], other[name]) for name in right), default=0.0)


def _apart(right: Array, other: Array) -> float:
    if right.shape != other.shape:
        return np.inf
    if right.dtype.kind != "f":
        return 0.0 if np.array_equal(right, other) else np.inf
    finite = np.isfinite(right)
    if not np.array_equal(right[~finite], other[~finite], equal_nan=True):
        return np.inf
    first, second = (np.where(finite, array, 0).astype(np.float64) for array in (right, other))
    if not np.isfinite(second).all():
        return np.inf
    largest = np.abs(first).max(initial=0.0)
    apart = np.abs(first - second).max(initial=0.0)
    return float(apart / largest) if largest else float(apart and np.inf)


def _runs(sessions: list[Session], inputs: Sequence[Feeds]) -> list[Run]:
    def run_of(session: Session) -> Run:
        return lambda count: session.run(inputs[count % len(inputs)])

    return list(map(run_of, sessions))
