"""Answer for each site what a search found: its form, or why it stays as it is."""

from __future__ import annotations

from dataclasses import dataclass

from widthfold_onnx.model.graph.document import Document
from widthfold_onnx.plan.search.choice import Choice
from widthfold_onnx.plan.search.gains import PREDICTED_GAIN, pays
from widthfold_onnx.plan.search.level_search import LevelSearch
from widthfold_onnx.plan.workload.candidates import form_of
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import CompanionReport, Gain, SearchReport
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.site import LinearSite

SLIGHT = "by prediction it can save too little of the model's time"


@dataclass(frozen=True)
class Found:
    """Hold the result of a search.

    Attributes:
        document: the model in which the forms stand: with the companions, if they are accepted.
        accepted: what is changed.
        level: the layers, at the level that promised most.
        companions: what became of the companions that match.
        report: how all this was found.
    """

    document: Document
    accepted: Choice
    level: LevelSearch
    companions: list[CompanionReport]
    report: SearchReport

    def choose(self, site: LinearSite) -> Reformulation | Refusal:
        """Return the form of a site, or why it has none."""
        subject = self.level.layers.subject(site)
        if isinstance(subject, Refusal):
            return subject
        if subject in self.accepted.forms:
            return form_of(site, self.accepted.forms[subject], self.level.bench.setup.fold)
        return Refusal(Code.NO_GAIN, self._why_not(subject))

    def gain(self, site: LinearSite | None) -> Gain | None:
        """Return the gain of a site's form alone: the chosen one, or the best if there is none."""
        subject = None if site is None else self.level.layers.subject(site)
        if subject is None or isinstance(subject, Refusal):
            return None
        if subject in self.accepted.forms:
            return self.level.gain(subject, self.accepted.forms[subject])
        best = self.level.best(subject)
        return None if best is None else best[1]

    def _why_not(self, subject: str) -> str:
        count = len(self.level.layers.workloads[subject].forms)
        best = self.level.best(subject)
        if best is None and subject in self.level.slight():
            return SLIGHT
        if best is None:
            return f"none of its {count} forms {self.level.unknown(subject)}"
        gain = best[1]
        if gain.predicted:
            why = f"is predicted at {gain.ratio:.2f}x; {PREDICTED_GAIN}x would be folded unmeasured"
        else:
            why = f"ran at {gain.ratio:.2f}x [{gain.low:.2f}, {gain.high:.2f}]"
        where = ", but not in the whole model" if pays(gain) else ""
        return f"the best of its {count} forms {why}{where}"
