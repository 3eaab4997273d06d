"""Open sessions for timing, and choose the fastest setting of the runtime for each model.

The highest optimization level is not always the fastest: a convolution of few channels may run nine
times slower there than one level below. On CUDA the layout and the algorithm search change times
more than a fold does. So both models are timed at every setting that `ProviderTraits` names.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Self

import numpy as np
import onnx

from widthfold_onnx.options import RuntimeOptions, Shapes, TimingOptions
from widthfold_onnx.runtime.clock import Clock, Run, Times, clock_of, in_turn, warm_up
from widthfold_onnx.runtime.inputs.feeds import Distribution, random_feeds
from widthfold_onnx.runtime.inputs.input_sets import Rotation, timed_inputs
from widthfold_onnx.runtime.intervals import is_conclusively_faster
from widthfold_onnx.runtime.provider_traits import Level, traits_of
from widthfold_onnx.runtime.session import Feeds, Port, Session, open_session

CHOICE_SHARE = 0.15
"""Share of the budget that choosing the settings may take."""

MIN_ROUNDS = 5
MAX_ROUNDS = 1000
"""Fewest and most rounds after the warm-up; `CHOICE_PATIENCE` and `MIN_LONG_ROUNDS` allow fewer."""

MIN_LONG_ROUNDS = 3
"""Rounds that are enough after `CHOICE_SECONDS` if it is sure which setting of each model is
fastest (docs/verification.md#why-runs-are-timed-so)."""

CHOICE_PATIENCE = 3.0
"""Seconds that `MIN_ROUNDS` may take although the share of the budget is less: a single round may
show the wrong setting (docs/verification.md#why-runs-are-timed-so)."""

CHOICE_SECONDS = 0.6
"""After `MIN_ROUNDS`, no round begins later than this, or than the share of the budget if that is
less. In 0.2 s two copies of a model got different settings
(docs/verification.md#why-runs-are-timed-so)."""

WORTH_SAYING = 1.1
"""Least gain by a setting alone that a report mentions."""

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


def level_in(setting: str) -> Level:
    """Return the level of a setting as reports show it: "all, prefer_nhwc=1" has the level all."""
    return Level(setting.partition(",")[0])


def settings_of(options: RuntimeOptions, level: Level | None = None) -> list[Setting]:
    """Return the settings to choose from; the first is the usual one.

    Args:
        options: provider options that the caller chose have that value in all settings.
        level: the level of all settings; None for every level of the provider.
    """
    provider, fixed = traits_of(options.provider), options.provider_options
    swept = {
        name: (fixed[name],) if name in fixed else values for name, values in provider.swept.items()
    }
    combinations = [
        {**dict(zip(swept, values, strict=True)), **fixed}
        for values in itertools.product(*swept.values())
    ]
    return [
        Setting(each, replace(options, provider_options=combination))
        for each in (provider.levels if level is None else (level,))
        for combination in combinations
    ]


def open_at(
    model: Path | onnx.ModelProto,
    setting: Setting,
    profile: Path | None = None,
    optimized: Path | None = None,
) -> Session:
    """Open a session for timing; `profile` and `optimized` are arguments of `open_session`.

    Raises:
        UnverifiedError: the model does not run.
    """
    return open_session(
        model, setting.options, setting.level, tf32=True, profile=profile, optimized=optimized
    )


def run_of(session: Session, inputs: Sequence[Feeds]) -> Run:
    """Return a function that runs a session once; input sets take turns by its argument."""
    calls = [session.bound(feeds) for feeds in inputs]
    return lambda count: calls[count % len(calls)]()


def random_run(model: bytes | onnx.ModelProto, setting: Setting) -> Run:
    """Return a function that runs a model of fixed sizes once, on random inputs.

    Raises:
        UnverifiedError: the model does not run.
    """
    proto = onnx.ModelProto.FromString(model) if isinstance(model, bytes) else model
    session = open_at(proto, setting)
    return run_of(session, [fixed_feeds(tuple(session.inputs))])


@lru_cache(maxsize=1)
def fixed_feeds(inputs: tuple[Port, ...]) -> Feeds:
    """Draw random inputs of fixed sizes.

    The last set is cached: a draw takes as long as two runs, and the forms of a layer have the same
    inputs. Only one is, as the inputs of a large layer may take gigabytes.
    """
    shapes = {port.name: tuple(int(dim or 1) for dim in port.dims) for port in inputs}
    return random_feeds(inputs, 0, shapes)


@dataclass(frozen=True)
class SettingChoice:
    """The best setting of each model, and what the runs that chose it show.

    Attributes:
        settings: the best settings of the original and the rewritten model.
        ratio_at_first_setting: original / rewritten with both at the usual setting.
        advice: a sentence on the gain of the original by its setting alone; "" if that is small.
        run: seconds of a run at the best setting, the mean of both models.
        opening: seconds of opening a session.
        is_open: True if these few runs do not show which model is faster.
    """

    settings: tuple[Setting, Setting]
    ratio_at_first_setting: float
    advice: str
    run: float
    opening: float
    is_open: bool


@dataclass(frozen=True)
class OpenModels:
    """Models, each with an open session at every setting.

    Attributes:
        files: model files; if both are the same file, they get the same best setting.
        options: provider and its options, threads and stored inputs are used.
        settings: the settings; the first is the usual one.
        sessions: [model][setting].
        opening: seconds of opening a session.
    """

    files: Sequence[Path]
    options: TimingOptions
    settings: Sequence[Setting]
    sessions: Sequence[Sequence[Session]]
    opening: float

    @classmethod
    def of(cls, files: Sequence[Path], options: TimingOptions, level: Level | None = None) -> Self:
        """Open models.

        Args:
            files: model files.
            options: provider and its options, threads and stored inputs are used.
            level: the level of all sessions; None for every level of the provider.

        Raises:
            UnverifiedError: a model does not run.
        """
        settings = settings_of(options, level)
        start = time.perf_counter()
        sessions = [[open_at(file, setting) for setting in settings] for file in files]
        opening = (time.perf_counter() - start) / (len(files) * len(settings))
        return cls(files, options, settings, sessions, opening)

    def setting_times(
        self, shapes: Shapes | None, seconds: float, kind: Distribution = Distribution.NORMAL
    ) -> SettingTimes:
        """Time the models at every setting, all in turn.

        Args:
            shapes: of every random input; None searches them.
            seconds: time that the runs may take.
            kind: how random inputs are distributed.

        Raises:
            UnverifiedError: a model does not run.
        """
        inputs = timed_inputs(self.sessions[0][0], shapes, self.options, kind)
        runs = [run_of(session, inputs.sets) for row in self.sessions for session in row]

        def by_model(rounds: Rounds) -> Times:
            return np.array(rounds).reshape(len(rounds), len(self.files), len(self.settings))

        def is_enough(rounds: Rounds, passed: float) -> bool:
            if len(runs) == 1:
                return True  # there is nothing to choose
            if len(rounds) >= MIN_ROUNDS:
                return passed > min(seconds, CHOICE_SECONDS)
            if passed > max(seconds, CHOICE_PATIENCE):
                return True
            is_long = len(rounds) >= MIN_LONG_ROUNDS and passed > CHOICE_SECONDS
            return is_long and SettingTimes(self, inputs, by_model(rounds)).are_conclusive

        times = timed_rounds(runs, clock_of(self.options), is_enough)
        return SettingTimes(self, inputs, by_model(times.tolist()))


@dataclass(frozen=True)
class SettingTimes:
    """Times of open models at every setting, at one size of the inputs.

    Attributes:
        open_models: the models.
        inputs: the sets that took turns.
        times: seconds, [round, model, setting].
    """

    open_models: OpenModels
    inputs: Rotation
    times: Times

    @cached_property
    def best(self) -> list[int]:
        """Index of the fastest setting of each model."""
        best = [int(np.argmin(row)) for row in np.median(self.times, axis=0)]
        files = self.open_models.files
        return best[:1] * 2 if len(files) == 2 and files[0].samefile(files[1]) else best

    @property
    def best_settings(self) -> list[Setting]:
        """The fastest setting of each model."""
        return [self.open_models.settings[number] for number in self.best]

    @property
    def best_sessions(self) -> list[Session]:
        """The session of each model at its fastest setting."""
        rows = zip(self.open_models.sessions, self.best, strict=True)
        return [row[number] for row, number in rows]

    @property
    def best_times(self) -> Times:
        """Seconds of each model at its fastest setting, [round, model]."""
        return self.times[:, range(len(self.best)), self.best]

    @property
    def are_conclusive(self) -> bool:
        """True if it is sure for each model that its fastest setting is the fastest."""
        return all(
            is_conclusively_faster(self.times[:, model, best], self.times[:, model, other])
            for model, best in enumerate(self.best)
            for other in range(len(self.open_models.settings))
            if other != best
        )

    @property
    def advice(self) -> str:
        """A sentence on the gain of the first model by its setting alone; "" if that is small."""
        settings, best = self.open_models.settings, self.best[0]
        medians = np.median(self.times[:, 0], axis=0)
        return advice_of(float(medians[0] / medians[best]), settings[best], settings[0])


def choose_settings(
    models: Models,
    options: TimingOptions,
    shapes: Shapes | None,
    seconds: float,
    level: Level | None,
) -> tuple[SettingChoice, Rotation]:
    """Return the best settings, and the inputs to time with.

    Args:
        models: the original and the rewritten model file.
        options: provider and its options, threads and stored inputs are used.
        shapes: of every random input; None searches them.
        seconds: time that the runs may take.
        level: the level of all sessions; None for every level of the provider.

    Raises:
        UnverifiedError: a model does not run.
    """
    setting_times = OpenModels.of(models, options, level).setting_times(shapes, seconds)
    original, rewritten = setting_times.best_settings
    ratios = setting_times.times[:, 0, 0] / setting_times.times[:, 1, 0]
    own, other = setting_times.best_times.T
    is_conclusive = is_conclusively_faster(own, other) or is_conclusively_faster(other, own)
    choice = SettingChoice(
        settings=(original, rewritten),
        ratio_at_first_setting=math.exp(float(np.median(np.log(ratios)))),
        advice=setting_times.advice,
        run=float(np.median(setting_times.best_times, axis=0).mean()),
        opening=setting_times.open_models.opening,
        is_open=len(own) < MIN_LONG_ROUNDS or not is_conclusive,
    )
    return choice, setting_times.inputs


def timed_rounds(
    runs: Sequence[Run],
    clock: Clock,
    is_enough: Callable[[Rounds, float], bool],
    earlier: Times | None = None,
    *,
    is_warm: bool = False,
) -> Times:
    """Run rounds until they are enough: at least one, at most `MAX_ROUNDS`.

    Args:
        runs: the sides of a round.
        clock: measures a run.
        is_enough: called after each round with the seconds of all rounds and the seconds since the
            start; True ends the rounds.
        earlier: seconds of earlier rounds of the same runs. They count as rounds, so that perhaps
            no other is run.
        is_warm: True if the runs need no warm-up.

    Returns:
        Seconds [round, run].
    """
    start = time.perf_counter()
    if not is_warm:
        warm_up(runs)
    rounds: list[list[float]] = [] if earlier is None else earlier.tolist()
    further = in_turn(runs, clock)
    while len(rounds) < MAX_ROUNDS:
        if rounds and is_enough(rounds, time.perf_counter() - start):
            break
        rounds.append(next(further))
    return np.array(rounds)


def advice_of(gain: float, best: Setting, common: Setting) -> str:
    """Return a sentence on the gain of the original by its setting alone; "" if it is small."""
    if gain < WORTH_SAYING:
        return ""
    return f"the original alone is {gain:.1f}x as fast at level {best} as at level {common}"
