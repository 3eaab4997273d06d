"""Times two models in alternating runs, each at the setting of the runtime that suits it best.

The runs are those of several sessions of each model in several processes (`runtime.clock`), which
are fresh ones: where much was computed before, the session that was opened first was seen to be
0.1 to 0.5 % slower than the next, and so was the model that always came first.

The runtime's highest level is not always its fastest: convolutions of few channels were seen to
run up to nine times slower there than one level below. On CUDA the layout and the algorithm search
change times more than a fold does. So every setting that the description of the provider names is
tried first, on both models.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from widthfold_onnx.arrays import Array
from widthfold_onnx.options import RuntimeOptions, Shapes, VerifyOptions
from widthfold_onnx.progress import Say, quiet
from widthfold_onnx.results import GpuState, Measurement
from widthfold_onnx.results.store import timed
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.clock import (
    MIN_PROCESSES,
    SESSIONS,
    START,
    Clock,
    Pairing,
    Repeats,
    Run,
    Times,
    alternate,
    clock_of,
    measured,
    repeats,
)
from widthfold_onnx.runtime.inputs.distributions import Distribution
from widthfold_onnx.runtime.inputs.rotation import INPUT_SETS, timed_inputs
from widthfold_onnx.runtime.nvml import watched
from widthfold_onnx.runtime.sessions.descriptions import described
from widthfold_onnx.runtime.sessions.session import Level, Session, open_session, resolved

CHOICE_SHARE = 0.15
"""Share of the budget that choosing the settings may take."""

CHOICE_ROUNDS = (6, 1000)
"""Fewest and most rounds that choose."""

CHOICE_PATIENCE = 3.0
"""Seconds that the fewest rounds may take beyond the share: under load, the one round that fitted
into it made a level look 1.4x as fast as the other, which is in truth 1.3x as fast as it."""

CHOICE_SECONDS = 0.6
"""More rounds than the fewest are run until then: 6 runs of some microseconds choose at random, and
after 0.2 s one of two copies of a quantized net got a level that is 4 % slower."""

PROCESS_SHARE = 1 / 8
"""Share of the budget that a process may take, or twice as long as it starts if that is more."""

TRIAL_PAIRS = MIN_PROCESSES * SESSIONS[0]
"""Fewest pairs of a trial, which decides what is written: where runs are so long that each session
has only one, they are those of as many processes as an interval needs to be narrow."""

WORTH_SAYING = 1.1
"""Least gain of a setting that is reported."""

Feeds = Sequence[dict[str, Array]]
Models = tuple[Path, Path]
"""Original and rewritten."""


@dataclass(frozen=True)
class Setting:
    """A level and options of the runtime, which determine how fast a model runs."""

    level: Level
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join([self.level, *(f"{k}={v}" for k, v in self.options.items())])


def settings_of(how: RuntimeOptions) -> list[Setting]:
    """Return the settings to choose from, the common one first; given options are fixed."""
    known = described(how.provider)
    swept = [
        {**dict(zip(known.swept, values, strict=True)), **how.provider_options}
        for values in product(*known.swept.values())
    ]
    kept = [options for number, options in enumerate(swept) if options not in swept[:number]]
    return [Setting(level, options) for level in known.levels for options in kept]


@dataclass(frozen=True)
class Choice:
    """The setting that suits each model best.

    Attributes:
        common: the first of all settings.
        settings: the best one of each model.
        same_level: original / rewritten at the common setting.
        default: time of the original at the common setting / at its best one.
        run: seconds of a run at the best setting, the mean of both models.
        opening: seconds of opening a session.
    """

    common: Setting
    settings: tuple[Setting, Setting]
    same_level: float
    default: float
    run: float
    opening: float


@dataclass(frozen=True)
class Process:
    """Hold the measurements of one process, in seconds, by original or rewritten and session.

    Attributes:
        runs: of every run, one more axis.
        loads: of opening the session.
        firsts: of its first run.
        gpu: states of the GPU during the runs, the first and the last one included.
    """

    runs: Times
    loads: Times
    firsts: Times
    gpu: Sequence[GpuState] = ()


@dataclass(frozen=True)
class Contest:
    """Two models, each at its best setting, in alternating runs.

    Attributes:
        options: with the provider that was used.
        feeds: the input sets that took turns.
        made_up: whether they are random.
        choice: the settings.
        processes: what each process measured.
        pairing: the result of the paired timing.
    """

    options: VerifyOptions
    feeds: Feeds
    made_up: bool
    choice: Choice
    processes: Sequence[Process]
    pairing: Pairing

    @property
    def advice(self) -> str:
        """Sentence on the gain of the original by its setting alone, "" where that is little."""
        return _advice(self.choice.default, self.choice.settings[0], self.choice.common)


def contest(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    shapes: Shapes | None = None,
    *,
    fewest: int = 1,
    report: Say = quiet,
) -> Contest:
    """Time two models, in one process after the other until the interval is narrow.

    Inputs are random, or stored if the caller wants no others or no others run.

    Args:
        original: model file.
        rewritten: model file.
        options: provider and its options, threads, shapes and time budget are used; one process
            is always run.
        shapes: of every random input; None searches them.
        fewest: pairs that are run even if they take longer than the budget.
        report: called with a line when a phase begins.

    Raises:
        UnverifiedError: a model does not run, or no inputs were found.
        UsageError: the provider does not take its options, or stored inputs that do not fit.
    """
    start = time.perf_counter()
    report("timing: choosing settings")
    options = resolved(options)
    models = (original, rewritten)
    choice, feeds, made_up = _choose(models, options, shapes)
    seconds = max(options.time_budget * PROCESS_SHARE, 2 * START)
    each = repeats(choice.run, choice.opening, seconds)
    report("timing: alternating runs")
    # Each session has copies of the inputs, and all copies together need to exceed the cache.
    taken = feeds[: max(INPUT_SETS[0], len(feeds) // (2 * each.sessions))] if made_up else feeds
    processes: list[Process] = []
    longest = 0.0
    while True:
        began = time.perf_counter()
        task = (models, choice.settings, options, taken, each, len(processes))
        processes.append(isolated(time_sessions, *task))
        pairing = Pairing.of(np.stack([process.runs for process in processes]))
        longest = max(longest, time.perf_counter() - began)
        late = time.perf_counter() - start + longest > options.time_budget
        if pairing.converged or (late and pairing.pairs >= fewest):
            return Contest(options, feeds, made_up, choice, processes, pairing)


def ratio_of(
    original: Path, rewritten: Path, options: VerifyOptions, shapes: Shapes
) -> Measurement:
    """Return the result of a contest; to be run in `runtime.child.isolated`.

    Raises:
        UnverifiedError: a model does not run.
    """
    found = contest(original, rewritten, options, shapes, fewest=TRIAL_PAIRS)
    return _measurement(found.pairing, found.advice, found.choice.settings)


def ratios_to(
    base: Path,
    models: Sequence[Path],
    kinds: Sequence[Distribution],
    options: VerifyOptions,
    shapes: Shapes,
) -> list[Measurement]:
    """Time models in turn with a base, all at the setting that suits the base best.

    Each has one session, as there are many.

    Args:
        base: model file.
        models: model files.
        kinds: how random inputs are distributed, one after the other.
        options: as those of `contest`; the budget is that of all kinds together.
        shapes: of every random input.

    Returns:
        On inputs of each kind, time of each model / time of the base.

    Raises:
        UnverifiedError: a model does not run.
    """
    settings = settings_of(options)
    sessions = [open_at(base, options, setting) for setting in settings]
    feeds, *more = (timed_inputs(sessions[0], shapes, options, kind)[0] for kind in kinds)
    clock = clock_of(options)
    best = int(np.argmin(np.median(_choosing([sessions], feeds, options, clock), axis=0)))
    others = [open_at(model, options, settings[best]) for model in models]
    found: list[Measurement] = []
    for inputs in (feeds, *more):
        runs = [rounds_of(session, inputs) for session in (sessions[best], *others)]
        own, *rest = _in_turn(runs, clock, options.time_budget / len(kinds), math.inf).T
        found += [measured(other, own) for other in rest]
    return found


def ratio_of_levels(model: Path, options: VerifyOptions, shapes: Shapes) -> Measurement:
    """Time a model at the one level of its provider against itself at the other, in this process.

    Raises:
        UnverifiedError: the model does not run.
    """
    common, other = settings_of(options)
    start = time.perf_counter()
    session = open_at(model, options, common)
    opening = time.perf_counter() - start
    feeds, _ = timed_inputs(session, shapes, options)
    run = rounds_of(session, feeds)
    run(0)
    seconds = _seconds(run, 1, clock_of(options))
    each = repeats(seconds, opening, options.time_budget)
    process = time_sessions((model, model), (common, other), options, feeds, each, 0)
    pairing = Pairing.of(process.runs[np.newaxis])
    return _measurement(pairing, _advice(pairing.ratio, other, common), (common, other))


def _measurement(pairing: Pairing, advice: str, settings: tuple[Setting, Setting]) -> Measurement:
    seconds = float(np.median(pairing.samples[:, 1]))
    return msgspec.structs.replace(
        timed(pairing.ratio, pairing.low, pairing.high, seconds, pairing.pairs),
        control=pairing.control,
        note=advice,
        original_setting=str(settings[0]),
        setting=str(settings[1]),
    )


def _advice(gain: float, best: Setting, common: Setting) -> str:
    if gain < WORTH_SAYING:
        return ""
    return f"the original alone is {gain:.1f}x as fast at level {best} as at level {common}"


def time_sessions(
    models: Models,
    settings: tuple[Setting, Setting],
    options: VerifyOptions,
    feeds: Feeds,
    each: Repeats,
    turn: int,
) -> Process:
    """Time several sessions of both models; to be run in `runtime.child.isolated`.

    Either model comes first at every second session, and at the first one of every second process.

    Args:
        models: original and rewritten.
        settings: of both.
        options: provider, its options and threads are used.
        feeds: the input sets that take turns.
        each: sessions of each model, and runs of each session.
        turn: number of the process.

    Raises:
        UnverifiedError: a model does not run.
    """
    clock = clock_of(options)
    runs: tuple[list[Run], list[Run]] = ([], [])
    loads, firsts = np.zeros((2, 2, each.sessions))
    for number in range(each.sessions):
        for side in (0, 1) if (number + turn) % 2 == 0 else (1, 0):
            before = clock()
            session = open_at(models[side], options, settings[side])
            loads[side, number] = (clock() - before) * 1e-9
            runs[side].append(rounds_of(session, feeds))
            firsts[side, number] = _seconds(runs[side][-1], 0, clock)
    with watched(options) as states:
        times = alternate([*runs[0], *runs[1]], each.runs, clock, seed=turn)
    return Process(times.reshape(2, each.sessions, each.runs), loads, firsts, states)


def open_at(
    model: Path, how: RuntimeOptions, setting: Setting, prefix: Path | None = None
) -> Session:
    """Open a session as models are timed; with `prefix` it writes a profile there.

    Raises:
        UnverifiedError: the model does not run.
    """
    how = replace(how, provider_options=setting.options)
    return open_session(model, how, setting.level, tf32=True, profile=prefix)


def _choose(
    models: Models, options: VerifyOptions, shapes: Shapes | None
) -> tuple[Choice, Feeds, bool]:
    """Return the best settings, the inputs to time with, and whether those are random."""
    settings = settings_of(options)
    first = open_at(models[0], options, settings[0])
    feeds, made_up = timed_inputs(first, shapes, options)
    start = time.perf_counter()
    sessions = [[open_at(model, options, setting) for setting in settings] for model in models]
    opening = (time.perf_counter() - start) / (2 * len(settings))
    clock = clock_of(options)
    times = _choosing(sessions, feeds, options, clock)
    medians = np.median(times, axis=0)
    best = [int(np.argmin(row)) for row in medians]
    if models[0].samefile(models[1]):
        best[1] = best[0]
    choice = Choice(
        common=settings[0],
        settings=(settings[best[0]], settings[best[1]]),
        same_level=math.exp(float(np.median(np.log(times[:, 0, 0] / times[:, 1, 0])))),
        default=float(medians[0][0] / medians[0][best[0]]),
        run=float(medians[0][best[0]] + medians[1][best[1]]) / 2,
        opening=opening,
    )
    return choice, feeds, made_up


def _choosing(
    sessions: Sequence[Sequence[Session]], feeds: Feeds, options: VerifyOptions, clock: Clock
) -> npt.NDArray[np.float64]:
    """Time all settings of models in turn, to choose; return seconds [round, model, setting]."""
    runs = [rounds_of(session, feeds) for row in sessions for session in row]
    times = _in_turn(runs, clock, options.time_budget * CHOICE_SHARE, CHOICE_SECONDS)
    return times.reshape(-1, len(sessions), len(sessions[0]))


def _in_turn(
    runs: Sequence[Run], clock: Clock, budget: float, enough: float
) -> npt.NDArray[np.float64]:
    """Run all in turn; the first round only warms up, and at least one follows.

    Each round begins with another one: in models of some microseconds, one that always
    came first was seen to take 3 to 10 % more.

    Args:
        runs: what to run.
        clock: measures a run.
        budget: seconds after which no further round begins, but see `CHOICE_PATIENCE`.
        enough: seconds after which none begins if the fewest rounds were run.

    Returns:
        Seconds [round, run].
    """
    rounds: list[list[float]] = []
    start = time.perf_counter()
    fewest, most = CHOICE_ROUNDS
    for count in range(most):
        spent = [0.0] * len(runs)
        for turn in range(len(runs)):
            side = (count + turn) % len(runs)
            spent[side] = _seconds(runs[side], count, clock)
        rounds.append(spent)
        passed = time.perf_counter() - start
        several = count + 1 >= fewest
        if count and passed > (min(budget, enough) if several else max(budget, CHOICE_PATIENCE)):
            break
    return np.array(rounds[1:])


def _seconds(run: Run, count: int, clock: Clock) -> float:
    before = clock()
    run(count)
    return (clock() - before) * 1e-9


def rounds_of(session: Session, feeds: Feeds) -> Run:
    """Return a call that runs a session once, on one input set after the other."""
    calls = [session.bound(item) for item in feeds]
    return lambda count: calls[count % len(calls)]()
