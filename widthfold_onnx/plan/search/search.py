"""Search the forms that make the model faster: measure layer by layer, decide by the whole model.

1. Every companion that matches is timed with the whole model; those that surely help are taken.
2. The model is timed at the levels of the runtime. At those that may suit it, every layer races
   in its forms (`plan.search.level_search`); its best form is chosen if it is surely faster. The
   level counts that promises the fastest model.
3. The choice in which neighbours agree on layouts at least cost (`plan.search.assign`) is timed
   with the whole model. Then the model is timed without each form; what does not help in its place
   is dropped.
4. The rest must beat the original at its strongest setting beyond the noise, or nothing is folded.

If nothing is to be measured, 1 to 4 use the store as far as it goes, and `plan.predict.cost` for
layers that the store does not know; a companion that it does not know is not taken.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx

from widthfold_onnx.model.graph.document import Document
from widthfold_onnx.model.proto.frozen import frozen, overridable
from widthfold_onnx.model.read.loader import LoadedModel
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import Companion, FoldOptions, SearchOptions
from widthfold_onnx.plan.decide.companions import companion_reports
from widthfold_onnx.plan.decide.decisions import plan, rewriting
from widthfold_onnx.plan.measure.bench import AS_IS, Bench
from widthfold_onnx.plan.measure.effort import SPENDING
from widthfold_onnx.plan.search.assign import assign
from widthfold_onnx.plan.search.gains import PREDICTED_GAIN, Gains, gain_of, pays
from widthfold_onnx.plan.search.level_search import LevelSearch
from widthfold_onnx.plan.search.search_context import context_by_running, context_without_running
from widthfold_onnx.plan.search.trials import Build, Choice, Trials
from widthfold_onnx.plan.store.store import Measurement, Store
from widthfold_onnx.plan.workload.candidates import form_of
from widthfold_onnx.plan.workload.layers import Layers, Place
from widthfold_onnx.progress import Progress, Step
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import CompanionReport, Gain, SearchReport
from widthfold_onnx.rewrite.exchange import exchanged
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.site import LinearSite
from widthfold_onnx.rules.selection import unfit
from widthfold_onnx.runtime.clock import judge
from widthfold_onnx.runtime.sessions.descriptions import described
from widthfold_onnx.runtime.sessions.session import Level

FROZEN = "frozen weights"
"""Stands in a choice for what was asked for; a companion stands there by its name."""

WEAK_SHARE = 0.1
"""Choices that save less than this share of the total saving are tried together."""

CLOSE = 1.05
"""Layers also race at level EXTENDED if the original is at most this much slower there than at ALL.

They always race at ALL: folded channels fill what its kernels compute, so a model may be fastest
there once it is folded, even if the original is not.
"""

SLIGHT = "it takes too little of the model's time"


class Search:
    """The search for one model.

    Args:
        loaded: the model.
        fold: which sites may be folded, and limits.
        options: where and how long to measure.
        store: the known measurements; new ones are added to it.
        on_progress: gets a step for each stage.

    Raises:
        UnverifiedError: the runtime cannot be used, or the model does not run.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        fold: FoldOptions,
        options: SearchOptions,
        store: Store,
        on_progress: Progress,
    ) -> None:
        self._loaded = loaded
        self._fold = fold
        self._say = on_progress
        on_progress(Step("looking for the provider and the shapes of the inputs"))
        if options.measure:
            context = context_by_running(loaded, options, fold.input_shapes)
        else:
            context = context_without_running(loaded, options, fold.input_shapes, store)
        self._shapes, self._target = context.shapes, context.target
        self._options = replace(options, provider=context.provider)
        self._spending = SPENDING[options.effort]
        self._bench_at = partial(Bench.of, self._options, fold, store, context.machine)
        self._bench = self._bench_at(Level.ALL)
        freezes = fold.freeze_weights and overridable(loaded.proto)
        self._asked: Choice = {FROZEN: ""} if freezes else {}
        self._matches = exchanged(self._proto(self._asked), loaded.folder, fold.exchanges)[1]
        self._companion_gains: dict[Companion, Gain] = {}
        self._taken: Choice = self._asked
        self._layers = Layers()
        self._levels: list[LevelSearch] = []
        self._accepted: Choice = {}
        self._original_setting = self._folded_setting = ""
        self._note = ""

    def run(self) -> SearchReport:
        """Measure, choose, try and decide."""
        self._taken = self._companions()
        self._layers = self._layers_at(Level.ALL)
        self._levels = [self._level_search(Level.ALL, self._layers, None)]
        interrupted = False
        with tempfile.TemporaryDirectory() as folder:
            trials = self._trials(self._built, self._layers.places(), Path(folder))
            try:
                if self._layers.workloads:
                    self._find_levels(trials)
                self._race()
            except KeyboardInterrupt:
                interrupted = True
            self._levels.sort(key=LevelSearch.estimate)
            whole = self._settle(trials, hurry=interrupted)
        best = [self._gains.best(subject) for subject in self._layers.workloads]
        return SearchReport(
            provider=self._options.provider.value,
            threads=self._options.threads,
            target=self._target.name,
            shapes={name: list(dims) for name, dims in self._shapes.items()},
            layers=len(self._layers.workloads),
            forms=sum(len(workload.forms) for workload in self._layers.workloads.values()),
            measured=sum(at.bench.measured for at in self._levels),
            left=len(self._left()),
            predicted=sum(b is not None and b[1].predicted for b in best),
            interrupted=interrupted,
            store_read_only=self._bench.read_only,
            whole=whole,
            accepted=bool(self._accepted),
            note=self._note,
            original_setting=self._original_setting,
            folded_setting=self._folded_setting,
        )

    def document(self) -> Document:
        """Return the model in which the forms stand: with the companions, if they are accepted."""
        return self._document(self._accepted)

    def companions(self) -> list[CompanionReport]:
        """Return what became of the companions that match."""
        done = [name for name in Companion if name in self._accepted]
        return companion_reports(self._matches, done, "not measured", self._companion_gains)

    def _companions(self) -> Choice:
        """Take the companions that surely make the whole model faster; freezing was asked for."""
        taken = self._asked
        equal = {m.companion for m in self._matches if not isinstance(m.became, Refusal)}
        for name in sorted(equal):
            self._say(Step(f"timing the whole model with the companion {name}"))
            with tempfile.TemporaryDirectory() as folder:
                choice = {**taken, name.value: ""}
                trials = self._trials(self._unfolded, [], Path(folder))
                trial = trials.compare(taken, choice, self._spending.trial or self._spending.final)
            if trial is not None and trial.status == "ok":
                self._companion_gains[name] = gain_of(trial)
            if trial is not None and _is_faster(trial):
                taken = choice
        return taken

    def _trials(self, build: Build, places: Sequence[Place], folder: Path) -> Trials:
        return Trials(self._loaded, build, self._bench, places, self._options, self._shapes, folder)

    @property
    def _gains(self) -> Gains:
        """Gains of the forms at the level that promises most."""
        return self._levels[0].gains

    def _find_levels(self, trials: Trials) -> None:
        """Find the levels at which layers are to race."""
        if Level.EXTENDED not in described(self._options.provider).levels:
            return
        self._say(Step("timing the original at the levels of the runtime"))
        timed = trials.levels(self._taken)
        if timed is None or timed.status == "lost":
            return
        self._original_setting = timed.setting if timed.ratio > 1 else timed.original_setting
        self._note = timed.note
        seconds = timed.seconds * timed.ratio
        self._levels = [self._level_search(Level.ALL, self._layers, seconds)]
        if CLOSE * timed.ratio > 1:
            layers = self._layers_at(Level.EXTENDED)
            self._levels.append(self._level_search(Level.EXTENDED, layers, timed.seconds))

    def _layers_at(self, level: Level) -> Layers:
        extended = level is Level.EXTENDED
        aim = self._target.without_blocked_kernels() if extended else self._target
        return Layers.of(self._document(self._taken), self._fold, self._shapes, aim)

    def _level_search(self, level: Level, layers: Layers, seconds: float | None) -> LevelSearch:
        bench = self._bench if level is Level.ALL else self._bench_at(level)
        gains = Gains(layers, bench, predict=not self._options.measure)
        return LevelSearch(layers, bench, gains, self._spending, seconds)

    def _race(self) -> None:
        """Race the layers, at each level in an equal share of the time."""
        if not self._options.measure:
            return
        end = time.monotonic() + (self._options.time_budget or self._spending.layers)
        for done, level in enumerate(self._levels):
            now = time.monotonic()
            level.measure(now + (end - now) / (len(self._levels) - done), self._say)

    def _left(self) -> set[str]:
        """Return the subjects of the layers that still lack a measurement."""
        if not self._options.measure:
            return set()
        levels = self._levels
        missing = [workload for at in levels for workload in at.bench.missing(at.promising())]
        return self._layers.behind(missing)

    def choose(self, site: LinearSite) -> Reformulation | Refusal:
        """Return the form or refusal that the search decided for a site."""
        return self._form(site, self._accepted)

    def gain(self, site: LinearSite | None) -> Gain | None:
        """Return the gain of a site's form alone: the chosen one, or the best if there is none."""
        subject = None if site is None or unfit(site, self._fold) else self._layers.subject(site)
        if subject is None or isinstance(subject, Refusal):
            return None
        if subject in self._accepted:
            return self._gains.of(subject, self._accepted[subject])
        best = self._gains.best(subject)
        return None if best is None else best[1]

    def _settle(self, trials: Trials, *, hurry: bool) -> Gain | None:
        """Drop the choices that do not help, and accept the rest if it is faster than the original.

        If nothing is to be measured, a choice that was never tried is kept, and the measured layers
        agree on layouts at least cost, unless the store timed only the other choice. In a `hurry`
        there is one trial: all choices against the original.
        """
        chosen = self._chosen(self._levels[0])
        if not hurry:
            chosen = self._best_level(trials)
        if not hurry and self._spending.trial and len(chosen) > 1:
            chosen = self._helping(trials, chosen)
        if not chosen:
            return None
        self._say(Step("timing the whole model"))
        final = trials.compare({}, chosen, self._spending.final)
        if final is None:
            self._accepted = chosen
            return None
        self._note = final.note
        self._original_setting = final.original_setting
        if _is_faster(final):
            self._accepted = chosen
            self._folded_setting = final.setting
        return gain_of(final)

    def _chosen(self, level: LevelSearch) -> Choice:
        return {**self._taken, **level.chosen()}

    def _best_level(self, trials: Trials) -> Choice:
        """Return the choice of the level at which the whole model is fastest; it comes first."""
        chosen = self._agreed(trials, self._levels[0])
        for level in tuple(self._levels[1:]):
            other = self._agreed(trials, level)
            if other and other != chosen and self._is_better(trials, other, chosen):
                chosen = other
                self._levels.sort(key=lambda at: at is not level)
        return chosen

    def _is_better(self, trials: Trials, other: Choice, chosen: Choice) -> bool:
        if not chosen or not self._spending.trial:
            return not chosen
        self._say(Step("timing the whole model folded for another level"))
        trial = trials.compare(chosen, other, self._spending.trial)
        return trial is not None and trial.low > 1

    def _agreed(self, trials: Trials, level: LevelSearch) -> Choice:
        """Return the choice in which neighbours agree on layouts, if that is better."""
        chosen = self._chosen(level)
        known = level.bench.known
        foreseen = {s: key for s, key in chosen.items() if known(s, AS_IS) is None}
        agreed = {**foreseen, **assign(level.layers, known)}
        if agreed == chosen or not chosen or not self._spending.trial:
            return agreed  # only the last trial, which takes longer, is against the original
        self._say(Step(f"timing the whole model with {len(agreed)} layers that agree"))
        trial = trials.compare(chosen, agreed, self._spending.trial)
        if trial is None:
            return chosen if trials.known({}, chosen) and not trials.known({}, agreed) else agreed
        return agreed if trial.low > 1 else chosen

    def _helping(self, trials: Trials, chosen: Choice) -> Choice:
        """Return the choice without what does not help the whole model.

        A form that surely slows it down in its place is dropped. Those of which it is not sure
        whether they help stay if they help together.
        """
        folds = [s for s in chosen if s not in self._taken]
        self._say(Step(f"timing the whole model without each of {len(folds)} folded layers"))
        saved = {s: self._gains.saved(s, chosen[s]) for s in folds}
        weak = [s for s in folds if saved[s] < WEAK_SHARE * sum(saved.values())]
        groups = [[s] for s in folds if s not in weak]
        groups = [*groups, weak] if groups and weak else groups or [[s] for s in folds]
        others = [{s: key for s, key in chosen.items() if s not in group} for group in groups]
        seconds = self._spending.trials
        found = trials.without(chosen, others, seconds)
        timed = {s: one for group, one in zip(groups, found, strict=True) for s in group}
        kept = {s: key for s, key in chosen.items() if (t := timed.get(s)) is None or t.high >= 1}
        if not kept:  # the last trial decides on the one that does least harm
            best = max(chosen, key=lambda s: 0.0 if (t := timed[s]) is None else t.ratio)
            return {best: chosen[best]}
        sure = {s: key for s, key in kept.items() if (t := timed.get(s)) is None or t.low > 1}
        if len(sure) in (0, len(kept)):
            return kept
        (together,) = trials.without(kept, [sure], seconds)
        return sure if together is not None and together.ratio < 1 else kept

    def _unfolded(self, choice: Choice) -> tuple[onnx.ModelProto, set[str]]:
        document = self._document(choice)
        return document.finish(), document.external_names

    def _built(self, choice: Choice) -> tuple[onnx.ModelProto, set[str]]:
        document = self._document(choice)
        decisions = plan(document, self._fold, lambda site: self._form(site, choice))
        model = rewriting(document, decisions, self._fold).carry_out()
        return model, document.external_names

    def _form(self, site: LinearSite, choice: Choice) -> Reformulation | Refusal:
        problem = unfit(site, self._fold)
        if problem is not None:
            return problem
        subject = self._layers.subject(site)
        if isinstance(subject, Refusal):
            return subject
        if subject in choice:
            return form_of(site, choice[subject], self._fold)
        count = len(self._layers.workloads[subject].forms)
        best = self._gains.best(subject)
        if best is None:
            slight = subject in self._levels[0].slight()
            why = SLIGHT if slight else f"none of its {count} forms {self._gains.unknown(subject)}"
            return Refusal(Code.NO_GAIN, why)
        ratio, low, high = best[1].ratio, best[1].low, best[1].high
        if best[1].predicted:
            why = f"is predicted at {ratio:.2f}x; {PREDICTED_GAIN}x would be folded unmeasured"
        else:
            why = f"ran at {ratio:.2f}x [{low:.2f}, {high:.2f}]"
        where = ", but not in the whole model" if pays(best[1]) else ""
        return Refusal(Code.NO_GAIN, f"the best of its {count} forms {why}{where}")

    def _document(self, choice: Choice) -> Document:
        """Return the model with what a choice changes beside the layers."""
        copy, folder = onnx.ModelProto(), self._loaded.folder
        names = [name for name in Companion if name in choice]
        copy.CopyFrom(exchanged(self._proto(choice), folder, names)[0])
        return Document(copy, folder, OPERATORS)

    def _proto(self, choice: Choice) -> onnx.ModelProto:
        return frozen(self._loaded.proto) if FROZEN in choice else self._loaded.proto


def _is_faster(trial: Measurement) -> bool:
    return judge(trial.low, trial.high, trial.control) == "faster"
