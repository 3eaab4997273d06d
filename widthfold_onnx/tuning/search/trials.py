"""Time whole models against each other: a layer that is faster alone may not be in its place.

Results of earlier trials come from the store. The level at which models run is the draft's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Shapes, Sizes, TimingOptions
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.results import SpeedVerdict
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.plan import plan_of
from widthfold_onnx.rewrite.rewriting import rewrite
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.inputs.feeds import Distribution
from widthfold_onnx.runtime.intervals import noise, speed_verdict
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning.bench import is_complete
from widthfold_onnx.tuning.identity import canonical
from widthfold_onnx.tuning.measurement import CandidateResult, Measurement
from widthfold_onnx.tuning.search.session import SearchDraft, SearchSession
from widthfold_onnx.tuning.search.timers import (
    Results,
    Timer,
    send_each,
    time_in_process,
    time_in_turn,
    time_levels,
    time_over_processes,
)

HANG_SECONDS = 600.0
"""Seconds beyond the timing at one size after which a model counts as hung.

Some models run for ten seconds, and an undecided trial runs them almost sixty times.
"""

MAX_MODELS_IN_MEMORY = 8
"""Most models that are in memory at a time, besides the one that they are compared with."""


T = TypeVar("T")


def compare(
    session: SearchSession, base: Draft, draft: SearchDraft, seconds: float
) -> Measurement | None:
    """Time the models of two drafts against each other, each at its strongest setting.

    Args:
        session: where models run.
        base: the draft that should be slower.
        draft: the draft that should be faster.
        seconds: time that timing may take, at all sizes together.

    Returns:
        The ratio time of base / time of draft (`deciding_trial`), lost if one of them does not
        run; None if it is not in the store and nothing is to be measured.
    """
    sizes = trial_sizes(session.sizes)
    candidate = _candidate(base, draft, **_conditions(draft))
    timer = partial(time_in_process, level=draft.level)
    trials = _results(session, sizes, candidate, timer, seconds / len(sizes), (base, draft))
    return deciding_trial(trials)


def ratios_to(
    session: SearchSession,
    draft: SearchDraft,
    others: Sequence[Draft],
    seconds: float,
    kind: Distribution = Distribution.NORMAL,
) -> list[Measurement | None]:
    """Time models of other drafts in turn with the model of a draft, all at one setting.

    Args:
        session: where models run.
        draft: the draft.
        others: such as the draft without some of its changes.
        seconds: time that timing may take, for all others and sizes together.
        kind: how random inputs are distributed.

    Returns:
        Time of each other / time of `draft`, as `compare` does.
    """
    conditions = _conditions(draft)
    candidates = [_candidate(other, draft, inputs=kind, **conditions) for other in others]
    sizes = trial_sizes(session.sizes)
    of_size = seconds / len(sizes)
    open_sizes = [_open_sizes(session, candidate, of_size, sizes) for candidate in candidates]
    untimed = [number for number, open_ones in enumerate(open_sizes) if open_ones]

    def time_others(chunk: Sequence[int]) -> bool:
        open_trials = [(candidates[number], open_sizes[number]) for number in chunk]
        with _files(session, [draft, *(others[number] for number in chunk)]) as (file, *files):
            timer = partial(time_in_turn, file, files, kind, level=draft.level)
            return _run(session, open_trials, timer, of_size, share=len(chunk) / len(untimed))

    for start in range(0, len(untimed), MAX_MODELS_IN_MEMORY):
        chunk = untimed[start : start + MAX_MODELS_IN_MEMORY]
        child_survived = time_others(chunk)
        if not child_survived and len(chunk) > 1:
            # One of them may not run, or memory holds some of them only.
            for number in chunk:
                time_others([number])
    return [
        deciding_trial([_measurement(session, shapes, candidate) for shapes in sizes])
        for candidate in candidates
    ]


def without_each(
    session: SearchSession,
    draft: SearchDraft,
    parts: Sequence[T],
    remainders: Sequence[Draft],
    *,
    named: str,
) -> list[tuple[T, Measurement]]:
    """Time drafts that each lack a part of a draft in turn with that draft.

    Returns:
        The parts without which the model was timed, with what `ratios_to` returns for them.
    """
    progress(Step(f"timing the whole model without each of {named}"))
    trials = ratios_to(session, draft, remainders, session.spending.ablation)
    pairs = zip(parts, trials, strict=True)
    return [(part, trial) for part, trial in pairs if trial is not None and trial.status == "ok"]


def level_ratio(session: SearchSession, draft: Draft) -> Measurement | None:
    """Time one model on the CPU at the first size: at level ALL / at level EXTENDED."""
    digest = plan_of(draft).digest
    candidate = canonical({"of": digest, "than": Level.ALL, "is": Level.EXTENDED})
    sizes, seconds = session.sizes[:1], session.spending.probe
    (measurement,) = _results(session, sizes, candidate, time_levels, seconds, [draft])
    return measurement


def final_trials(
    session: SearchSession, draft: Draft, level: Level | None
) -> list[Measurement | None]:
    """Time a draft against the original at every size, in several processes.

    The caller decides by it which model is written. No result of an earlier comparison counts,
    as that may have been shorter. The level is no part of the candidate. It is set only where
    the original surely is slower at the others, so that the original runs at it anyway.

    Returns:
        By size, as `compare` does.
    """
    candidate, drafts = _final_candidate(draft), (ORIGINAL, draft)
    timer, seconds = partial(time_over_processes, level=level), session.spending.final
    return [
        measurement
        for shapes in session.sizes  # each by itself: one may crash
        for measurement in _results(session, [shapes], candidate, timer, seconds, drafts)
    ]


def stored_final(session: SearchSession, draft: Draft) -> Measurement | None:
    """Return the stored result of `final_trials` at the first size, if there is one."""
    return _measurement(session, session.sizes[0], _final_candidate(draft))


ORIGINAL = Draft()
"""The draft that changes nothing."""


def trial_sizes(sizes: Sizes) -> Sizes:
    """Return the first size and all larger ones: smaller ones get the final trial alone."""
    first, *others = sizes
    return first, *(other for other in others if _elements(other) > _elements(first))


def _results(
    session: SearchSession,
    sizes: Sequence[Shapes],
    candidate: str,
    function: Callable[..., Results],
    seconds: float,
    drafts: Sequence[Draft],
) -> list[Measurement | None]:
    """Return the results of one trial by size, and run it first where it is open.

    `function` times the models of the drafts, whose files it takes in this order.
    """
    open_sizes = _open_sizes(session, candidate, seconds, sizes)
    if open_sizes:
        with _files(session, drafts) as files:
            _run(session, [(candidate, open_sizes)], partial(function, *files), seconds)
    return [_measurement(session, shapes, candidate) for shapes in sizes]


def _conditions(draft: SearchDraft) -> dict[str, str]:
    """Return the level as a condition of a candidate, if it is not chosen for each model."""
    return {} if draft.level is None else {"level": draft.level}


def _measurement(session: SearchSession, shapes: Shapes, candidate: str) -> Measurement | None:
    return session.bench.measurement(session.subject(shapes), candidate)


def _open_sizes(
    session: SearchSession, candidate: str, seconds: float, sizes: Sequence[Shapes]
) -> list[Shapes]:
    """Return at which sizes something is to be timed, for so many seconds each.

    No size follows one at which the candidate is known to be surely slower.
    """
    open_sizes = list[Shapes]()
    for shapes in sizes:
        trial = _measurement(session, shapes, candidate)
        is_done = trial is not None and is_complete(trial, seconds, bar=noise(trial.control))
        if session.search_options.measure and not is_done:
            open_sizes.append(shapes)
        elif is_decided(trial):
            break
    return open_sizes


def _run(
    session: SearchSession,
    open_trials: Sequence[tuple[str, Sequence[Shapes]]],
    timer: Timer,
    seconds: float,
    *,
    share: float = 1.0,
) -> bool:
    """Time models in a child process, and save the measurements of each size when it is done.

    Args:
        session: where models run.
        open_trials: the candidates, in the order in which the timer yields them, each with
            the sizes at which it is to be timed.
        timer: times the candidates at each size.
        seconds: budget of all candidates of a trial, at each size.
        share: share of the budget that these candidates get.

    Returns:
        Whether the child lived; else the candidates are lost at the size at which it ended.
    """
    options = session.search_options.to(
        TimingOptions,
        time_budget=seconds * share,
        seeds=0 if session.search_options.inputs else 1,
    )
    sizes = [
        dict(shapes)
        for shapes in session.sizes
        if any(shapes in open_sizes for _, open_sizes in open_trials)
    ]
    remaining_sizes = list(sizes)

    def save(results: Sequence[Measurement | None]) -> None:
        shapes = remaining_sizes.pop(0)
        for (candidate, open_sizes), result in zip(open_trials, results, strict=True):
            if result is not None and shapes in open_sizes:
                measurement = msgspec.structs.replace(result, budget=seconds)
                subject = session.subject(shapes)
                session.bench.save(CandidateResult(subject, candidate, measurement))

    try:
        isolated(
            send_each,
            timer,
            options,
            sizes,
            child=session.bench.child,
            silence=seconds + HANG_SECONDS,
            on_message=save,
        )
    except UnverifiedError as error:
        if remaining_sizes:  # at the first one of them
            save([Measurement.lost(str(error))] * len(open_trials))
        return False
    return True


@contextmanager
def _files(session: SearchSession, drafts: Sequence[Draft]) -> Iterator[list[Path]]:
    """Yield the files of the models that drafts make; of the original its own file."""
    rewritings = (
        rewrite(session.read(draft), draft.forms) for draft in drafts if draft.is_changing
    )
    with session.scratch.models(rewritings) as files:
        unused = iter(files)
        yield [next(unused) if draft.is_changing else session.model.path for draft in drafts]


def deciding_trial(trials: Sequence[Measurement | None]) -> Measurement | None:
    """Return the deciding trial among the trials at several sizes.

    A change is taken only if it gains at one size and surely loses at none: so the first trial that
    is surely slower, or lost, decides, and else the best one.

    Returns:
        The deciding trial; None if a trial is not known.
    """
    for trial in trials:
        if is_decided(trial):
            return trial
    return max(filter(None, trials), key=lambda trial: trial.low)


def is_decided(trial: Measurement | None) -> bool:
    """Check whether a trial is unknown or surely slower: no later size can change that answer."""
    return trial is None or trial.gain.is_surely_slower


def gains_over_sizes(finals: Sequence[Measurement | None]) -> bool:
    """Check whether trials at several sizes show a gain at one size and a loss at none.

    A trial that was not timed shows neither; where nothing was timed, predictions have decided.
    """
    verdicts = [verdict_of(trial) for trial in finals if trial is not None]
    return not verdicts or ("faster" in verdicts and "slower" not in verdicts)


def verdict_of(trial: Measurement) -> SpeedVerdict:
    """Judge a trial; a model that does not run is slower than any other."""
    return speed_verdict(trial.low, trial.high, trial.control)


def _elements(shapes: Shapes) -> int:
    """Return the number of elements of all inputs."""
    return sum(map(math.prod, shapes.values()))


def _candidate(base: Draft, draft: Draft, **conditions: str) -> str:
    names = [plan_of(d).digest if d.is_changing else "original" for d in (base, draft)]
    return canonical({"than": names[0], "is": names[1], **conditions})


def _final_candidate(draft: Draft) -> str:
    """Return the candidate of the trial that decides whether a draft is taken."""
    return _candidate(ORIGINAL, draft, trial="last")
