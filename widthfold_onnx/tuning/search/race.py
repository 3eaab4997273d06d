"""The second stage: race the layers at the levels of the runtime that may suit the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from widthfold_onnx.options import Sizes
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.runtime.provider_traits import Level, traits_of
from widthfold_onnx.tuning.bench import Budget
from widthfold_onnx.tuning.layers import Layers
from widthfold_onnx.tuning.measurement import Measurement
from widthfold_onnx.tuning.search.level_race import LevelRace
from widthfold_onnx.tuning.search.session import SearchDraft, SearchSession
from widthfold_onnx.tuning.search.trials import level_ratio

MAX_LEVEL_RATIO = 1.05
"""Layers also race at level EXTENDED if the model is at most this much slower there than at ALL.
Trials leave EXTENDED out if the model surely is slower there by more.

They always run at ALL: folded channels fill what its kernels compute, so a model may be fastest
there once it is folded, even if it is not before.
"""


def race(session: SearchSession, draft: SearchDraft) -> SearchDraft:
    """Return the draft in which each layer takes its best form, if that is surely faster.

    The layers race at each promising level, in equal shares of the time. The level at which the
    model may be fastest comes first; an interrupt ends the races with what is known.
    """
    layers = Layers.of(session.read(draft), session.fold_options, session.sizes[0], session.target)
    races: Sequence[LevelRace] = [
        LevelRace(layers, session.bench, predicts=not session.search_options.measure)
    ]
    ratio, is_interrupted = None, False
    try:
        ratio = _level_ratio(session, draft, layers)
        races = _races(races[0], ratio)
        if session.search_options.measure:
            seconds = session.search_options.time_budget or session.spending.race
            for level_race in races:
                level_race.measure(Budget(seconds / len(races)))
    except KeyboardInterrupt:
        is_interrupted = True
    fastest_first = sorted(races, key=LevelRace.estimate)
    return replace(
        draft,
        races=fastest_first,
        all_to_extended=ratio,
        is_interrupted=is_interrupted,
        level=only_level(ratio, session.sizes),
    ).taking(fastest_first[0].chosen())


def _level_ratio(session: SearchSession, draft: SearchDraft, layers: Layers) -> Measurement | None:
    """Return the time of the model at level ALL / at EXTENDED, if it has layers to race there."""
    has_levels = Level.EXTENDED in traits_of(session.search_options.provider).levels
    if not (layers.workloads and has_levels):
        return None
    progress(Step("timing the model at the levels of the runtime"))
    return level_ratio(session, draft)


def _races(at_all: LevelRace, ratio: Measurement | None) -> list[LevelRace]:
    """Return the races at the promising levels: at level ALL and, if it is not slow, EXTENDED."""
    if ratio is None or ratio.status != "ok":
        return [at_all]
    seconds = ratio.seconds * ratio.ratio
    races = [replace(at_all, seconds=seconds)]
    if ratio.seconds < MAX_LEVEL_RATIO * seconds:
        layers = at_all.layers.at(at_all.layers.target.without_blocked_kernels())
        bench = at_all.bench.at(Level.EXTENDED)
        races.append(replace(at_all, layers=layers, bench=bench, seconds=ratio.seconds))
    return races


def only_level(ratio: Measurement | None, sizes: Sizes) -> Level | None:
    """Return level ALL if the model surely is too slow at EXTENDED; None leaves it open.

    The levels were timed at the first size alone, so several sizes leave it open.
    """
    if ratio is None or ratio.status != "ok" or len(sizes) > 1:
        return None
    return Level.ALL if MAX_LEVEL_RATIO * ratio.high < 1 else None
