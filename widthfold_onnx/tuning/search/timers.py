"""Time whole models against each other for the search, size by size, in a child process.

A timer yields the results of each size as soon as it has them. The final trial is a contest
(`runtime.contest`). In every other trial each model has one session, or one at each setting, and
all run in one process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from widthfold_onnx.options import Shapes, TimingOptions
from widthfold_onnx.runtime.clock import clock_of
from widthfold_onnx.runtime.contest import hold_contest
from widthfold_onnx.runtime.inputs.feeds import Distribution
from widthfold_onnx.runtime.inputs.input_sets import Rotation, timed_inputs
from widthfold_onnx.runtime.intervals import is_settled
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import Session
from widthfold_onnx.runtime.settings import (
    CHOICE_PATIENCE,
    CHOICE_SECONDS,
    CHOICE_SHARE,
    MIN_ROUNDS,
    OpenModels,
    Rounds,
    Setting,
    advice_of,
    open_at,
    run_of,
    settings_of,
    timed_rounds,
)
from widthfold_onnx.tuning.measurement import Measurement

Results = Iterator[Sequence[Measurement | None]]
"""Measurements of candidates by size; None for a candidate that an earlier size has decided."""

Timer = Callable[[TimingOptions, Sequence[Shapes]], Results]
"""A function of this module, bound to its model files."""


def send_each(
    timer: Timer,
    options: TimingOptions,
    sizes: Sequence[Shapes],
    *,
    send: Callable[[Sequence[Measurement | None]], None],
) -> None:
    """Run a timer in a child process, and send the measurements of each size.

    `runtime.child.isolated` calls it, and gives `send`.
    """
    for results in timer(options, sizes):
        send(results)


def time_over_processes(
    original: Path,
    rewritten: Path,
    options: TimingOptions,
    sizes: Sequence[Shapes | None],
    *,
    level: Level | None = None,
) -> Iterator[list[Measurement]]:
    """Yield the result of a `contest` that decides, at each size.

    Raises:
        UnverifiedError: a model does not run.
    """
    for shapes in sizes:
        result = hold_contest(original, rewritten, options, shapes, decides=True, level=level)
        pairing, choice = result.pairing, result.choice
        seconds = float(np.median(pairing.samples[:, 1]))
        measurement = Measurement.of_ratio(
            pairing.ratio, pairing.low, pairing.high, seconds, pairing.pairs
        )
        measurement = msgspec.structs.replace(measurement, control=pairing.control)
        yield [_at_settings(measurement, choice.settings, choice.advice)]


def time_in_process(
    original: Path,
    rewritten: Path,
    options: TimingOptions,
    sizes: Sequence[Shapes],
    *,
    level: Level | None = None,
) -> Iterator[list[Measurement]]:
    """Time two models, each at the setting that suits it best, in this process.

    Each has one session at each setting, as starting several processes takes longer than the runs
    of a trial. The runs that chose the settings count where the choice is sure: the faster one of
    two alike settings owes its time to chance. The fewest rounds run, however long they take: with
    `clock.RUN_SPREAD`, a single pair called one of two equal models faster in a third of simulated
    trials. Settings are chosen for `CHOICE_SECONDS`, not for a share of the budget. In 0.15 s one
    of two copies of a net got a level at which it was 8 % slower.

    Args:
        original: model file.
        rewritten: model file.
        options: provider and its options, threads, stored inputs, and the budget of each size.
        sizes: shapes of every random input, one or more assignments.
        level: the level of every session; None chooses it.

    Yields:
        The measurement at each size, until the rewritten model is surely slower.

    Raises:
        UnverifiedError: a model does not run.
    """
    models = OpenModels.of((original, rewritten), options, level)
    for shapes in sizes:
        setting_times = models.setting_times(shapes, CHOICE_SECONDS)
        sessions, inputs = setting_times.best_sessions, setting_times.inputs
        times = timed_rounds(
            [run_of(session, inputs.sets) for session in sessions],
            clock_of(options),
            partial(is_enough, seconds=options.time_budget, patience=math.inf),
            earlier=setting_times.best_times if setting_times.are_conclusive else None,
            is_warm=True,
        )
        measurement = Measurement.of_times(*times.T)
        yield [_at_settings(measurement, setting_times.best_settings, setting_times.advice)]
        if measurement.gain.is_surely_slower:
            return


def time_in_turn(
    model: Path,
    others: Sequence[Path],
    kind: Distribution,
    options: TimingOptions,
    sizes: Sequence[Shapes],
    *,
    level: Level | None = None,
) -> Iterator[list[Measurement | None]]:
    """Time other models in turn with a model, all at the setting that suits the model best.

    Each has one session, as there are many; so the first size chooses the setting.

    Args:
        model: model file.
        others: model files.
        kind: how random inputs are distributed.
        options: provider and its options, threads, stored inputs, and the budget of each size.
        sizes: shapes of every random input, one or more assignments.
        level: the level of every session; None chooses it.

    Yields:
        At each size, for each other model: time of it / time of the model; None where it was surely
        faster than the model at an earlier size.

    Raises:
        UnverifiedError: a model does not run.
    """
    seconds = options.time_budget * CHOICE_SHARE
    models = OpenModels.of([model], options, level)
    setting_times = models.setting_times(sizes[0], seconds, kind)
    (base,), (setting,) = setting_times.best_sessions, setting_times.best_settings
    sessions = [open_at(other, setting) for other in others]
    undecided = list(range(len(others)))
    for shapes in sizes:
        is_drawn = shapes is sizes[0]
        inputs = setting_times.inputs if is_drawn else timed_inputs(base, shapes, options, kind)
        sides = [base, *(sessions[number] for number in undecided)]
        ratios = ratios_in_turn(sides, inputs, options)
        ratio_of = dict(zip(undecided, ratios, strict=True))
        yield [ratio_of.get(number) for number in range(len(others))]
        undecided = [number for number in undecided if not ratio_of[number].gain.is_surely_slower]
        if not undecided:
            return


def time_levels(
    model: Path, options: TimingOptions, sizes: Sequence[Shapes]
) -> Iterator[list[Measurement]]:
    """Time a model at both levels of the CPU against each other, in this process.

    Each level has one session, because the chosen level is raced or timed again.

    Yields:
        Time at level ALL / time at the other level, at each size.

    Raises:
        UnverifiedError: the model does not run.
    """
    common, other = settings_of(options)
    sessions = [open_at(model, setting) for setting in (other, common)]
    for shapes in sizes:
        inputs = timed_inputs(sessions[1], shapes, options)
        (measurement,) = ratios_in_turn(sessions, inputs, options)
        advice = advice_of(measurement.ratio, other, common)
        yield [_at_settings(measurement, (common, other), advice)]


def _at_settings(measurement: Measurement, settings: Sequence[Setting], advice: str) -> Measurement:
    """Return a measurement with the settings of both sides, and the advice on them."""
    original, other = map(str, settings)
    return msgspec.structs.replace(
        measurement, note=advice, original_setting=original, setting=other
    )


def ratios_in_turn(
    sessions: Sequence[Session], inputs: Rotation, options: TimingOptions
) -> list[Measurement]:
    """Time sessions in turn; return the time of each other session / time of the first.

    Args:
        sessions: the sessions.
        inputs: the sets that take turns.
        options: the budget, and options that determine the clock.
    """
    runs = [run_of(session, inputs.sets) for session in sessions]
    rule = partial(is_enough, seconds=options.time_budget)
    first, *others = timed_rounds(runs, clock_of(options), rule).T
    return [Measurement.of_times(other, first) for other in others]


def is_enough(
    rounds: Rounds, passed: float, *, seconds: float, patience: float = CHOICE_PATIENCE
) -> bool:
    """Check whether no further round of a trial is needed.

    Rounds also end after `CHOICE_SECONDS` of runs when more would tell hardly more of any session.

    Args:
        rounds: seconds by round and session; others are compared with the first session.
        passed: seconds since the first round.
        seconds: after which no further round begins, once there are the fewest.
        patience: seconds that fewer rounds may take, if that is more.
    """
    if len(rounds) < MIN_ROUNDS:
        return passed > max(seconds, patience)
    if passed > seconds or not is_time_to_judge(len(rounds)):
        return passed > seconds
    times = np.array(rounds)
    first, *others = times.T
    return times.sum() > CHOICE_SECONDS and all(is_settled(other, first) for other in others)


def is_time_to_judge(count: int) -> bool:
    """Check whether times are judged after this many rounds.

    Between two judgements the number grows by an eighth to a quarter.
    """
    return count % (1 << max(count.bit_length() - 3, 0)) == 0
