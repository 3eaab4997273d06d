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
5. The rest must beat the original at its strongest setting beyond the noise at one of the sizes of
   the inputs, and be slower at none, or nothing is folded.

If nothing is to be measured, 1 to 5 use the store as far as it goes, and `tuning.predict.cost` for
layers that the store does not know; a companion that it does not know is not taken.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from widthfold_onnx.decide.companions import (
    companion_reports,
    drafted,
    matches_of,
    with_companions,
)
from widthfold_onnx.decide.decisions import Decided, Decision, decide, with_layers
from widthfold_onnx.decide.hints import Hints, ran
from widthfold_onnx.model.read.loader import LoadedModel
from widthfold_onnx.options import Companion, FoldOptions, SearchOptions, Shapes
from widthfold_onnx.progress import Progress, Step
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import Gain, Measurement, SearchReport, SizeGain, SpeedVerdict
from widthfold_onnx.rewrite.apply import Reading
from widthfold_onnx.rewrite.exchange import Match
from widthfold_onnx.rewrite.plan import LayerGain, Measured, Origin, Plan
from widthfold_onnx.rules.companions.companion import Rule
from widthfold_onnx.rules.companions.table import COMPANIONS
from widthfold_onnx.runtime.environment import version
from widthfold_onnx.runtime.inputs.dimensions import assumed_sizes
from widthfold_onnx.runtime.inputs.feeds import Distribution
from widthfold_onnx.runtime.intervals import judge, noise
from widthfold_onnx.runtime.sessions.descriptions import described
from widthfold_onnx.runtime.sessions.ports import ports_of
from widthfold_onnx.runtime.sessions.session import Level
from widthfold_onnx.tuning.measure.bench import Bench
from widthfold_onnx.tuning.measure.budget import Budget
from widthfold_onnx.tuning.measure.effort import SPENDING, Spending
from widthfold_onnx.tuning.measure.successive_halving import Setup
from widthfold_onnx.tuning.search.level_search import LevelSearch, gain_of
from widthfold_onnx.tuning.search.outcomes import Outcomes
from widthfold_onnx.tuning.search.padding import PaddingSearch
from widthfold_onnx.tuning.search.search_context import SearchContext, find_context
from widthfold_onnx.tuning.search.settling import Settling
from widthfold_onnx.tuning.search.trials import Trials
from widthfold_onnx.tuning.store.identity import device_name, runtime_of
from widthfold_onnx.tuning.store.store import Store
from widthfold_onnx.tuning.workload.candidates import lift_of
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


class _Raced(NamedTuple):
    """The races of the layers.

    Attributes:
        levels: the levels at which they raced, the most promising level first.
        original: its time at level ALL / at EXTENDED; None if there are not both.
        interrupted: whether the caller ended them.
    """

    levels: Sequence[LevelSearch]
    original: Measurement | None
    interrupted: bool


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
        draft, gains = self._companions(empty, matches, trials)
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
        outcomes = Outcomes(level, forms, chosen)
        reading = self._reading(draft)
        decisions = decide(reading, self.fold, outcomes.choose)
        hints = Hints(reading, self.fold, partial(ran, self.loaded.path))
        plan = with_layers(draft, decisions)
        return Decided(
            plan=self._with_origin(plan, decisions, outcomes, finals[0]),
            reading=reading,
            sites=[
                decision.report(self.fold, hints.of(decision), outcomes.gain(decision.linear))
                for decision in decisions
            ],
            companions=companion_reports(
                matches, {c.companion for c in draft.companions}, "not measured", gains
            ),
            padding=None if padded is None else padded.report(plan.padding),
            search=self._report(raced, level, finals, accepted=plan.changes),
            assumed=assumed_sizes(
                ports_of(self.loaded.proto), self.fold.input_shapes, self.context.sizes
            ),
        )

    def _padding(self, trials: Trials) -> PaddingSearch:
        return PaddingSearch(trials, self._reading, self.fold, self._spending, self.say)

    def _matches(self, draft: Plan, names: Collection[Companion]) -> list[Match]:
        return matches_of(self.loaded.proto, self.loaded.folder, draft, names)

    def _reading(self, draft: Plan) -> Reading:
        return Reading.of(self.loaded.proto, self.loaded.folder, draft)

    def _with_origin(
        self,
        plan: Plan,
        decisions: Sequence[Decision],
        outcomes: Outcomes,
        final: Measurement | None,
    ) -> Plan:
        """Return a plan with its origin, and with the gains of the layers that it replaces."""
        planned = {layer.name for layer in plan.layers}
        gains = {d.name: outcomes.gain(d.linear) for d in decisions if d.name in planned}
        how = self.options
        return msgspec.structs.replace(
            plan,
            origin=Origin(
                widthfold=version("widthfold-onnx"),
                decision="measured" if how.measure else "predicted",
                provider=how.provider.value,
                provider_options=dict(how.provider_options),
                session_options=dict(how.session_options),
                threads=how.threads,
                device=device_name(how.provider) if how.measure else self.context.target.name,
                runtime=runtime_of(self.context.machine) if how.measure or final else "",
            ),
            measured=Measured(
                whole=None if final is None else gain_of(final),
                setting=_setting(final),
                sizes=tuple(map(dict, self.context.sizes)),
                layers=tuple(
                    LayerGain(graph=name.graph, node=name.node, gain=gain)
                    for name, gain in sorted(gains.items(), key=lambda item: item[0])
                    if gain is not None
                ),
            ),
        )

    @property
    def _spending(self) -> Spending:
        return SPENDING[self.options.effort]

    def _companions(
        self, empty: Plan, matches: Sequence[Match], trials: Trials
    ) -> tuple[Plan, dict[Companion, list[Gain]]]:
        """Draft a plan with the companions that surely make the whole model faster.

        The runtime's PRelu branches on every element: it takes 5 ns for one of random signs, and
        1 ns where neighbours have the same sign. So a companion is left out that surely makes the
        model slower on smooth inputs, which are like photographs and recordings.
        """
        names: tuple[Companion, ...] = ()
        draft, gains = empty, {}
        equal = {m.companion for m in matches if not isinstance(m.became, Refusal)}
        for name in sorted(equal):
            self.say(Step(f"timing the whole model with the companion {name}"))
            rule = COMPANIONS[name]
            other = with_companions(empty, self._matches(empty, (*names, name)))
            timed = self._with_companion(draft, other, rule, trials)
            is_taken = bool(timed) and timed[0].low > 1 and all(t.high >= 1 for t in timed)
            if rule.lifts and not is_taken:
                lifted = self._with_lifted_companion(draft, other, trials)
                is_taken = bool(lifted) and all(trial.low > 1 for trial in lifted)
                timed = lifted[:1] or timed
            if timed:
                gains[name] = list(map(gain_of, timed))
            if is_taken:
                draft, names = other, (*names, name)
        return draft, gains

    def _with_companion(
        self, draft: Plan, other: Plan, rule: Rule, trials: Trials
    ) -> list[Measurement]:
        """Time a plan that has one more companion against the plan without it.

        On random inputs and, if its time depends on the data, on smooth ones; [] if one is lost.
        """
        varies = rule.branches and not self.options.inputs
        kinds = [Distribution.NORMAL, *([Distribution.SMOOTH] if varies else [])]
        return _complete(trials.without(other, [draft], len(kinds) * self._spending.probe, kinds))

    def _with_lifted_companion(self, draft: Plan, other: Plan, trials: Trials) -> list[Measurement]:
        """Time one more companion between lifted layers, if there are layers of one axis.

        Against the model as it is, and against the model with lifted layers alone; [] if one is
        lost.
        """
        lifted = self._lifted(other)
        if not lifted.layers:
            return []
        bases, seconds = (draft, self._lifted(draft)), self._spending.probe
        return _complete([trials.compare(base, lifted, seconds) for base in bases])

    def _lifted(self, draft: Plan) -> Plan:
        """Return a plan that lifts every layer of one axis."""
        lift = partial(lift_of, options=self.fold)
        return with_layers(draft, decide(self._reading(draft), self.fold, lift))

    def _race(self, draft: Plan, first: LevelSearch, trials: Trials) -> _Raced:
        """Race the layers at the levels that may suit the model, in equal shares of the time."""
        original, levels, interrupted = None, [first], False
        try:
            if first.layers.workloads and Level.EXTENDED in described(self.options.provider).levels:
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
        return _Raced(sorted(levels, key=LevelSearch.estimate), original, interrupted)

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

    def _report(
        self,
        raced: _Raced,
        level: LevelSearch,
        finals: Sequence[Measurement | None],
        *,
        accepted: bool,
    ) -> SearchReport:
        final = finals[0]
        workloads = level.layers.workloads
        best = [level.best(subject) for subject in workloads]
        last = final or raced.original
        return SearchReport(
            provider=self.options.provider.value,
            threads=self.options.threads,
            target=self.context.target.name,
            sizes=list(map(_at_size, self.context.sizes, finals)),
            layers=len(workloads),
            forms=sum(len(workload.forms) for workload in workloads.values()),
            measured=sum(each.bench.measured for each in raced.levels),
            left=len(self._left(raced.levels)),
            predicted=sum(form is not None and form[1].predicted for form in best),
            interrupted=raced.interrupted,
            store_read_only=level.bench.read_only,
            whole=None if final is None else gain_of(final),
            accepted=accepted,
            control=0.0 if final is None else final.control,
            bar=0.0 if final is None else noise(final.control),
            failure="" if final is None else final.reason,
            note="" if last is None else last.note,
            original_setting=final.original_setting if final else _fastest(raced.original),
            folded_setting=_setting(final) if accepted else "",
        )

    def _left(self, levels: Sequence[LevelSearch]) -> set[str]:
        """Return the subjects of the layers that still lack a measurement."""
        if not self.options.measure:
            return set()
        missing = [workload for at in levels for workload in at.bench.missing(at.promising())]
        return levels[0].layers.behind(missing)


def _complete(timed: Sequence[Measurement | None]) -> list[Measurement]:
    """Return measurements if there are all of them, else none."""
    measured = [trial for trial in timed if trial is not None and trial.status == "ok"]
    return measured if len(measured) == len(timed) else []


def _fastest(original: Measurement | None) -> str:
    """Return the level at which the original is fastest; "" where that was not timed."""
    if original is None:
        return ""
    return original.setting if original.ratio > 1 else original.original_setting


def pays_at_all(finals: Sequence[Measurement | None]) -> bool:
    """Check whether trials at several sizes show a gain at one size and a loss at none.

    What was not timed shows neither; where nothing was timed, predictions have decided.
    """
    verdicts = [verdict_of(trial) for trial in finals if trial is not None]
    return not verdicts or ("faster" in verdicts and "slower" not in verdicts)


def verdict_of(trial: Measurement) -> SpeedVerdict:
    """Judge a trial; a model that does not run is slower than any other."""
    return judge(trial.low, trial.high, trial.control)


def _setting(final: Measurement | None) -> str:
    """Return the setting at which the new model is fastest; "" if it is not known."""
    return "" if final is None or final.status == "lost" else final.setting


def _at_size(shapes: Shapes, final: Measurement | None) -> SizeGain:
    """Return the row of the report for one size."""
    row = SizeGain(shapes={name: list(dims) for name, dims in shapes.items()})
    if final is None:
        return row
    if final.status == "lost":
        return msgspec.structs.replace(row, verdict="slower", note=final.reason)
    return msgspec.structs.replace(
        row,
        gain=gain_of(final),
        verdict=verdict_of(final),
        original_ms=1e3 * final.ratio * final.seconds,
    )
