"""Report a search: the outcome of each layer, the figures, and the origin of the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from widthfold_onnx.decide.decisions import Decision, decisions_of, forms_of
from widthfold_onnx.decide.hints import Hints, size_finder_of
from widthfold_onnx.decide.outcomes import Decided, Outcomes, site_report
from widthfold_onnx.options import Shapes
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import CompanionReport, Gain, PaddingReport, SearchReport, SizeGain
from widthfold_onnx.rewrite.plan import LayerGain, Origin, Plan, PlanTimes, plan_of
from widthfold_onnx.rules.enumeration import form_of
from widthfold_onnx.rules.form import Answer, FormSpec
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.runtime.environment import version
from widthfold_onnx.runtime.inputs.sizes import assumption_report
from widthfold_onnx.runtime.intervals import noise
from widthfold_onnx.runtime.session import ports_of
from widthfold_onnx.tuning.identity import device_name, runtime_of
from widthfold_onnx.tuning.measurement import AS_IS, Measurement
from widthfold_onnx.tuning.search.level_search import (
    PREDICTED_GAIN,
    LevelSearch,
    LevelSearches,
    pays,
)
from widthfold_onnx.tuning.search.trials import Trials, verdict_of

NEGLIGIBLE = "by prediction it can save too little of the model's time"


@dataclass(frozen=True)
class FinishedSearch:
    """A search that has ended, with the accepted plan.

    Attributes:
        trials: timed whole models.
        level_searches: at all levels.
        level_search: the search at the level that was settled on.
        forms: by subject the accepted forms of layers that are not padded.
        plan: the accepted plan.
        finals: the final trial of the whole model at each size; None where it was not timed.
    """

    trials: Trials
    level_searches: LevelSearches
    level_search: LevelSearch
    forms: Mapping[str, FormSpec]
    plan: Plan
    finals: Sequence[Measurement | None]

    def decided(
        self, companions: Sequence[CompanionReport], padding: PaddingReport | None
    ) -> Decided:
        """Return the accepted plan, with its origin and the outcomes of all layers."""
        trials, drafting = self.trials, self.trials.drafting
        reading, options = drafting.reading(self.plan.draft), drafting.fold_options
        decisions = decisions_of(reading, options, self._choose)
        size_finder = size_finder_of(trials.loaded.path, trials.search_options.cases)
        hints = Hints(reading, options, size_finder)
        sites = [
            site_report(decision, hints.of(decision), self._gain(decision.layer))
            for decision in decisions
        ]
        assumed = assumption_report(
            ports_of(trials.loaded.proto), options.input_shapes, trials.context.sizes
        )
        # Layers of one subject share a form, which the open extents of one of them may not allow.
        draft = self.plan.as_draft.with_forms(forms_of(decisions))
        search = self._report(accepted=draft.is_changing)
        plan = self._with_origin(plan_of(draft), decisions)
        outcomes = Outcomes(sites, companions, padding, search, assumed, plan.origin, plan.measured)
        return Decided(reading, draft, outcomes)

    def _choose(self, layer: Layer) -> Answer:
        """Return the form of a layer, or the reason why it has none."""
        layer_plan = self.plan.layer_plan(layer)
        if layer_plan is not None:
            return form_of(layer, layer_plan.form, self.trials.drafting.fold_options)
        for padded in () if self.plan.padding is None else self.plan.padding.layers:
            if padded.name == layer.node_name:
                why = f"its {padded.channels} channels are padded to {padded.padded}"
                return Refusal(Code.PADDED, why)
        subject = self.level_search.layers.subject(layer)
        if isinstance(subject, Refusal):
            return subject
        return Refusal(Code.NO_GAIN, self._why_not(subject))

    def _gain(self, layer: Layer | None) -> Gain | None:
        """Return the gain of a layer alone: in the accepted form, or in the best if none is.

        A layer with padded channels was not measured alone.
        """
        if layer is None or isinstance(subject := self.level_search.layers.subject(layer), Refusal):
            return None
        structure = self.level_search.layers.structures.get(layer.node_name)
        if self.plan.padding is not None and structure != layer.structure:
            return None
        if subject in self.forms:
            return self.level_search.gain(subject, self.forms[subject])
        best = self.level_search.best(subject)
        return None if best is None else best[1]

    def _with_origin(self, plan: Plan, decisions: Sequence[Decision]) -> Plan:
        """Return the plan of decisions with its origin, and with the gains of its layers."""
        options, context = self.trials.search_options, self.trials.context
        planned, final = {layer.name for layer in plan.layers}, self.finals[0]
        gains = {d.name: self._gain(d.layer) for d in decisions if d.name in planned}
        return msgspec.structs.replace(
            plan,
            origin=Origin(
                widthfold=version("widthfold-onnx"),
                decision="measured" if options.measure else "predicted",
                provider=options.provider.value,
                provider_options=dict(options.provider_options),
                session_options=dict(options.session_options),
                threads=options.threads,
                device=device_name(options.provider) if options.measure else context.target.name,
                runtime=runtime_of(context.machine) if options.measure or final else "",
            ),
            measured=PlanTimes(
                whole=None if final is None else final.gain,
                setting=_setting(final),
                sizes=tuple(map(dict, context.sizes)),
                layers=tuple(
                    LayerGain(graph=name.graph, node=name.node, gain=gain)
                    for name, gain in sorted(gains.items(), key=lambda item: item[0])
                    if gain is not None
                ),
            ),
        )

    def _report(self, *, accepted: bool) -> SearchReport:
        """Return the figures of the search; `accepted` tells whether the plan changes the model."""
        options, context = self.trials.search_options, self.trials.context
        level_searches, all_to_extended = self.level_searches, self.level_searches.all_to_extended
        final, workloads = self.finals[0], self.level_search.layers.workloads
        best = [self.level_search.best(subject) for subject in workloads]
        last = final or all_to_extended
        return SearchReport(
            provider=options.provider.value,
            threads=options.threads,
            target=context.target.name,
            sizes=list(map(_at_size, context.sizes, self.finals)),
            layers=len(workloads),
            forms=sum(len(workload.forms) for workload in workloads.values()),
            measured=sum(len(s.bench.new_measurements) for s in level_searches.fastest_first),
            pending=len(_unmeasured(level_searches)) if options.measure else 0,
            predicted=sum(choice is not None and choice[1].predicted for choice in best),
            interrupted=level_searches.interrupted,
            store_read_only=self.level_search.bench.store.read_only,
            whole=None if final is None else final.gain,
            accepted=accepted,
            control=0.0 if final is None else final.control,
            bar=0.0 if final is None else noise(final.control),
            failure="" if final is None else final.reason,
            note="" if last is None else last.note,
            original_setting=final.original_setting if final else _fastest(all_to_extended),
            folded_setting=_setting(final) if accepted else "",
        )

    def _why_not(self, subject: str) -> str:
        count = len(self.level_search.layers.workloads[subject].forms)
        best = self.level_search.best(subject)
        if best is None and subject in self.level_search.negligible():
            return NEGLIGIBLE
        if best is None:
            return f"none of its {count} forms {_why_unmeasured(self.level_search, subject)}"
        gain = best[1]
        if gain.predicted:
            why = f"is predicted at {gain.ratio:.2f}x; {PREDICTED_GAIN}x would be folded unmeasured"
        else:
            why = f"ran at {gain.ratio:.2f}x [{gain.low:.2f}, {gain.high:.2f}]"
        where = ", but not in the whole model" if pays(gain) else ""
        return f"the best of its {count} forms {why}{where}"


def _why_unmeasured(level_search: LevelSearch, subject: str) -> str:
    """Return why no form of a layer has a measured gain: the end of "none of its N forms ...".

    The reason is the most common one among the lost measurements of the layer and its forms.
    """
    measurement_of = level_search.bench.measurement
    forms = level_search.layers.workloads[subject].forms
    results = [measurement_of(subject, AS_IS)]
    results += [measurement_of(subject, form.spec) for form in forms]
    reasons = Counter(m.reason for m in results if m is not None and m.reason)
    return f"ran: {reasons.most_common(1)[0][0]}" if reasons else "was measured"


def _unmeasured(level_searches: LevelSearches) -> set[str]:
    """Return the subjects of the layers that still lack a measurement."""
    pending = [w for s in level_searches.fastest_first for w in s.bench.pending(s.promising())]
    return level_searches.fastest_first[0].layers.subjects_of(pending)


def _fastest(all_to_extended: Measurement | None) -> str:
    """Return the level at which the model of the draft is fastest; "" if it was not timed."""
    if all_to_extended is None:
        return ""
    is_slower_at_all = all_to_extended.ratio > 1
    return all_to_extended.setting if is_slower_at_all else all_to_extended.original_setting


def _setting(final: Measurement | None) -> str:
    """Return the setting at which the new model is fastest; "" if it was not timed."""
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
        gain=final.gain,
        verdict=verdict_of(final),
        original_ms=1e3 * final.ratio * final.seconds,
    )
