"""Choose the channels to pad, by trials of the whole model with its layers settled.

A layer alone loses by padding: it pays for the copies at its own ends. So all chains are padded
together, once for each multiple, and then the chains are dropped that do not help in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from widthfold_onnx.decide.report import padding_report
from widthfold_onnx.model.graph.messages import NodeName
from widthfold_onnx.options.progress import Progress, Step
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import Gain, PaddingReport, Stop
from widthfold_onnx.rewrite.padding import MULTIPLES, joined
from widthfold_onnx.rewrite.plan import PaddingPlan, Plan, structure_of
from widthfold_onnx.rules.forms.enumeration import form_of
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.sites import LinearSite
from widthfold_onnx.tuning.search.level_search import gain_of
from widthfold_onnx.tuning.search.trials import Trials
from widthfold_onnx.tuning.workload.candidates import lift_of


@dataclass(frozen=True)
class TimedPadding:
    """A plan with padded channels that was timed.

    Attributes:
        plan: the plan.
        chains: its padding by chain.
        stops: what ends channels that are not padded.
        gain: of the whole model against the plan without padding.
    """

    plan: Plan
    chains: Sequence[PaddingPlan]
    stops: Sequence[Stop]
    gain: Gain

    @property
    def is_taken(self) -> bool:
        """Check whether padding surely makes the whole model faster."""
        return self.gain.low > 1

    def report(self, accepted: PaddingPlan | None) -> PaddingReport | None:
        """Return its report; `accepted` is the padding of the model that is written."""
        done = accepted is not None
        reason = "not in the fastest model" if self.is_taken else "not surely faster"
        plan = accepted or joined(self.chains)
        return padding_report(plan, self.stops, done=done, reason=reason, gain=self.gain)


@dataclass(frozen=True)
class PaddingSearch:
    """Time a model with padded channels.

    Attributes:
        trials: times whole models.
        say: gets a step for each trial.
    """

    trials: Trials
    say: Progress

    def best(self, settled: Plan) -> TimedPadding | None:
        """Return the trial of the multiple that gains most; None if nothing was timed.

        Args:
            settled: the plan with the forms of all layers.
        """
        drafting, spending = self.trials.drafting, self.trials.spending
        chosen = drafting.options.pad_channels
        multiples = MULTIPLES if chosen is None else (chosen,)
        timed: list[TimedPadding] = []
        tried: list[list[tuple[str, int]]] = []
        for multiple in filter(None, multiples):
            reading = drafting.reading(msgspec.structs.replace(settled, layers=()))
            chains, stops = drafting.chains(reading, multiple)
            widths = [(layer.node, layer.padded) for part in chains for layer in part.layers]
            if not chains or widths in tried:
                continue
            tried.append(widths)
            self.say(Step(f"timing the whole model with channels padded to {multiple}"))
            plan = self._with(settled, chains)
            trial = self.trials.compare(settled, plan, spending.probe)
            if trial is not None and trial.status == "ok":
                timed.append(TimedPadding(plan, chains, stops, gain_of(trial)))
                if trial.high < 1:
                    break  # a larger multiple computes more
        best = max(timed, key=lambda trial: trial.gain.ratio, default=None)
        return self._helping(settled, best) if best is not None and best.is_taken else best

    def _with(self, settled: Plan, chains: Sequence[PaddingPlan]) -> Plan:
        """Return the plan with padded chains; padded layers are lifted if they are of one axis."""
        draft = msgspec.structs.replace(settled, layers=(), padding=joined(chains))
        planned = {layer.name: layer for layer in settled.layers}
        options = self.trials.drafting.options

        def choose(site: LinearSite) -> Reformulation | Refusal:
            layer = planned.get(NodeName(site.scope.path, site.name))
            if layer is not None and layer.structure == structure_of(site):
                return form_of(site, layer.form, options)
            return lift_of(site, options)

        return self.trials.drafting.plan(draft, choose)

    def _helping(self, settled: Plan, best: TimedPadding) -> TimedPadding:
        """Drop the chains that do not help the whole model; uncertain ones stay together."""
        chains = best.chains
        seconds = self.trials.spending.without
        if len(chains) < 2 or not seconds:
            return best
        self.say(Step(f"timing the whole model without each of {len(chains)} padded chains"))
        others = [self._with(settled, [c for c in chains if c is not gone]) for gone in chains]
        timed = self.trials.without(best.plan, others, seconds)
        pairs = list(zip(chains, timed, strict=True))
        helping = [chain for chain, trial in pairs if trial is None or trial.high >= 1]
        if not helping or len(helping) == len(chains):
            return best
        return TimedPadding(self._with(settled, helping), helping, best.stops, best.gain)
