"""Time two models in alternating runs, each at the setting of the runtime that suits it best.

The runs come from several sessions of each model in several fresh processes (`runtime.clock`). Both
models take turns in being opened first, as the first one is up to 0.5 % slower
(docs/verification.md#why-runs-are-timed-so).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from widthfold_onnx.options import Shapes, TimingOptions
from widthfold_onnx.progress import Step, progress
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
from widthfold_onnx.runtime.inputs.input_sets import Rotation
from widthfold_onnx.runtime.intervals import Pairing
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import Feeds, resolved
from widthfold_onnx.runtime.settings import (
    CHOICE_SHARE,
    Models,
    Setting,
    SettingChoice,
    choose_settings,
    open_at,
    run_of,
)

PROCESS_SHARE = 1 / 8
"""Share of the budget that a process may take; it may always take twice the time of its start."""

DECIDING_PROCESSES = 2
"""Fewest processes of a contest that decides which model is written: times depend on where memory
lies, which differs from process to process."""

DECIDING_RUNS = 2
OPEN_RUNS = 4
"""Fewest runs of each session in such a contest: if the runs that chose the settings show which
model is faster, and if they leave that open. With 4 runs a gain of 1.10x is found in 83 % of
contests (docs/verification.md#why-runs-are-timed-so)."""


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
    """The times of two models in alternating runs, each at its best setting.

    Attributes:
        options: the options, with the provider that was used.
        inputs: the input sets, which took turns.
        choice: the settings, and how they were chosen.
        processes: what each process measured.
        pairing: the result of the paired timing.
    """

    options: TimingOptions
    inputs: Rotation
    choice: SettingChoice
    processes: Sequence[Process]
    pairing: Pairing


def hold_contest(
    original: Path,
    rewritten: Path,
    options: TimingOptions,
    shapes: Shapes | None = None,
    *,
    decides: bool = False,
    level: Level | None = None,
) -> Contest:
    """Time two models, in one process after the other until the interval is narrow.

    Inputs are random. Stored inputs are taken if the caller asks for no seeds, or if no random
    input runs.

    Args:
        original: model file.
        rewritten: model file.
        options: provider and its options, threads, shapes and time budget are used. One process
            runs however short the budget is.
        shapes: of every random input; None searches them.
        decides: True: run at least `DECIDING_PROCESSES`, even beyond the budget, and stop as soon
            as it is sure which model is faster.
        level: the level of every session; None chooses it.

    Raises:
        UnverifiedError: a model does not run, or no inputs were found.
        UsageError: the provider does not take its options, or stored inputs that do not fit.
    """
    start = time.perf_counter()
    progress(Step("timing: choosing settings"))
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
    progress(Step("timing: alternating runs"))
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
    return Contest(options, inputs, choice, processes, pairing)


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
