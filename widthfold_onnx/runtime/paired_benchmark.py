"""Times two models in alternating runs, each at the setting of the runtime that suits it best.

The runtime's highest level is not always its fastest: convolutions of few channels were seen to
run up to nine times slower there than one level below. On CUDA the layout and the algorithm search
change times more than a fold does. So every setting is tried first, on both models.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from widthfold_onnx.arrays import Array
from widthfold_onnx.options import Provider, Shapes, VerifyOptions
from widthfold_onnx.runtime.clock import (
    MIN_CLEAR,
    Clock,
    Pairing,
    Run,
    clock_of,
    interval,
    paired,
)
from widthfold_onnx.runtime.inputs.rotation import timed_inputs
from widthfold_onnx.runtime.sessions.session import Level, Session, open_session, resolved

CHOICE_SHARE = 0.15
"""Share of the budget that choosing the settings may take."""

CHOICE_ROUNDS = (15, 1000)
"""Fewest and most rounds that choose, as far as the share lasts."""

CHOICE_SECONDS = 0.2
"""More rounds than the fewest are run until then: 15 runs of some microseconds choose at random."""

TRIAL_PAIRS = 2 * MIN_CLEAR
"""Fewest pairs of a trial: it decides what is written, however long a run takes."""

WORTH_SAYING = 1.1
"""Least gain of a setting that is reported."""

SWEPT = {
    "prefer_nhwc": ("0", "1"),
    "cudnn_conv_algo_search": ("HEURISTIC", "EXHAUSTIVE"),
    "fuse_conv_bias": ("0", "1"),
}
"""Options of CUDA whose fastest values depend on the model."""

Feeds = Sequence[dict[str, Array]]


@dataclass(frozen=True)
class Setting:
    """A level and options of the runtime, which determine how fast a model runs."""

    level: Level
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join([self.level, *(f"{k}={v}" for k, v in self.options.items())])


def settings_of(provider: Provider, chosen: Mapping[str, str]) -> list[Setting]:
    """Return the settings to choose from, the common one first; `chosen` options are fixed."""
    if provider is Provider.CPU:
        return [Setting(Level.ALL, chosen), Setting(Level.EXTENDED, chosen)]
    if provider is Provider.TENSORRT:
        return [Setting(Level.ALL, chosen)]
    swept = [
        {**dict(zip(SWEPT, values, strict=True)), **chosen} for values in product(*SWEPT.values())
    ]
    return [Setting(Level.ALL, o) for i, o in enumerate(swept) if o not in swept[:i]]


@dataclass(frozen=True)
class Contest:
    """Two models, each at its best setting, in alternating runs.

    Attributes:
        options: with the provider that was used.
        feeds: the input sets that took turns.
        made_up: whether they are random.
        common: the first of all settings.
        settings: the best one of each model.
        same_level: original / rewritten at the common setting.
        default: time of the original at the common setting / at its best one.
        pairing: the result of the paired timing.
    """

    options: VerifyOptions
    feeds: Feeds
    made_up: bool
    common: Setting
    settings: tuple[Setting, Setting]
    same_level: float
    default: float
    pairing: Pairing

    @property
    def advice(self) -> str:
        """Sentence on the gain of the original by its setting alone, "" where that is little."""
        return _advice(self.default, self.settings[0], self.common)


def contest(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    shapes: Shapes | None = None,
    *,
    fewest: int = 1,
    report: Callable[[str], None] | None = None,
) -> Contest:
    """Time two models.

    Inputs are random, or stored if the caller wants no others or no others run.

    Args:
        original: model file.
        rewritten: model file.
        options: provider and its options, threads, shapes and time budget are used.
        shapes: of every random input; None searches them.
        fewest: pairs that are run even if they take longer than the budget.
        report: called with a line when a phase begins.

    Raises:
        UnverifiedError: a model does not run, or no inputs were found.
        UsageError: the provider does not take its options, or stored inputs that do not fit.
    """
    say = report or (lambda line: None)
    start = time.perf_counter()
    say("timing: choosing settings")
    options = resolved(options)
    settings = settings_of(options.provider, options.provider_options)
    first = open_at(original, options, settings[0])
    feeds, made_up = timed_inputs(first, shapes, options)
    models = (original, rewritten)
    sessions = [[open_at(model, options, setting) for setting in settings] for model in models]
    clock = clock_of(options.provider, options.threads)
    times = _choosing(sessions, feeds, options, clock)
    medians = np.median(times, axis=0)
    best = [int(np.argmin(row)) for row in medians]
    if original.samefile(rewritten):
        best[1] = best[0]
    say("timing: alternating runs")
    pairing = paired(
        _rounds(sessions[0][best[0]], feeds),
        _rounds(sessions[1][best[1]], feeds),
        _rounds(open_at(original, options, settings[best[0]]), feeds),
        budget=options.time_budget - (time.perf_counter() - start),
        fewest=fewest,
        clock=clock,
    )
    same = math.exp(float(np.median(np.log(times[:, 0, 0] / times[:, 1, 0]))))
    chosen = settings[best[0]], settings[best[1]]
    default = float(medians[0][0] / medians[0][best[0]])
    return Contest(options, feeds, made_up, settings[0], chosen, same, default, pairing)


class Timed(NamedTuple):
    """A pairing, what else was seen, and the setting of each side."""

    pairing: Pairing
    advice: str
    original_setting: str
    setting: str


def ratio_of(original: Path, rewritten: Path, options: VerifyOptions, shapes: Shapes) -> Timed:
    """Return the result of a contest; to be run in `runtime.child.isolated`.

    Raises:
        UnverifiedError: a model does not run.
    """
    found = contest(original, rewritten, options, shapes, fewest=TRIAL_PAIRS)
    return Timed(found.pairing, found.advice, *map(str, found.settings))


class Ratio(NamedTuple):
    """Time of a model / time of another, its 95 % interval, seconds of the other, and rounds."""

    ratio: float
    low: float
    high: float
    seconds: float
    rounds: int


def ratios_to(
    base: Path, models: Sequence[Path], options: VerifyOptions, shapes: Shapes
) -> list[Ratio]:
    """Time models in turn with a base, all at the setting that suits the base best.

    Returns:
        Time of each model / time of the base.

    Raises:
        UnverifiedError: a model does not run.
    """
    settings = settings_of(options.provider, options.provider_options)
    sessions = [open_at(base, options, setting) for setting in settings]
    feeds, _ = timed_inputs(sessions[0], shapes, options)
    clock = clock_of(options.provider, options.threads)
    best = int(np.argmin(np.median(_choosing([sessions], feeds, options, clock), axis=0)))
    others = [open_at(model, options, settings[best]) for model in models]
    runs = [_rounds(session, feeds) for session in (sessions[best], *others)]
    times = _in_turn(runs, clock, options.time_budget, math.inf)
    own = times[:, 0]
    found = []
    for other in times[:, 1:].T:
        ratio, low, high = map(math.exp, interval(np.log(other / own)))
        found.append(Ratio(ratio, low, high, float(np.median(own)), len(own)))
    return found


def ratio_of_levels(model: Path, options: VerifyOptions, shapes: Shapes) -> Timed:
    """Time a model on the CPU at level ALL against itself at EXTENDED, as `ratio_of` does.

    Raises:
        UnverifiedError: the model does not run.
    """
    common, other = settings_of(Provider.CPU, options.provider_options)
    sessions = [open_at(model, options, setting) for setting in (common, other, common)]
    feeds, _ = timed_inputs(sessions[0], shapes, options)
    pairing = paired(
        *(_rounds(session, feeds) for session in sessions),
        budget=options.time_budget,
        clock=clock_of(options.provider, options.threads),
    )
    advice = _advice(pairing.ratio, other, common)
    return Timed(pairing, advice, str(common), str(other))


def _advice(gain: float, best: Setting, common: Setting) -> str:
    if gain < WORTH_SAYING:
        return ""
    return f"the original alone is {gain:.1f}x as fast at level {best} as at level {common}"


def open_at(
    model: Path, options: VerifyOptions, setting: Setting, prefix: Path | None = None
) -> Session:
    """Open a session as models are timed; with `prefix` it writes a profile there.

    Raises:
        UnverifiedError: the model does not run.
    """
    return open_session(
        model,
        options.provider,
        setting.level,
        options.threads,
        tf32=True,
        provider_options=setting.options,
        session_options=options.session_options,
        profile=prefix,
    )


def _choosing(
    sessions: Sequence[Sequence[Session]], feeds: Feeds, options: VerifyOptions, clock: Clock
) -> npt.NDArray[np.float64]:
    """Time all settings of models in turn, to choose; return seconds [round, model, setting]."""
    runs = [_rounds(session, feeds) for row in sessions for session in row]
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
        budget: seconds after which no further round begins.
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
        if count and (passed > budget or (count + 1 >= fewest and passed >= enough)):
            break
    return np.array(rounds[1:])


def _seconds(run: Run, count: int, clock: Clock) -> float:
    before = clock()
    run(count)
    return (clock() - before) * 1e-9


def _rounds(session: Session, feeds: Feeds) -> Run:
    calls = [session.bound(item) for item in feeds]
    return lambda count: calls[count % len(calls)]()
