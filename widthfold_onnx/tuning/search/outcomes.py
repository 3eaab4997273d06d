"""Answer for each layer what a search decided: its form, or why it stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from widthfold_onnx.model.graph.names import NodeName
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import Gain
from widthfold_onnx.rewrite.plan import Plan, structure_of
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.forms.spec import FormSpec, form_of
from widthfold_onnx.rules.match.site import LinearSite
from widthfold_onnx.tuning.search.level_search import PREDICTED_GAIN, LevelSearch, pays

NEGLIGIBLE = "by prediction it can save too little of the model's time"


@dataclass(frozen=True)
class Outcomes:
    """The outcome of a search for each layer.

    Attributes:
        level: the layers, at the level that promised most.
        forms: by subject the accepted forms of layers that are not padded.
        plan: the accepted plan.
    """

    level: LevelSearch
    forms: Mapping[str, FormSpec]
    plan: Plan

    def choose(self, site: LinearSite) -> Reformulation | Refusal:
        """Return the form of a layer, or why it has none."""
        name, options = NodeName(site.scope.path, site.name), self.level.bench.setup.fold
        for layer in self.plan.layers:
            if layer.name == name and layer.structure == structure_of(site):
                return form_of(site, layer.form, options)
        for padded in () if self.plan.padding is None else self.plan.padding.layers:
            if padded.name == name:
                why = f"its {padded.channels} channels are padded to {padded.padded}"
                return Refusal(Code.PADDED, why)
        subject = self.level.layers.subject(site)
        if isinstance(subject, Refusal):
            return subject
        return Refusal(Code.NO_GAIN, self._why_not(subject))

    def gain(self, site: LinearSite | None) -> Gain | None:
        """Return the gain of a layer alone: with the accepted form, or with the best if none is."""
        subject = None if site is None else self.level.layers.subject(site)
        if subject is None or isinstance(subject, Refusal):
            return None
        if subject in self.forms:
            return self.level.gain(subject, self.forms[subject])
        best = self.level.best(subject)
        return None if best is None else best[1]

    def _why_not(self, subject: str) -> str:
        count = len(self.level.layers.workloads[subject].forms)
        best = self.level.best(subject)
        if best is None and subject in self.level.negligible():
            return NEGLIGIBLE
        if best is None:
            return f"none of its {count} forms {self.level.unknown(subject)}"
        gain = best[1]
        if gain.predicted:
            why = f"is predicted at {gain.ratio:.2f}x; {PREDICTED_GAIN}x would be folded unmeasured"
        else:
            why = f"ran at {gain.ratio:.2f}x [{gain.low:.2f}, {gain.high:.2f}]"
        where = ", but not in the whole model" if pays(gain) else ""
        return f"the best of its {count} forms {why}{where}"
