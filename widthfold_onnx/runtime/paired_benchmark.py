"""Time two models in alternating runs, each at the setting of the runtime that suits it best.

The runs of a contest come from several sessions of each model in several fresh processes
(`runtime.clock`). All other timings run one session of each model, in one process.

Where a process had computed much before, the session that was opened first was seen to be 0.1 to
0.5 % slower than the next. The same held for the model that always came first.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from widthfold_onnx.options import Progress, Shapes, Step, VerifyOptions, silent
from widthfold_onnx.results import GpuState
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.clock import (
    PROCESS_START_SECONDS,
    Repeats,
    Run,
    Times,
    alternate,
    clock_of,
    repeats,
    seconds_of,
)
from widthfold_onnx.runtime.environment import watched
from widthfold_onnx.runtime.inputs.feeds import Distribution
from widthfold_onnx.runtime.inputs.input_sets import Rotation, timed_inputs
from widthfold_onnx.runtime.intervals import Pairing, is_settled, one_session
from widthfold_onnx.runtime.measurement import Measurement, timed
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import Feeds, Session, resolved
from widthfold_onnx.runtime.settings import (
    CHOICE_PATIENCE,
    CHOICE_SECONDS,
    CHOICE_SHARE,
    MIN_ROUNDS,
    Models,
    OpenModels,
    Rounds,
    Setting,
    SettingChoice,
    advice_of,
    choose_settings,
    open_at,
    run_of,
    settings_of,
    timed_rounds,
)

PROCESS_SHARE = 1 / 8
"""Share of the budget that a process may take, or twice as long as it starts if that is more."""

DECIDING_PROCESSES = 2
"""Fewest processes of a contest that decides which model is written: one may be an unlucky one, as
memory lies elsewhere in every process."""

DECIDING_RUNS = 2
OPEN_RUNS = 4
"""Fewest runs of each session in such a contest: where the choice of settings is conclusive, and
where it leaves open which model is faster.

Where runs are long, starting a process takes longer than they do. In simulated contests with
`clock.RUN_SPREAD`, two processes showed a gain of 1.10x in 83 % with 4 runs of each session, and in
68 % with 2 runs. Four processes with one run showed it in 63 %. Two equal models seemed to differ
in 0.2 % of the contests with 4 runs, and in 0.8 % of the contests with 2 runs.
"""


@dataclass(frozen=True)
class Process:
    """The measurements of one process, in seconds; side 0 is the original.

    Attributes:
        runs: every run, [side, session, run].
        loads: the opening of every session, [side, session].
        firsts: the first run of every session, [side, session].
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
        models: original and rewritten.
        options: with the provider that was used.
        inputs: the sets that took turns.
        choice: the settings.
        processes: what each process measured.
        pairing: the result of the paired timing.
    """

    models: Models
    options: VerifyOptions
    inputs: Rotation
    choice: SettingChoice
    processes: Sequence[Process]
    pairing: Pairing


def contest(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    shapes: Shapes | None = None,
    *,
    decides: bool = False,
    level: Level | None = None,
    on_progress: Progress = silent,
) -> Contest:
    """Time two models, in one process after the other until the interval is narrow.

    Inputs are random. Stored inputs are taken if the caller asks for no seeds, or if no random
    input runs.

    Args:
        original: model file.
        rewritten: model file.
        options: provider and its options, threads, shapes and time budget are used; one process
            is always run.
        shapes: of every random input; None searches them.
        decides: run `DECIDING_PROCESSES`, even if they take longer than the budget, and end as soon
            as it is sure which model is faster.
        level: the level of every session; None chooses it.
        on_progress: called with a step when a phase begins.

    Raises:
        UnverifiedError: a model does not run, or no inputs were found.
        UsageError: the provider does not take its options, or stored inputs that do not fit.
    """
    start = time.perf_counter()
    on_progress(Step("timing: choosing settings"))
    options = resolved(options)
    models = (original, rewritten)
    choice_seconds = options.time_budget * CHOICE_SHARE
    choice, inputs = choose_settings(models, options, shapes, choice_seconds, level)
    seconds = max(options.time_budget * PROCESS_SHARE, 2 * PROCESS_START_SECONDS)
    fewest_processes, fewest_runs = 1, 1
    if decides:
        fewest_processes = DECIDING_PROCESSES
        fewest_runs = OPEN_RUNS if choice.is_open else DECIDING_RUNS
    counts = repeats(choice.run, choice.opening, seconds, fewest_runs=fewest_runs)
    on_progress(Step("timing: alternating runs"))
    task = (models, choice.settings, inputs.shared(2 * counts.sessions), counts)
    processes: list[Process] = []
    longest = 0.0
    for turn in itertools.count():
        process_start = time.perf_counter()
        processes.append(isolated(time_sessions, *task, turn))
        now = time.perf_counter()
        longest = max(longest, now - process_start)
        pairing = Pairing.of(np.stack([process.runs for process in processes]))
        is_late = now + longest > start + options.time_budget
        is_enough = pairing.converged or is_late or (decides and pairing.is_conclusive)
        if is_enough and len(processes) >= fewest_processes:
            break
    return Contest(models, options, inputs, choice, processes, pairing)


Timer = Callable[..., Iterator[Sequence[Measurement | None]]]
"""A function that yields the measurements of its candidates by size; None for a candidate that an
earlier size has decided."""


def send_each(timer: Timer, *args: object, send: Callable[[object], None]) -> None:
    """Run a timer in a child process, and send the measurements of each size.

    `runtime.child.isolated` calls it, and gives `send`.
    """
    for results in timer(*args):
        send(results)


def ratio_over_processes(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    sizes: Sequence[Shapes | None],
    *,
    level: Level | None = None,
) -> Iterator[list[Measurement]]:
    """Yield the result of a `contest` that decides, at each size.

    Raises:
        UnverifiedError: a model does not run.
    """
    for shapes in sizes:
        outcome = contest(original, rewritten, options, shapes, decides=True, level=level)
        pairing, choice = outcome.pairing, outcome.choice
        seconds = float(np.median(pairing.samples[:, 1]))
        measurement = timed(pairing.ratio, pairing.low, pairing.high, seconds, pairing.pairs)
        measurement = msgspec.structs.replace(measurement, control=pairing.control)
        yield [_at_settings(measurement, choice.settings, choice.advice)]


def ratio_in_process(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    sizes: Sequence[Shapes],
    *,
    level: Level | None = None,
) -> Iterator[list[Measurement]]:
    """Time two models, each at the setting that suits it best, in this process.

    Each has one session at each setting, as starting several processes takes longer than the runs
    of a trial. The runs that chose the settings count where the choice is sure: the faster one of
    two alike settings owes its time to chance. The fewest rounds run, however long they take: with
    `clock.RUN_SPREAD`, a single pair called one of two equal models faster in a third of simulated
    trials. The share of a short budget does not choose: in 0.15 s one of two copies of a net got a
    level at which it was 8 % slower.

    Args:
        original: model file.
        rewritten: model file.
        options: as for `contest`; the budget holds for each size.
        sizes: shapes of every random input, one or more assignments.
        level: the level of every session; None chooses it.

    Yields:
        The measurement at each size, until the rewritten model is surely slower.

    Raises:
        UnverifiedError: a model does not run.
    """
    models = OpenModels.of((original, rewritten), options, level)
    for shapes in sizes:
        setting_times = models.timed(shapes, CHOICE_SECONDS)
        (measurement,) = ratios_in_turn(
            setting_times.best_sessions[::-1],
            setting_times.inputs,
            options,
            options.time_budget,
            patience=math.inf,
            earlier=setting_times.best_times[:, ::-1] if setting_times.are_conclusive else None,
            is_warm=True,
        )
        yield [_at_settings(measurement, setting_times.best_settings, setting_times.advice)]
        if measurement.high < 1:
            return


def ratios_to(
    model: Path,
    others: Sequence[Path],
    kinds: Sequence[Distribution],
    options: VerifyOptions,
    sizes: Sequence[Shapes],
    *,
    level: Level | None = None,
) -> Iterator[list[Measurement | None]]:
    """Time other models in turn with a model, all at the setting that suits the model best.

    Each has one session, as there are many; so the first size chooses the setting.

    Args:
        model: model file.
        others: model files.
        kinds: how random inputs are distributed, one after the other.
        options: as for `contest`; the budget holds for all kinds together, at each size.
        sizes: shapes of every random input, one or more assignments.
        level: the level of every session; None chooses it.

    Yields:
        At each size, on inputs of each kind, for each other model: time of it / time of the model;
        None where it was surely faster than the model at an earlier size.

    Raises:
        UnverifiedError: a model does not run.
    """
    seconds = options.time_budget * CHOICE_SHARE
    setting_times = OpenModels.of([model], options, level).timed(sizes[0], seconds, kinds[0])
    (base,), (setting,) = setting_times.best_sessions, setting_times.best_settings
    sessions = [open_at(other, setting) for other in others]

    def inputs_of(shapes: Shapes, kind: Distribution) -> Rotation:
        is_drawn = shapes is sizes[0] and kind is kinds[0]
        return setting_times.inputs if is_drawn else timed_inputs(base, shapes, options, kind)

    undecided = {kind: list(range(len(others))) for kind in kinds}
    for shapes in sizes:
        results: list[Measurement | None] = []
        for kind, numbers in undecided.items():
            ratio_of: dict[int, Measurement] = {}
            if numbers:
                sides = [base, *(sessions[number] for number in numbers)]
                inputs = inputs_of(shapes, kind)
                ratios = ratios_in_turn(sides, inputs, options, options.time_budget / len(kinds))
                ratio_of = dict(zip(numbers, ratios, strict=True))
            results += [ratio_of.get(number) for number in range(len(others))]
            undecided[kind] = [number for number in numbers if ratio_of[number].high >= 1]
        yield results
        if not any(undecided.values()):
            return


def ratio_of_levels(
    model: Path, options: VerifyOptions, sizes: Sequence[Shapes]
) -> Iterator[list[Measurement]]:
    """Time a model at both levels of its provider against each other, in this process.

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
        (measurement,) = ratios_in_turn(sessions, inputs, options, options.time_budget)
        advice = advice_of(measurement.ratio, other, common)
        yield [_at_settings(measurement, (common, other), advice)]


def _at_settings(measurement: Measurement, settings: Sequence[Setting], advice: str) -> Measurement:
    """Return a measurement with the settings of both sides, and the advice on them."""
    original, other = map(str, settings)
    return msgspec.structs.replace(
        measurement, note=advice, original_setting=original, setting=other
    )


def ratios_in_turn(
    sessions: Sequence[Session],
    inputs: Rotation,
    options: VerifyOptions,
    seconds: float,
    *,
    patience: float = CHOICE_PATIENCE,
    earlier: Times | None = None,
    is_warm: bool = False,
) -> list[Measurement]:
    """Time sessions in turn; return the time of each other session / time of the first.

    It ends after `CHOICE_SECONDS` of runs when more runs would tell hardly more of any of them.

    Args:
        sessions: the sessions.
        inputs: the sets that take turns.
        options: they determine the clock.
        seconds: after which no further round begins, once there are the fewest.
        patience: seconds that fewer rounds may take, if that is more.
        earlier: goes to `timed_rounds`.
        is_warm: goes there, too.
    """
    runs = [run_of(session, inputs.sets) for session in sessions]

    def is_enough(rounds: Rounds, passed: float) -> bool:
        if len(rounds) < MIN_ROUNDS:
            return passed > max(seconds, patience)
        return passed > seconds or (is_look(len(rounds)) and are_settled(np.array(rounds)))

    def are_settled(times: Times) -> bool:
        own, *others = times.T
        return times.sum() > CHOICE_SECONDS and all(is_settled(other, own) for other in others)

    times = timed_rounds(runs, clock_of(options), is_enough, earlier, is_warm=is_warm)
    own, *others = times.T
    return [measurement_of(other, own) for other in others]


def is_look(count: int) -> bool:
    """Check whether to look at so many rounds: each time there are an eighth to a quarter more."""
    return count % (1 << max(count.bit_length() - 3, 0)) == 0


def time_sessions(
    models: Models,
    settings: tuple[Setting, Setting],
    inputs: Sequence[Feeds],
    counts: Repeats,
    turn: int,
) -> Process:
    """Time several sessions of both models; to be run in `runtime.child.isolated`.

    Either model comes first at every second session, and at the first one of every second process.

    Args:
        models: original and rewritten.
        settings: of both.
        inputs: the sets that take turns.
        counts: sessions of each model, and runs of each session.
        turn: number of the process.

    Raises:
        UnverifiedError: a model does not run.
    """
    options = settings[0].options
    clock = clock_of(options)
    runs: tuple[list[Run], list[Run]] = ([], [])
    loads, firsts = np.zeros((2, 2, counts.sessions))
    for number in range(counts.sessions):
        for side in (0, 1) if (number + turn) % 2 == 0 else (1, 0):
            start = clock()
            session = open_at(models[side], settings[side])
            loads[side, number] = (clock() - start) * 1e-9
            runs[side].append(run_of(session, inputs))
            firsts[side, number] = seconds_of(runs[side][-1], 0, clock)
    with watched(options) as states:
        times = alternate([*runs[0], *runs[1]], counts.runs, clock, seed=turn)
    return Process(times.reshape(2, counts.sessions, counts.runs), loads, firsts, states)


def measurement_of(numerator: Times, denominator: Times) -> Measurement:
    """Return the measurement of a ratio of seconds [pair], of one session of each side."""
    ratio, low, high = map(math.exp, one_session(np.log(numerator / denominator)))
    return timed(ratio, low, high, float(np.median(denominator)), len(denominator))
