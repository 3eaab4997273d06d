"""Open sessions as models are timed, and choose the setting of the runtime that suits each best.

The runtime's highest level is not always its fastest: convolutions of few channels were seen to
run up to nine times slower there than one level below. On CUDA the layout and the algorithm search
change times more than a fold does. So every setting that the description of the provider names is
tried, on both models.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from widthfold_onnx.options import RuntimeOptions, Shapes, VerifyOptions
from widthfold_onnx.runtime.clock import Clock, Run, Times, clock_of, in_turn
from widthfold_onnx.runtime.descriptions import Level, description_of
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.inputs.input_sets import Rotation, timed_inputs
from widthfold_onnx.runtime.session import Feeds, Session, open_session

CHOICE_SHARE = 0.15
"""Share of the budget that choosing the settings may take."""

CHOICE_ROUNDS = (6, 1000)
"""Fewest and most rounds that choose, the round that warms up included."""

CHOICE_PATIENCE = 3.0
"""Seconds that the fewest rounds may take beyond the share. One round that fitted into the share
was not enough: under load it showed 1.4x for a level that is 1.3x slower."""

CHOICE_SECONDS = 0.6
"""Seconds after which no further round begins, once there are the fewest: 6 runs of some
microseconds choose at random, and in 0.2 s one of two copies of a quantized net got a level that is
4 % slower."""

WORTH_SAYING = 1.1
"""Least gain of a setting that is reported."""

Models = tuple[Path, Path]
"""Original and rewritten."""


@dataclass(frozen=True)
class Setting:
    """A level and options of the runtime, which determine how fast a model runs."""

    level: Level
    options: RuntimeOptions

    def __str__(self) -> str:
        entries = self.options.provider_options.items()
        return ", ".join([self.level, *(f"{name}={value}" for name, value in entries)])


def settings_of(options: RuntimeOptions) -> list[Setting]:
    """Return the settings to choose from, the common one first; given options are fixed."""
    provider, fixed = description_of(options.provider), options.provider_options
    swept = {
        name: (fixed[name],) if name in fixed else values for name, values in provider.swept.items()
    }
    combinations = [
        {**dict(zip(swept, values, strict=True)), **fixed}
        for values in itertools.product(*swept.values())
    ]
    return [
        Setting(level, replace(options, provider_options=combination))
        for level in provider.levels
        for combination in combinations
    ]


def open_at(
    model: Path | onnx.ModelProto,
    setting: Setting,
    profile: Path | None = None,
    optimized: Path | None = None,
) -> Session:
    """Open a session as models are timed; `profile` and `optimized` go to `open_session`.

    Raises:
        UnverifiedError: the model does not run.
    """
    return open_session(
        model, setting.options, setting.level, tf32=True, profile=profile, optimized=optimized
    )


def rounds_of(session: Session, inputs: Sequence[Feeds]) -> Run:
    """Return a call that runs a session once, on one input set after the other."""
    calls = [session.bound(feeds) for feeds in inputs]
    return lambda count: calls[count % len(calls)]()


def random_run(model: bytes | onnx.ModelProto, setting: Setting) -> Run:
    """Return a call that runs a model of fixed sizes once on random inputs.

    Raises:
        UnverifiedError: the model does not run.
    """
    proto = onnx.ModelProto.FromString(model) if isinstance(model, bytes) else model
    session = open_at(proto, setting)
    shapes = {port.name: tuple(int(dim or 1) for dim in port.dims) for port in session.inputs}
    return rounds_of(session, [random_feeds(session.inputs, 0, shapes)])


@dataclass(frozen=True)
class SettingChoice:
    """The setting that suits each model best.

    Attributes:
        settings: the best one of each model.
        same_level: original / rewritten at the first of all settings, which is at level ALL.
        advice: a sentence on the gain of the original by its setting alone, "" where it is little.
        run: seconds of a run at the best setting, the mean of both models.
        opening: seconds of opening a session.
    """

    settings: tuple[Setting, Setting]
    same_level: float
    advice: str
    run: float
    opening: float


def best_settings(
    models: Models, options: VerifyOptions, shapes: Shapes | None, seconds: float
) -> tuple[SettingChoice, Rotation]:
    """Return the best settings, and the inputs to time with.

    Args:
        models: original and rewritten.
        options: as for `paired_benchmark.contest`.
        shapes: of every random input; None searches them.
        seconds: time that choosing may take.
    """
    settings = settings_of(options)
    start = time.perf_counter()
    sessions = [[open_at(model, setting) for setting in settings] for model in models]
    opening = (time.perf_counter() - start) / (2 * len(settings))
    inputs = timed_inputs(sessions[0][0], shapes, options)
    times = times_at_settings(sessions, inputs, options, seconds)
    medians = np.median(times, axis=0)
    best = [int(np.argmin(row)) for row in medians]
    if models[0].samefile(models[1]):
        best[1] = best[0]
    chosen = settings[best[0]], settings[best[1]]
    choice = SettingChoice(
        settings=chosen,
        same_level=math.exp(float(np.median(np.log(times[:, 0, 0] / times[:, 1, 0])))),
        advice=advice_of(medians[0][0] / medians[0][best[0]], chosen[0], settings[0]),
        run=float(medians[0][best[0]] + medians[1][best[1]]) / 2,
        opening=opening,
    )
    return choice, inputs


def times_at_settings(
    sessions: Sequence[Sequence[Session]],
    inputs: Rotation,
    options: VerifyOptions,
    seconds: float,
) -> Times:
    """Time all settings of models in turn, to choose; return seconds [round, model, setting]."""
    runs = [rounds_of(session, inputs.sets) for row in sessions for session in row]
    times = timed_rounds(runs, clock_of(options), seconds, CHOICE_SECONDS)
    return times.reshape(-1, len(sessions), len(sessions[0]))


def timed_rounds(
    runs: Sequence[Run],
    clock: Clock,
    budget: float,
    usual: float = math.inf,
    patience: float = CHOICE_PATIENCE,
    is_enough: Callable[[Times], bool] = lambda times: False,
) -> Times:
    """Run all in turn; the first round only warms up, and at least one follows.

    Args:
        runs: what to run.
        clock: measures a run.
        budget: seconds after which no further round begins.
        usual: seconds after which no further round begins once there are `CHOICE_ROUNDS[0]` rounds,
            if that is less than `budget`.
        patience: seconds that fewer rounds may take, if that is more than the budget.
        is_enough: tells by the seconds so far, [round, run], whether no further round is needed;
            it is asked each time that there are a quarter more.

    Returns:
        Seconds [round, run].
    """
    rounds: list[list[float]] = []
    start = time.perf_counter()
    fewest, most = CHOICE_ROUNDS
    next_look = fewest
    for seconds in itertools.islice(in_turn(runs, clock), most):
        rounds.append(seconds)
        count, is_allowed_to_end = len(rounds), len(rounds) >= fewest
        allowed = min(budget, usual) if is_allowed_to_end else max(budget, patience)
        if count > 1 and time.perf_counter() - start > allowed:
            break
        if count >= next_look:
            next_look = count + max(count // 4, 1)
            if is_enough(np.array(rounds[1:])):
                break
    return np.array(rounds[1:])


def advice_of(gain: float, best: Setting, common: Setting) -> str:
    """Return a sentence on the gain of the original by its setting alone, "" if it is little."""
    if gain < WORTH_SAYING:
        return ""
    return f"the original alone is {gain:.1f}x as fast at level {best} as at level {common}"
