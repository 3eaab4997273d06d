"""Which forms make the model faster? Measured layer by layer, decided by the whole model.

1. Every layer races in all its forms (`plan.measure`); the best form of each is chosen where it is
   surely faster.
2. The whole model is timed without each of them: what surely hurts in its place is dropped.
3. The rest must beat the original at its strongest setting beyond the noise, or nothing is folded.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import onnx

from widthfold_onnx.model.graph import Document
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import FoldOptions, SearchOptions
from widthfold_onnx.plan.decisions import applied, plan
from widthfold_onnx.plan.identity import machine_identity, setting_identity
from widthfold_onnx.plan.layers import Layers, running
from widthfold_onnx.plan.measure import AS_IS, Bench
from widthfold_onnx.plan.race import Setup
from widthfold_onnx.plan.store import Measurement, Store
from widthfold_onnx.plan.trials import Choice, Trials
from widthfold_onnx.plan.units import form_of
from widthfold_onnx.progress import Progress, Step
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import Gain, SearchReport
from widthfold_onnx.rules.base import ConvSite, Reformulation
from widthfold_onnx.rules.conv import is_wide
from widthfold_onnx.runtime.clock import judge
from widthfold_onnx.runtime.session import Level
from widthfold_onnx.runtime.worker import isolated

SMALLEST_GAIN = 1.03
"""A form is chosen if the low end of its ratio is above this."""

WEAK_SHARE = 0.1
"""Choices that save less than this share of all that is saved are tried together."""

TRIAL_SECONDS = 3.0
FINAL_SECONDS = 10.0


class Search:
    """The search for one model.

    Args:
        loaded: the model.
        fold: which sites may be folded, and limits.
        options: where and how long to measure.
        store: what is known, and where the rest is kept.
        on_progress: gets what is being done.

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
        provider, self._shapes = isolated(
            running, loaded.path, options.provider, dict(fold.input_shapes)
        )
        self._options = replace(options, provider=provider)
        given = dict(options.provider_options)
        self._bench = Bench(
            Setup(provider, tuple(sorted(given.items())), options.threads, fold),
            store,
            setting_identity(provider, given, Level.ALL, options.threads),
            machine_identity(provider),
        )
        self._layers = Layers.of(self._document(), fold, self._shapes)
        self._accepted: Choice = {}

    def run(self) -> SearchReport:
        """Measure, choose, try, decide."""
        deadline = time.monotonic() + self._options.time_budget
        interrupted = False
        try:
            self._bench.measure(self._layers.in_order(), deadline, self._say)
        except KeyboardInterrupt:
            interrupted = True
        best = {subject: self._best(subject) for subject in self._layers.units}
        chosen = {s: b[0] for s, b in best.items() if b is not None and b[1].low > SMALLEST_GAIN}
        whole = self._settle(chosen) if chosen else None
        return SearchReport(
            provider=self._options.provider.value,
            threads=self._options.threads,
            shapes={name: list(dims) for name, dims in self._shapes.items()},
            layers=len(self._layers.units),
            forms=sum(len(unit.forms) for unit in self._layers.units.values()),
            measured=self._bench.measured,
            interrupted=interrupted,
            whole=whole,
            accepted=bool(self._accepted),
        )

    def choose(self, site: ConvSite) -> Reformulation | Refusal:
        """What the search decided for a site."""
        return self._form(site, self._accepted)

    def gain(self, site: ConvSite | None) -> Gain | None:
        """What the best form of a site gained, measured alone; None where nothing was measured."""
        if site is None or is_wide(site, self._fold):
            return None
        subject = self._layers.subject(site)
        best = None if isinstance(subject, Refusal) else self._best(subject)
        return None if best is None else _gain(best[1])

    def _settle(self, chosen: dict[str, str]) -> Gain:
        """Drop what does not help, and accept the rest if it is faster than the original."""
        saved = {subject: self._saved(subject, key) for subject, key in chosen.items()}
        ordered = sorted(chosen, key=lambda subject: (saved[subject], subject))
        weak = [s for s in ordered if saved[s] < WEAK_SHARE * sum(saved.values())]
        with tempfile.TemporaryDirectory() as folder:
            trials = Trials(
                self._loaded,
                self._built,
                self._bench,
                self._layers.places(),
                self._options,
                self._shapes,
                Path(folder),
            )
            strong = [[subject] for subject in chosen if subject not in weak]
            for group in ([weak] if weak else []) + strong:
                for subject in self._hurting(trials, chosen, group):
                    chosen = {s: key for s, key in chosen.items() if s != subject}
            self._say(Step("timing the whole model"))
            final = trials.compare({}, chosen, FINAL_SECONDS)
        if judge(final.low, final.high, final.control, final.rounds, converged=True) == "faster":
            self._accepted = chosen
        return _gain(final)

    def _hurting(self, trials: Trials, chosen: Choice, group: list[str]) -> list[str]:
        """Which of a group surely make the whole model slower, or not run; halved until alone."""
        text = f"timing the whole model without {len(group)} of {len(chosen)} folded layers"
        self._say(Step(text))
        without = {s: key for s, key in chosen.items() if s not in group}
        if not without or trials.compare(without, chosen, TRIAL_SECONDS).high >= 1:
            return []
        if len(group) == 1:
            return group
        middle = len(group) // 2
        halves = (group[:middle], group[middle:])
        return [s for half in halves for s in self._hurting(trials, chosen, half)]

    def _built(self, choice: Choice) -> tuple[onnx.ModelProto, set[str]]:
        document = self._document()
        decisions = plan(document, self._fold, lambda site: self._form(site, choice))
        return applied(document, decisions), document.external_names

    def _form(self, site: ConvSite, choice: Choice) -> Reformulation | Refusal:
        wide = is_wide(site, self._fold)
        if wide is not None:
            return wide
        subject = self._layers.subject(site)
        if isinstance(subject, Refusal):
            return subject
        if subject in choice:
            return form_of(site, choice[subject], self._fold)
        count = len(self._layers.units[subject].forms)
        best = self._best(subject)
        if best is None:
            return Refusal("no-gain", f"none of its {count} forms could be measured")
        ratio, low, high = best[1].ratio, best[1].low, best[1].high
        return Refusal(
            "no-gain",
            f"the best of its {count} forms ran at {ratio:.2f}x [{low:.2f}, {high:.2f}]"
            + (", but not in the whole model" if low > SMALLEST_GAIN else ""),
        )

    def _best(self, subject: str) -> tuple[str, Measurement] | None:
        known = [
            (form.key, found)
            for form in self._layers.units[subject].forms
            if (found := self._bench.known(subject, form.key)) is not None and found.status == "ok"
        ]
        return max(known, key=lambda item: (item[1].low, item[0]), default=None)

    def _saved(self, subject: str, key: str) -> float:
        own, form = self._bench.known(subject, AS_IS), self._bench.known(subject, key)
        assert own is not None
        assert form is not None
        return self._layers.count(subject) * own.seconds * (1 - 1 / form.ratio)

    def _document(self) -> Document:
        copy = onnx.ModelProto()
        copy.CopyFrom(self._loaded.proto)
        return Document(copy, self._loaded.folder)


def _gain(measured: Measurement) -> Gain:
    return Gain(ratio=measured.ratio, low=measured.low, high=measured.high, pairs=measured.rounds)
