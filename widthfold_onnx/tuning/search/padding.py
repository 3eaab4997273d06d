"""Choose the channels to pad, by trials of the whole model with its layers settled.

A layer alone loses by padding: it pays for the copies at its own ends. So all chains are padded
together, once for each multiple, and then the chains are dropped that do not help in their place.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from widthfold_onnx.algebra.channels import CHANNEL_MULTIPLES
from widthfold_onnx.decide.decisions import Drafting
from widthfold_onnx.decide.outcomes import padding_report, unpaddable
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.results import Gain, PaddingReport
from widthfold_onnx.rewrite.padding import PaddableChains
from widthfold_onnx.rewrite.plan import Plan
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
        padded: the chains that it pads, and what stops other channels.
        gain: of the whole model with all chains of the multiple, against the plan without padding.
    """

    plan: Plan
    padded: PaddableChains
    gain: Gain

    @property
    def is_taken(self) -> bool:
        """True if padding surely makes the whole model faster."""
        return self.gain.is_surely_faster

    def report(self, accepted: Plan) -> PaddingReport:
        """Return its report; `accepted` is the plan of the model that is written."""
        is_padded = accepted.padding is not None
        reason = "not in the fastest model" if self.is_taken else "not surely faster"
        return padding_report(self.padded, is_padded=is_padded, reason=reason, gain=self.gain)


def best_padding(trials: Trials, unpadded: Plan) -> TimedPadding | None:
    """Return the trial of the multiple with the surest gain; None if nothing was timed."""
    drafting, spending = trials.drafting, trials.spending
    given_multiple = drafting.fold_options.pad_channels
    multiples = CHANNEL_MULTIPLES if given_multiple is None else (given_multiple,)
    timed_paddings: list[TimedPadding] = []
    earlier_widths: list[list[tuple[str, int]]] = []
    reading = drafting.reading(unpadded.draft)
    for multiple in filter(None, multiples):
        paddable = drafting.paddable_chains(reading, multiple)
        widths = [(layer.node, layer.padded) for part in paddable.chains for layer in part.layers]
        if not paddable.chains or widths in earlier_widths:
            continue
        earlier_widths.append(widths)
        progress(Step(f"timing the whole model with channels padded to {multiple}"))
        plan = _with(drafting, unpadded, paddable)
        trial = trials.compare(unpadded, plan, spending.probe)
        if trial is not None and trial.status == "ok":
            timed_paddings.append(TimedPadding(plan, paddable, trial.gain))
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
    paddable = drafting.paddable_chains(reading, multiple)
    reason = "not timed" if paddable.chains else unpaddable(drafting.fold_options)
    return padding_report(paddable, is_padded=False, reason=reason)


def _with(drafting: Drafting, unpadded: Plan, paddable: PaddableChains) -> Plan:
    """Return the plan with padded chains; padded layers are lifted if they are of one axis."""
    draft = msgspec.structs.replace(unpadded.draft, padding=paddable.plan)
    options = drafting.fold_options

    def choose(layer: Layer) -> Answer:
        layer_plan = unpadded.layer_plan(layer)
        if layer_plan is None:
            return lift_of(layer, options)
        return form_of(layer, layer_plan.form, options)

    return drafting.plan(draft, choose)


def _helping_chains(trials: Trials, unpadded: Plan, best: TimedPadding) -> TimedPadding:
    """Drop the chains that do not help the whole model; uncertain ones stay together."""
    padded, chains = best.padded, best.padded.chains
    if len(chains) < 2 or not trials.spending.ablation:
        return best
    plans = [_with(trials.drafting, unpadded, padded.without([chain])) for chain in chains]
    pairs = trials.without_each(best.plan, chains, plans, named=f"{len(chains)} padded chains")
    slower = [chain for chain, trial in pairs if trial.gain.is_surely_slower]
    helping = padded.without(slower)
    if not slower or not helping.chains:
        return best
    return TimedPadding(_with(trials.drafting, unpadded, helping), helping, best.gain)
