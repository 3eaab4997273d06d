"""Search the forms that make the model faster: measure layer by layer, decide by the whole model.

1. Every companion that matches is timed with the whole model; companions that surely help are
   taken.
2. The model is timed at the levels of the runtime. At promising levels every layer races in its
   forms (`tuning.search.level_search`); its best form is chosen if it is surely faster. The level
   that promises the fastest model counts.
3. The choice in which neighbours agree on layouts at least cost (`tuning.search.assign`) is timed
   with the whole model. Then the model is timed without each form; what does not help in its place
   is dropped (`tuning.search.settling`).
4. The model is timed with the channels of whole chains padded (`tuning.search.padding`).
5. The rest is timed against the original at its strongest setting, at every size of the inputs.
   It must be faster beyond the noise at one size, and slower at none; else nothing is folded.

If nothing is to be measured, 1 to 5 use the store, and `tuning.cost` for layers without a stored
measurement; a companion without one is not taken.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from widthfold_onnx.decide.decisions import Decided, decide, with_layers
from widthfold_onnx.decide.draft import (
    companion_reports,
    drafted,
    matches_of,
)
from widthfold_onnx.decide.hints import Hints, ran
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import Companion, FoldOptions, SearchOptions
from widthfold_onnx.options.progress import Progress, Step
from widthfold_onnx.rewrite.apply import Reading
from widthfold_onnx.rewrite.exchange import Match
from widthfold_onnx.rewrite.plan import Plan
from widthfold_onnx.runtime.inputs.dimensions import assumed_sizes
from widthfold_onnx.runtime.measurement import Measurement
from widthfold_onnx.runtime.sessions.descriptions import description_of
from widthfold_onnx.runtime.sessions.ports import ports_of
from widthfold_onnx.runtime.sessions.session import Level
from widthfold_onnx.tuning.measure.bench import Bench
from widthfold_onnx.tuning.measure.children import Budget
from widthfold_onnx.tuning.measure.effort import SPENDING, Spending
from widthfold_onnx.tuning.measure.successive_halving import Setup
from widthfold_onnx.tuning.search.companions import CompanionSearch
from widthfold_onnx.tuning.search.context import SearchContext, find_context
from widthfold_onnx.tuning.search.level_search import LevelSearch, Races
from widthfold_onnx.tuning.search.outcomes import Outcomes
from widthfold_onnx.tuning.search.padding import PaddingSearch
from widthfold_onnx.tuning.search.settling import Settling
from widthfold_onnx.tuning.search.trials import Trials, pays_at_all
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.workload.layers import Layers

CLOSE = 1.05
"""Layers also race at level EXTENDED if the original is at most this much slower there than at ALL.

They always race at ALL: folded channels fill what its kernels compute, so a model may be fastest
there once it is folded, even if the original is not.
"""


def search(
    loaded: LoadedModel,
    fold: FoldOptions,
    options: SearchOptions,
    store: Store,
    on_progress: Progress,
) -> Decided:
    """Measure, choose, try, and return the plan with the outcome of every layer.

    Args:
        loaded: the model.
        fold: which sites may be folded, and limits.
        options: where and how long to measure.
        store: the known measurements; new ones are added to it.
        on_progress: gets a step for each stage.

    Raises:
        UnverifiedError: the runtime cannot be used, or the model does not run.
    """
    on_progress(Step("looking for the provider and the shapes of the inputs"))
    context = find_context(loaded, options, fold.input_shapes, store)
    options = replace(options, provider=context.provider)
    with tempfile.TemporaryDirectory() as folder:
        return _Search(loaded, fold, options, context, store, Path(folder), on_progress).run()


@dataclass(frozen=True)
class _Search:
    """The stages of one search: each returns its result to the next."""

    loaded: LoadedModel
    fold: FoldOptions
    options: SearchOptions
    context: SearchContext
    store: Store
    folder: Path
    say: Progress

    def run(self) -> Decided:
        """Draft companions, race the layers, settle on their forms, and try the plan."""
        empty = drafted(self.loaded.proto, self.fold)
        matches = self._matches(empty, self.fold.exchanges)
        bench = self._bench(Level.ALL)
        trials = Trials(self.loaded, bench, self.context.sizes, self.folder)
        draft, gains = self._companions(trials).best(empty, matches)
        first = self._level(draft, bench)
        raced = self._race(draft, first, trials)
        if raced.interrupted:
            level, forms = raced.levels[0], raced.levels[0].chosen()
        else:
            level, forms = Settling(trials, draft, self._spending, self.say).settle(raced.levels)
        chosen = level.plan(draft, forms)
        padded = None if raced.interrupted else self._padding(trials).best(chosen)
        if padded is not None and padded.is_taken:
            chosen = padded.plan
        finals: Sequence[Measurement | None] = [None] * len(self.context.sizes)
        if chosen.changes:
            self.say(Step("timing the whole model"))
            finals = trials.decide(chosen, self._spending.final)
        if not pays_at_all(finals):
            chosen, forms = msgspec.structs.replace(empty, frozen=()), {}
        draft = msgspec.structs.replace(chosen, layers=())
        outcomes = Outcomes(level, forms, chosen, finals)
        reading = self._reading(draft)
        decisions = decide(reading, self.fold, outcomes.choose)
        hints = Hints(reading, self.fold, partial(ran, self.loaded.path, self.options.cases))
        plan = with_layers(draft, decisions)
        return Decided(
            plan=outcomes.with_origin(plan, decisions, self.options, self.context),
            reading=reading,
            sites=[
                decision.report(hints.of(decision), outcomes.gain(decision.linear))
                for decision in decisions
            ],
            companions=companion_reports(
                matches, {c.companion for c in draft.companions}, "not measured", gains
            ),
            padding=None if padded is None else padded.report(plan.padding),
            search=outcomes.report(raced, self.options, self.context, accepted=plan.changes),
            assumed=assumed_sizes(
                ports_of(self.loaded.proto), self.fold.input_shapes, self.context.sizes
            ),
        )

    def _companions(self, trials: Trials) -> CompanionSearch:
        is_random = not self.options.inputs
        seconds = self._spending.probe
        return CompanionSearch(
            trials, self._reading, self._matches, self.fold, seconds, is_random, self.say
        )

    def _padding(self, trials: Trials) -> PaddingSearch:
        return PaddingSearch(trials, self._reading, self.fold, self._spending, self.say)

    def _matches(self, draft: Plan, names: Collection[Companion]) -> list[Match]:
        return matches_of(self.loaded.proto, self.loaded.folder, draft, names)

    def _reading(self, draft: Plan) -> Reading:
        return Reading.of(self.loaded.proto, self.loaded.folder, draft)

    @property
    def _spending(self) -> Spending:
        return SPENDING[self.options.effort]

    def _race(self, draft: Plan, first: LevelSearch, trials: Trials) -> Races:
        """Race the layers at the levels that may suit the model, in equal shares of the time."""
        original, levels, interrupted = None, [first], False
        try:
            if (
                first.layers.workloads
                and Level.EXTENDED in description_of(self.options.provider).levels
            ):
                self.say(Step("timing the original at the levels of the runtime"))
                original = trials.levels(draft, self._spending.probe)
            if original is not None and original.status == "ok":
                levels = self._levels(draft, first, original)
            if self.options.measure:
                seconds = self.options.time_budget or self._spending.race
                for level in levels:
                    level.measure(Budget(seconds / len(levels)), self.say)
        except KeyboardInterrupt:
            interrupted = True
        return Races(sorted(levels, key=LevelSearch.estimate), original, interrupted)

    def _levels(self, draft: Plan, first: LevelSearch, original: Measurement) -> list[LevelSearch]:
        """Return the levels at which layers are to race, given the times of the original."""
        levels = [replace(first, seconds=original.seconds * original.ratio)]
        if CLOSE * original.ratio > 1:
            extended = self._level(draft, self._bench(Level.EXTENDED))
            levels.append(replace(extended, seconds=original.seconds))
        return levels

    def _bench(self, level: Level) -> Bench:
        return Bench(Setup(self.options, self.fold, level), self.store, self.context.machine)

    def _level(self, draft: Plan, bench: Bench) -> LevelSearch:
        aim = self.context.target
        if bench.setup.level is Level.EXTENDED:
            aim = aim.without_blocked_kernels()
        layers = Layers.of(self._reading(draft), self.fold, self.context.sizes[0], aim)
        return LevelSearch(layers, bench)
