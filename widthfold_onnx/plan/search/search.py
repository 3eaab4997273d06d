"""Search the forms that make the model faster: measure layer by layer, decide by the whole model.

1. Every companion that matches is timed with the whole model; those that surely help are taken.
2. Every layer races in all its forms (`plan.measure.bench`); its best form is chosen if it is
   surely faster.
3. The choice in which neighbours agree on layouts at least cost (`plan.search.assign`) is timed
   with the whole model. Then the model is timed without each form; forms that surely hurt are
   dropped.
4. The rest must beat the original at its strongest setting beyond the noise, or nothing is folded.

If nothing is to be measured, 1 to 4 use the store as far as it goes, and `plan.predict.cost` for
layers that the store does not know; a companion that it does not know is not taken.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
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
from widthfold_onnx.plan.search.assign import assign
from widthfold_onnx.plan.search.gains import PREDICTED_GAIN, Gains, gain_of, pays
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

WEAK_SHARE = 0.1
"""Choices that save less than this share of the total saving are tried together."""

FROZEN = "frozen weights"
"""Stands in a choice for what was asked for; a companion stands there by its name."""

TRIAL_SECONDS = 3.0
FINAL_SECONDS = 10.0


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
        self._bench = Bench.of(self._options, fold, store, context.machine)
        freezes = fold.freeze_weights and overridable(loaded.proto)
        self._asked: Choice = {FROZEN: ""} if freezes else {}
        self._matches = exchanged(self._proto(self._asked), loaded.folder, fold.exchanges)[1]
        self._companion_gains: dict[Companion, Gain] = {}
        self._taken = self._companions()
        document = self._document(self._taken)
        self._layers = Layers.of(document, fold, self._shapes, self._target)
        self._gains = Gains(self._layers, self._bench, predict=not options.measure)
        self._accepted: Choice = {}
        self._note = ""

    def run(self, seconds: float) -> SearchReport:
        """Measure, choose, try and decide; `seconds` limits the time for racing the layers."""
        deadline = time.monotonic() + seconds
        interrupted = False
        try:
            if self._options.measure:
                self._bench.measure(self._layers.in_order(), deadline, self._say)
        except KeyboardInterrupt:
            interrupted = True
        best = {subject: self._gains.best(subject) for subject in self._layers.workloads}
        chosen = {s: b[0] for s, b in best.items() if b is not None and pays(b[1])}
        whole = self._settle(chosen, hurry=interrupted)
        return SearchReport(
            provider=self._options.provider.value,
            threads=self._options.threads,
            target=self._target.name,
            shapes={name: list(dims) for name, dims in self._shapes.items()},
            layers=len(self._layers.workloads),
            forms=sum(len(workload.forms) for workload in self._layers.workloads.values()),
            measured=self._bench.measured,
            left=len(self._left()),
            predicted=sum(b is not None and b[1].predicted for b in best.values()),
            interrupted=interrupted,
            store_read_only=self._bench.read_only,
            whole=whole,
            accepted=bool(self._accepted),
            note=self._note,
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
                trial = trials.compare(taken, choice, TRIAL_SECONDS)
            if trial is not None and trial.status == "ok":
                self._companion_gains[name] = gain_of(trial)
            if trial is not None and _is_faster(trial):
                taken = choice
        return taken

    def _trials(self, build: Build, places: Sequence[Place], folder: Path) -> Trials:
        return Trials(self._loaded, build, self._bench, places, self._options, self._shapes, folder)

    def _left(self) -> set[str]:
        """Return the subjects of the layers that still lack a measurement."""
        missing = self._bench.missing(self._layers.in_order()) if self._options.measure else []
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

    def _settle(self, chosen: Choice, *, hurry: bool) -> Gain | None:
        """Drop the choices that do not help, and accept the rest if it is faster than the original.

        If nothing is to be measured, a choice that was never tried is kept, and the measured layers
        agree on layouts at least cost, unless the store timed only the other choice. In a `hurry`
        there is one trial: all choices against the original.
        """
        with tempfile.TemporaryDirectory() as folder:
            trials = self._trials(self._built, self._layers.places(), Path(folder))
            chosen = {**self._taken, **chosen}
            if not hurry:
                chosen = self._without_harm(trials, self._agreed(trials, chosen))
            if not chosen:
                return None
            self._say(Step("timing the whole model"))
            final = trials.compare({}, chosen, TRIAL_SECONDS if hurry else FINAL_SECONDS)
        if final is None:
            self._accepted = chosen
            return None
        self._note = final.note
        if _is_faster(final):
            self._accepted = chosen
        return gain_of(final)

    def _agreed(self, trials: Trials, chosen: Choice) -> Choice:
        """Return the choice in which neighbours agree on layouts, if that is better."""
        known = self._bench.known
        foreseen = {s: key for s, key in chosen.items() if known(s, AS_IS) is None}
        agreed = {**foreseen, **assign(self._layers, known)}
        if agreed == chosen:
            return chosen
        self._say(Step(f"timing the whole model with {len(agreed)} layers that agree"))
        trial = trials.compare(chosen, agreed, TRIAL_SECONDS)
        if trial is None:
            return chosen if trials.known({}, chosen) and not trials.known({}, agreed) else agreed
        return agreed if trial.low > 1 else chosen

    def _without_harm(self, trials: Trials, chosen: Choice) -> Choice:
        """Return the choice without the layers that surely make the whole model slower."""
        for group in self._groups(chosen):
            for subject in self._hurting(trials, chosen, group):
                chosen = {s: key for s, key in chosen.items() if s != subject}
        return chosen

    def _groups(self, chosen: Choice) -> list[list[str]]:
        """Return the choices to try together: the weak ones in one group, each other one alone."""
        folds = {s: key for s, key in chosen.items() if s not in self._taken}
        saved = {subject: self._gains.saved(subject, key) for subject, key in folds.items()}
        ordered = sorted(folds, key=lambda subject: (saved[subject], subject))
        weak = [s for s in ordered if saved[s] < WEAK_SHARE * sum(saved.values())]
        return [group for group in (weak, *([s] for s in ordered if s not in weak)) if group]

    def _hurting(self, trials: Trials, chosen: Choice, group: list[str]) -> list[str]:
        """Return those of a group that surely slow down or break the whole model, by bisection."""
        text = f"timing the whole model without {len(group)} of {len(chosen)} folded layers"
        self._say(Step(text))
        without = {s: key for s, key in chosen.items() if s not in group}
        trial = trials.compare(without, chosen, TRIAL_SECONDS) if without else None
        if trial is None or trial.high >= 1:
            return []
        if len(group) == 1:
            return group
        middle = len(group) // 2
        halves = (group[:middle], group[middle:])
        return [s for half in halves for s in self._hurting(trials, chosen, half)]

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
            return Refusal(
                Code.NO_GAIN, f"none of its {count} forms {self._gains.unknown(subject)}"
            )
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
    return judge(trial.low, trial.high, trial.control, trial.rounds, converged=True) == "faster"
