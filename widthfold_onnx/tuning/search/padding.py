"""Choose the channels to pad, by trials of the whole model with its layers settled.

A layer alone loses by padding: it pays for the copies at its own ends. So all chains are padded
together, once for each multiple, and then the chains are dropped that do not help in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from widthfold_onnx.algebra.channels import CHANNEL_MULTIPLES
from widthfold_onnx.decide.decisions import Drafting
from widthfold_onnx.decide.report import padding_report, unpaddable
from widthfold_onnx.options import Step
from widthfold_onnx.results import Gain, PaddingReport, Stop
from widthfold_onnx.rewrite.padding import joined_plan
from widthfold_onnx.rewrite.plan import PaddingPlan, Plan
from widthfold_onnx.rules.enumeration import form_of
from widthfold_onnx.rules.form import Answer
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.selection import lift_of
from widthfold_onnx.tuning.search.trials import Trials


@dataclass(frozen=True)
class TimedPadding:
    """A plan with padded channels that was timed.

    Attributes:
        plan: the plan.
        chains: its padding by chain.
        stops: what stops channels that are not padded.
        gain: of the whole model with all chains of the multiple, against the plan without padding.
    """

    plan: Plan
    chains: Sequence[PaddingPlan]
    stops: Sequence[Stop]
    gain: Gain

    @property
    def is_taken(self) -> bool:
        """True if padding surely makes the whole model faster."""
        return self.gain.is_surely_faster

    def report(self, accepted: PaddingPlan | None) -> PaddingReport:
        """Return its report; `accepted` is the padding of the model that is written."""
        reason = "not in the fastest model" if self.is_taken else "not surely faster"
        return padding_report(
            accepted or joined_plan(self.chains),
            self.chains[0].multiple,
            self.stops,
            is_padded=accepted is not None,
            reason=reason,
            gain=self.gain,
        )


def best_padding(trials: Trials, unpadded: Plan) -> TimedPadding | None:
    """Return the trial of the multiple with the surest gain; None if nothing was timed."""
    drafting, spending = trials.drafting, trials.spending
    given_multiple = drafting.fold_options.pad_channels
    multiples = CHANNEL_MULTIPLES if given_multiple is None else (given_multiple,)
    timed_paddings: list[TimedPadding] = []
    earlier_widths: list[list[tuple[str, int]]] = []
    reading = drafting.reading(unpadded.draft)
    for multiple in filter(None, multiples):
        chains, stops = drafting.padding_chains(reading, multiple)
        widths = [(layer.node, layer.padded) for part in chains for layer in part.layers]
        if not chains or widths in earlier_widths:
            continue
        earlier_widths.append(widths)
        trials.on_progress(Step(f"timing the whole model with channels padded to {multiple}"))
        plan = _with(drafting, unpadded, chains)
        trial = trials.compare(unpadded, plan, spending.probe)
        if trial is not None and trial.status == "ok":
            timed_paddings.append(TimedPadding(plan, chains, stops, trial.gain))
            if trial.gain.is_surely_slower:
                break  # a larger multiple computes more
    best = max(timed_paddings, key=lambda padding: padding.gain.low, default=None)
    return _helping_chains(trials, unpadded, best) if best is not None and best.is_taken else best


def untimed_report(drafting: Drafting, unpadded: Plan) -> PaddingReport | None:
    """Return the report if nothing was timed.

    None if the caller asks for no multiple, or the model contains folds.
    """
    multiple = drafting.fold_options.pad_channels
    if not multiple:
        return None
    reading = drafting.reading(unpadded.draft)
    if reading.is_folded:
        return None
    chains, stops = drafting.padding_chains(reading, multiple)
    reason = "not timed" if chains else unpaddable(drafting.fold_options)
    return padding_report(joined_plan(chains), multiple, stops, is_padded=False, reason=reason)


def _with(drafting: Drafting, unpadded: Plan, chains: Sequence[PaddingPlan]) -> Plan:
    """Return the plan with padded chains; padded layers are lifted if they are of one axis."""
    draft = msgspec.structs.replace(unpadded.draft, padding=joined_plan(chains))
    options = drafting.fold_options

    def choose(layer: Layer) -> Answer:
        layer_plan = unpadded.layer_plan(layer)
        if layer_plan is None:
            return lift_of(layer, options)
        return form_of(layer, layer_plan.form, options)

    return drafting.plan(draft, choose)


def _helping_chains(trials: Trials, unpadded: Plan, best: TimedPadding) -> TimedPadding:
    """Drop the chains that do not help the whole model; uncertain ones stay together."""
    chains = best.chains
    if len(chains) < 2 or not trials.spending.ablation:
        return best
    remainders = [[chain for chain in chains if chain is not omitted] for omitted in chains]
    plans = [_with(trials.drafting, unpadded, remainder) for remainder in remainders]
    pairs = trials.without_each(best.plan, chains, plans, named=f"{len(chains)} padded chains")
    slower = [chain for chain, trial in pairs if trial.gain.is_surely_slower]
    helping = [chain for chain in chains if chain not in slower]
    if not helping or len(helping) == len(chains):
        return best
    return TimedPadding(_with(trials.drafting, unpadded, helping), helping, best.stops, best.gain)
