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
from typing import Self

import numpy as np
import onnx

from widthfold_onnx.options import RuntimeOptions, Shapes, VerifyOptions
from widthfold_onnx.runtime.clock import Clock, Run, Times, clock_of, in_turn, warm_up
from widthfold_onnx.runtime.descriptions import Level, description_of
from widthfold_onnx.runtime.inputs.feeds import Distribution, random_feeds
from widthfold_onnx.runtime.inputs.input_sets import Rotation, timed_inputs
from widthfold_onnx.runtime.intervals import is_surely_faster
from widthfold_onnx.runtime.session import Feeds, Session, open_session

CHOICE_SHARE = 0.15
"""Share of the budget that choosing the settings may take."""

MIN_ROUNDS = 5
MAX_ROUNDS = 1000
"""Fewest and most rounds, after all sessions are warm, unless there is no time for the fewest."""

MIN_LONG_ROUNDS = 3
"""Fewest rounds that choose where they take longer than `CHOICE_SECONDS`, if a setting is surely
fastest: of two alike ones it is in 0.1 % of simulated choices, with `clock.RUN_SPREAD`."""

CHOICE_PATIENCE = 3.0
"""Seconds that the fewest rounds may take beyond the share. One round that fitted into the share
was not enough: under load it showed 1.4x for a level that is 1.3x slower."""

CHOICE_SECONDS = 0.6
"""Seconds after which no further round begins, once there are the fewest: 5 runs of some
microseconds choose at random, and in 0.2 s one of two copies of a quantized net got a level that is
4 % slower."""

WORTH_SAYING = 1.1
"""Least gain of a setting that is reported."""

Models = tuple[Path, Path]
"""Original and rewritten."""

Rounds = Sequence[Sequence[float]]
"""Seconds by round and run."""


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
        ratio_at_first_setting: original / rewritten with both at the first of all settings, which
            is at level ALL.
        advice: a sentence on the gain of the original by its setting alone, "" where it is little.
        run: seconds of a run at the best setting, the mean of both models.
        opening: seconds of opening a session.
    """

    settings: tuple[Setting, Setting]
    ratio_at_first_setting: float
    advice: str
    run: float
    opening: float


@dataclass(frozen=True)
class SettingTimes:
    """Times of models at every setting, all in turn, in sessions that stay open.

    Attributes:
        settings: the settings, the common one first.
        sessions: by model and setting.
        inputs: the sets that took turns.
        times: seconds, [round, model, setting].
        best: number of the fastest setting of each model.
        opening: seconds of opening a session.
    """

    settings: Sequence[Setting]
    sessions: Sequence[Sequence[Session]]
    inputs: Rotation
    times: Times
    best: Sequence[int]
    opening: float

    @classmethod
    def of(
        cls,
        models: Sequence[Path],
        options: VerifyOptions,
        shapes: Shapes | None,
        seconds: float,
        kind: Distribution = Distribution.NORMAL,
    ) -> Self:
        """Open models at every setting and time them.

        Args:
            models: model files; a file that comes twice has one best setting.
            options: as for `paired_benchmark.contest`.
            shapes: of every random input; None searches them.
            seconds: time that the runs may take.
            kind: how random inputs are distributed.

        Raises:
            UnverifiedError: a model does not run.
        """
        settings = settings_of(options)
        start = time.perf_counter()
        sessions = [[open_at(model, setting) for setting in settings] for model in models]
        opening = (time.perf_counter() - start) / (len(models) * len(settings))
        inputs = timed_inputs(sessions[0][0], shapes, options, kind)
        runs = [rounds_of(session, inputs.sets) for row in sessions for session in row]

        def is_enough(rounds: Rounds, passed: float) -> bool:
            if len(rounds) >= MIN_ROUNDS:
                return passed > min(seconds, CHOICE_SECONDS)
            if passed > max(seconds, CHOICE_PATIENCE):
                return True
            is_long = len(rounds) >= MIN_LONG_ROUNDS and passed > CHOICE_SECONDS
            return is_long and _are_chosen(rounds, len(settings))

        times = timed_rounds(runs, clock_of(options), is_enough)
        times = times.reshape(-1, len(sessions), len(settings))
        best = [int(np.argmin(row)) for row in np.median(times, axis=0)]
        if len(models) > 1 and models[0].samefile(models[1]):
            best[1] = best[0]
        return cls(settings, sessions, inputs, times, best, opening)

    @property
    def best_settings(self) -> list[Setting]:
        """The fastest setting of each model."""
        return [self.settings[number] for number in self.best]

    @property
    def best_sessions(self) -> list[Session]:
        """The session of each model at its fastest setting."""
        return [row[number] for row, number in zip(self.sessions, self.best, strict=True)]

    @property
    def best_times(self) -> Times:
        """Seconds of each model at its fastest setting, [round, model]."""
        return self.times[:, range(len(self.best)), self.best]

    @property
    def advice(self) -> str:
        """A sentence on the gain of the first model by its setting alone, "" where it is little."""
        medians = np.median(self.times[:, 0], axis=0)
        gain = float(medians[0] / medians[self.best[0]])
        return advice_of(gain, self.settings[self.best[0]], self.settings[0])


def choose_settings(
    models: Models, options: VerifyOptions, shapes: Shapes | None, seconds: float
) -> tuple[SettingChoice, Rotation]:
    """Return the best settings, and the inputs to time with; the arguments go to `SettingTimes`."""
    timed = SettingTimes.of(models, options, shapes, seconds)
    original, rewritten = timed.best_settings
    ratios = timed.times[:, 0, 0] / timed.times[:, 1, 0]
    choice = SettingChoice(
        settings=(original, rewritten),
        ratio_at_first_setting=math.exp(float(np.median(np.log(ratios)))),
        advice=timed.advice,
        run=float(np.median(timed.best_times, axis=0).mean()),
        opening=timed.opening,
    )
    return choice, timed.inputs


def timed_rounds(
    runs: Sequence[Run],
    clock: Clock,
    is_enough: Callable[[Rounds, float], bool],
    earlier: Times | None = None,
) -> Times:
    """Run all in turn, at least once after they are warm and at most `MAX_ROUNDS` times.

    Args:
        runs: what to run.
        clock: measures a run.
        is_enough: tells after each round by the seconds of all rounds, and by the seconds that have
            passed, whether no further round is needed.
        earlier: seconds of earlier rounds of the same runs, which count; they are warm then.

    Returns:
        Seconds [round, run].
    """
    start = time.perf_counter()
    if earlier is None:
        warm_up(runs)
    rounds: list[list[float]] = [] if earlier is None else earlier.tolist()
    further = in_turn(runs, clock)
    while len(rounds) < MAX_ROUNDS:
        if rounds and is_enough(rounds, time.perf_counter() - start):
            break
        rounds.append(next(further))
    return np.array(rounds)


def is_look(count: int) -> bool:
    """Check whether to look at so many rounds: each time there are an eighth to a quarter more."""
    return count % (1 << max(count.bit_length() - 3, 0)) == 0


def _are_chosen(rounds: Rounds, count: int) -> bool:
    """Check whether the fastest of the settings of each model is surely the fastest.

    Args:
        rounds: seconds, by round, by model and setting.
        count: number of settings.
    """
    times = np.array(rounds)
    times = times.reshape(len(rounds), -1, count)
    return all(
        is_surely_faster(of_model[:, best], of_model[:, other])
        for of_model in times.swapaxes(0, 1)
        for best in [int(np.argmin(np.median(of_model, axis=0)))]
        for other in range(count)
        if other != best
    )


def advice_of(gain: float, best: Setting, common: Setting) -> str:
    """Return a sentence on the gain of the original by its setting alone, "" if it is little."""
    if gain < WORTH_SAYING:
        return ""
    return f"the original alone is {gain:.1f}x as fast at level {best} as at level {common}"
