"""Search the forms that make the model faster: measure layer by layer, decide by the whole model.

1. Every companion that matches is timed with the whole model; those that surely help are taken.
2. The model is timed at the levels of the runtime. At those that may suit it, every layer races
   in its forms (`plan.search.level_search`); its best form is chosen if it is surely faster. The
   level counts that promises the fastest model.
3. The choice in which neighbours agree on layouts at least cost (`plan.search.assign`) is timed
   with the whole model. Then the model is timed without each form; what does not help in its place
   is dropped (`plan.search.settling`).
4. The rest must beat the original at its strongest setting beyond the noise, or nothing is folded.

If nothing is to be measured, 1 to 4 use the store as far as it goes, and `plan.predict.cost` for
layers that the store does not know; a companion that it does not know is not taken.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from widthfold_onnx.model.proto.frozen import overridable
from widthfold_onnx.model.read.loader import LoadedModel
from widthfold_onnx.options import Companion, FoldOptions, SearchOptions
from widthfold_onnx.plan.decide.companions import companion_reports
from widthfold_onnx.plan.measure.bench import Bench
from widthfold_onnx.plan.measure.effort import SPENDING, Spending
from widthfold_onnx.plan.measure.successive_halving import Setup
from widthfold_onnx.plan.search.choice import ORIGINAL, Choice, document_of, prepared_by
from widthfold_onnx.plan.search.found import Found
from widthfold_onnx.plan.search.gains import gain_of, is_faster
from widthfold_onnx.plan.search.level_search import LevelSearch
from widthfold_onnx.plan.search.search_context import SearchContext, find_context
from widthfold_onnx.plan.search.settling import Settling
from widthfold_onnx.plan.search.trials import Trials
from widthfold_onnx.plan.store.store import Store
from widthfold_onnx.plan.workload.layers import Layers
from widthfold_onnx.progress import Progress, Step
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import Gain, Measurement, SearchReport
from widthfold_onnx.rewrite.exchange import Match
from widthfold_onnx.rules.companions.companion import Rule
from widthfold_onnx.rules.companions.table import COMPANIONS
from widthfold_onnx.runtime.inputs.distributions import Distribution
from widthfold_onnx.runtime.sessions.descriptions import described
from widthfold_onnx.runtime.sessions.session import Level

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
) -> Found:
    """Measure, choose, try and decide.

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


class _Raced(NamedTuple):
    """The races of the layers.

    Attributes:
        levels: at which they raced, the one first that promises the fastest model.
        original: its time at level ALL / at EXTENDED; None if there are not both.
        interrupted: whether the caller ended them.
    """

    levels: Sequence[LevelSearch]
    original: Measurement | None
    interrupted: bool


@dataclass(frozen=True)
class _Search:
    """The stages of one search: each returns what it found, for the next."""

    loaded: LoadedModel
    fold: FoldOptions
    options: SearchOptions
    context: SearchContext
    store: Store
    folder: Path
    say: Progress

    def run(self) -> Found:
        """Take companions, race the layers, settle on a choice, and try it."""
        asked = Choice(frozen=self.fold.freeze_weights and bool(overridable(self.loaded.proto)))
        matches = prepared_by(replace(asked, companions=self.fold.exchanges), self.loaded)[1]
        bench = self._bench(Level.ALL)
        taken, gains = self._companions(asked, matches, self._trials(Layers(), bench))
        first = self._level(taken, bench)
        trials = self._trials(first.layers, bench)
        raced = self._race(taken, first, trials)
        if raced.interrupted:
            level, chosen = raced.levels[0], replace(taken, forms=raced.levels[0].chosen())
        else:
            settling = Settling(trials, taken, self._spending, self.say)
            level, chosen = settling.settle(raced.levels)
        final = None
        if chosen != ORIGINAL:
            self.say(Step("timing the whole model"))
            final = trials.decide(chosen, self._spending.final)
        accepted = chosen if final is None or is_faster(final) else ORIGINAL
        return Found(
            document=document_of(accepted, self.loaded),
            accepted=accepted,
            level=level,
            companions=companion_reports(matches, accepted.companions, "not measured", gains),
            report=self._report(raced, level, final, accepted),
        )

    @property
    def _spending(self) -> Spending:
        return SPENDING[self.options.effort]

    def _companions(
        self, asked: Choice, matches: Sequence[Match], trials: Trials
    ) -> tuple[Choice, dict[Companion, list[Gain]]]:
        """Take the companions that surely make the whole model faster; freezing was asked for.

        The runtime's PRelu branches on every element: it takes 5 ns for one of random signs, and
        1 ns where neighbours have the same sign. So none is taken that surely makes the model
        slower on smooth inputs, which are like photographs and recordings. One that helps lifted
        layers must make the model with these faster than it is, and than it is with them alone.
        """
        taken, gains = asked, {}
        equal = {m.companion for m in matches if not isinstance(m.became, Refusal)}
        for name in sorted(equal):
            self.say(Step(f"timing the whole model with the companion {name}"))
            rule = COMPANIONS[name]
            choice = replace(taken, companions=(*taken.companions, name))
            timed = self._with_companion(taken, choice, rule, trials)
            found = [trial for trial in timed if trial is not None and trial.status == "ok"]
            if len(found) < len(timed):
                continue
            gains[name] = list(map(gain_of, found[:1] if rule.lifts else found))
            sure = found if rule.lifts else found[:1]
            if all(trial.low > 1 for trial in sure) and all(trial.high >= 1 for trial in found):
                taken = choice
        return taken, gains

    def _with_companion(
        self, taken: Choice, choice: Choice, rule: Rule, trials: Trials
    ) -> list[Measurement | None]:
        """Time a choice that has one more companion against that without it.

        On random inputs and, if its time depends on the data, on smooth ones; or between lifted
        layers, against the model as it is and with these alone.
        """
        seconds = self._spending.probe
        if rule.lifts:
            bases = taken, replace(taken, lifted=True)
            return [trials.compare(base, replace(choice, lifted=True), seconds) for base in bases]
        varies = rule.branches and not self.options.inputs
        kinds = [Distribution.NORMAL, *([Distribution.SMOOTH] if varies else [])]
        return trials.without(choice, [taken], len(kinds) * seconds, kinds)

    def _race(self, taken: Choice, first: LevelSearch, trials: Trials) -> _Raced:
        """Race the layers at the levels that may suit the model, in equal shares of the time."""
        original, levels, interrupted = None, [first], False
        try:
            if first.layers.workloads and Level.EXTENDED in described(self.options.provider).levels:
                self.say(Step("timing the original at the levels of the runtime"))
                original = trials.levels(taken, self._spending.probe)
            if original is not None and original.status == "ok":
                levels = self._levels(taken, first, original)
            if self.options.measure:
                end = time.monotonic() + (self.options.time_budget or self._spending.race)
                for done, level in enumerate(levels):
                    now = time.monotonic()
                    level.measure(now + (end - now) / (len(levels) - done), self.say)
        except KeyboardInterrupt:
            interrupted = True
        return _Raced(sorted(levels, key=LevelSearch.estimate), original, interrupted)

    def _levels(
        self, taken: Choice, first: LevelSearch, original: Measurement
    ) -> list[LevelSearch]:
        """Return the levels at which layers are to race, given the times of the original."""
        levels = [replace(first, seconds=original.seconds * original.ratio)]
        if CLOSE * original.ratio > 1:
            extended = self._level(taken, self._bench(Level.EXTENDED))
            levels.append(replace(extended, seconds=original.seconds))
        return levels

    def _bench(self, level: Level) -> Bench:
        return Bench(Setup(self.options, self.fold, level), self.store, self.context.machine)

    def _level(self, taken: Choice, bench: Bench) -> LevelSearch:
        aim = self.context.target
        if bench.setup.level is Level.EXTENDED:
            aim = aim.without_blocked_kernels()
        document = document_of(taken, self.loaded)
        return LevelSearch(Layers.of(document, self.fold, self.context.shapes, aim), bench)

    def _report(
        self, raced: _Raced, level: LevelSearch, final: Measurement | None, accepted: Choice
    ) -> SearchReport:
        workloads = level.layers.workloads
        best = [level.best(subject) for subject in workloads]
        last = final or raced.original
        return SearchReport(
            provider=self.options.provider.value,
            threads=self.options.threads,
            target=self.context.target.name,
            shapes={name: list(dims) for name, dims in self.context.shapes.items()},
            layers=len(workloads),
            forms=sum(len(workload.forms) for workload in workloads.values()),
            measured=sum(one.bench.measured for one in raced.levels),
            left=len(self._left(raced.levels)),
            predicted=sum(found is not None and found[1].predicted for found in best),
            interrupted=raced.interrupted,
            store_read_only=level.bench.read_only,
            whole=None if final is None else gain_of(final),
            accepted=accepted != ORIGINAL,
            note="" if last is None else last.note,
            original_setting=final.original_setting if final else _fastest(raced.original),
            folded_setting=final.setting if final is not None and is_faster(final) else "",
        )

    def _left(self, levels: Sequence[LevelSearch]) -> set[str]:
        """Return the subjects of the layers that still lack a measurement."""
        if not self.options.measure:
            return set()
        missing = [workload for at in levels for workload in at.bench.missing(at.promising())]
        return levels[0].layers.behind(missing)

    def _trials(self, layers: Layers, bench: Bench) -> Trials:
        """Time whole models in which layers take their forms."""
        return Trials(self.loaded, layers, bench, self.context.shapes, self.folder)


def _fastest(original: Measurement | None) -> str:
    """Return the level at which the original is fastest; "" where that was not timed."""
    if original is None:
        return ""
    return original.setting if original.ratio > 1 else original.original_setting
