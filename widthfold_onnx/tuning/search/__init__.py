"""Search the forms that make the model faster: measure layer by layer, decide by the whole model.

`search` runs the stages: `context`, `companions`, `level_search`, `settling` (by `agreement`),
`padding`, `finished_search`; `trials` times whole models by `timers`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from widthfold_onnx.decide.outcomes import Decided, companion_reports
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import FoldOptions, SearchOptions
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.rewrite.plan import Plan
from widthfold_onnx.rewrite.scratch import Scratch
from widthfold_onnx.runtime.child import Child
from widthfold_onnx.runtime.provider_traits import Level, traits_of
from widthfold_onnx.tuning.bench import Bench, Budget
from widthfold_onnx.tuning.effort import BenchOptions
from widthfold_onnx.tuning.layers import Layers
from widthfold_onnx.tuning.measurement import Measurement
from widthfold_onnx.tuning.search.companions import best_companions
from widthfold_onnx.tuning.search.context import SearchContext, find_context
from widthfold_onnx.tuning.search.finished_search import FinishedSearch
from widthfold_onnx.tuning.search.level_search import LevelSearch, LevelSearches
from widthfold_onnx.tuning.search.padding import best_padding, untimed_report
from widthfold_onnx.tuning.search.settling import settle
from widthfold_onnx.tuning.search.trials import Trials, gains_over_sizes
from widthfold_onnx.tuning.store import Store

MAX_LEVEL_RATIO = 1.05
"""Layers also race at level EXTENDED if the model is at most this much slower there than at ALL.
Trials leave EXTENDED out if the model surely is slower there by more.

They always run at ALL: folded channels fill what its kernels compute, so a model may be fastest
there once it is folded, even if it is not before.
"""


def search(
    loaded: LoadedModel,
    fold_options: FoldOptions,
    search_options: SearchOptions,
    store: Store,
) -> Decided:
    """Measure, choose, try, and return the plan with the outcome of every layer.

    1. Every companion that matches is timed with the whole model; companions that surely help are
       taken.
    2. The model is timed at the levels of the runtime. At promising levels every layer races in
       its forms (`level_search`); its best form is chosen if it is surely faster. The level that
       promises the fastest model comes first.
    3. The choice in which neighbours agree on layouts at least cost (`agreement`) is timed with
       the whole model, at each level. Then the model is timed without each form; what does not
       help in its place is dropped (`settling`).
    4. The model is timed with the channels of whole chains padded (`padding`).
    5. The rest is timed against the original at its strongest setting, at every size of the
       inputs. It must be faster beyond the noise at one size, and slower at none; else nothing is
       folded.

    If nothing is to be measured, 1 to 5 use the store, and `tuning.cost` for layers without a
    stored measurement; a companion without one is not taken.

    Args:
        loaded: the model.
        fold_options: which layers may be folded, and limits.
        search_options: where and how long to measure.
        store: the known measurements; new ones are added to it.

    Raises:
        UnverifiedError: the runtime cannot be used, or the model does not run.
    """
    progress(Step("looking for the provider and the shapes of the inputs"))
    with tempfile.TemporaryDirectory() as folder, Child() as child:
        context = find_context(loaded, search_options, fold_options.input_shapes, store, child)
        options = BenchOptions(replace(search_options, provider=context.provider), fold_options)
        is_kept = traits_of(context.provider).device == "cpu"
        if not is_kept:
            child.end()  # it holds memory of the accelerator, and what fails there may break it
        bench = Bench(options, store, context.machine, child if is_kept else None)
        return _search(Trials(bench, context, Scratch(loaded, Path(folder))))


def _search(trials: Trials) -> Decided:
    """Draft companions, race the layers, settle on their forms, and try the plan."""
    drafting = trials.drafting
    matches = drafting.matches(drafting.fold_options.active_companions)
    draft, gains = best_companions(trials, matches)
    level_searches = _search_levels(trials, draft)
    trials_at_level = trials.at(_only_level(level_searches.all_to_extended, trials.context))
    level_search = level_searches.fastest_first[0]
    forms = level_search.chosen()
    if not level_searches.interrupted:
        level_search, forms = settle(trials_at_level, level_searches.fastest_first)
    unpadded = plan = level_search.plan(forms)
    padding = None if level_searches.interrupted else best_padding(trials_at_level, unpadded)
    if padding is not None and padding.is_taken:
        plan = padding.plan
    finals: Sequence[Measurement | None] = [None] * len(trials.context.sizes)
    if plan.is_changing:
        progress(Step("timing the whole model"))
        # The levels were timed with companions, so they say nothing of the original then.
        finals = (trials if draft.is_changing else trials_at_level).final(plan)
    if not gains_over_sizes(finals):
        plan, forms = drafting.unchanged, {}
    exchanged_companions = {companion.companion for companion in plan.companions}
    return FinishedSearch(trials, level_searches, level_search, forms, plan, finals).decided(
        companion_reports(matches, exchanged_companions, "not measured", gains),
        padding.report(plan) if padding else untimed_report(drafting, unpadded),
    )


def _search_levels(trials: Trials, draft: Plan) -> LevelSearches:
    """Race the layers at the levels that may suit the model, in equal shares of the time."""
    search_options, context, drafting = trials.search_options, trials.context, trials.drafting
    reading = drafting.reading(draft)
    layers = Layers.of(reading, drafting.fold_options, context.sizes[0], context.target)
    first = LevelSearch(draft, layers, trials.bench)
    all_to_extended = None
    interrupted = False
    searches = [first]
    try:
        has_levels = Level.EXTENDED in traits_of(search_options.provider).levels
        if layers.workloads and has_levels:
            progress(Step("timing the model at the levels of the runtime"))
            all_to_extended = trials.level_ratio(draft)
        if all_to_extended is not None and all_to_extended.status == "ok":
            extended_seconds = all_to_extended.seconds
            all_seconds = extended_seconds * all_to_extended.ratio
            searches = [replace(first, seconds=all_seconds)]
            if extended_seconds < MAX_LEVEL_RATIO * all_seconds:
                layers_at_extended = layers.at(context.target.without_blocked_kernels())
                bench = trials.bench.at(Level.EXTENDED)
                searches.append(LevelSearch(draft, layers_at_extended, bench, extended_seconds))
        if search_options.measure:
            seconds = search_options.time_budget or trials.spending.race
            share = seconds / len(searches)
            for level_search in searches:
                level_search.measure(Budget(share))
    except KeyboardInterrupt:
        interrupted = True
    return LevelSearches(sorted(searches, key=LevelSearch.estimate), all_to_extended, interrupted)


def _only_level(ratio: Measurement | None, context: SearchContext) -> Level | None:
    """Return level ALL if the model surely is too slow at EXTENDED; None leaves it open.

    The levels were timed at the first size alone, so several sizes leave it open.
    """
    if ratio is None or ratio.status != "ok" or len(context.sizes) > 1:
        return None
    return Level.ALL if MAX_LEVEL_RATIO * ratio.high < 1 else None
