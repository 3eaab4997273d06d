"""The fourth stage: pad channels, by trials of the whole model with its layers settled.

A layer alone loses by padding: it pays for the copies at its own ends. So all chains are padded
together, once for each multiple, and then the chains are dropped that do not help in their place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from widthfold_onnx.algebra.channels import CHANNEL_MULTIPLES
from widthfold_onnx.decide.decisions import selected_chains
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.results import Gain
from widthfold_onnx.rewrite.padding import PaddableChains
from widthfold_onnx.rules.enumeration import form_of
from widthfold_onnx.rules.form import Answer
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.selection import lift_of
from widthfold_onnx.tuning.search.session import SearchDraft, SearchSession
from widthfold_onnx.tuning.search.trials import compare, without_each


def pad(session: SearchSession, draft: SearchDraft) -> SearchDraft:
    """Return the draft with the channels padded to the multiple of the surest gain, if one gains.

    After an interrupt, and where nothing can be timed, it stays as it is.
    """
    trials = [] if draft.is_interrupted else _trials(session, draft)
    if not trials:
        return replace(draft, paddable=_untimed_chains(session, draft))
    best = max(trials, key=lambda trial: trial.gain.low)
    paddable = best.paddable
    if best.gain.is_surely_faster:
        paddable = _helping_chains(session, draft, best)
        draft = _padded(session, draft, paddable)
    return replace(draft, paddable=paddable, padding_gain=best.gain)


class _Trial(NamedTuple):
    """Chains that were padded, the draft with them, and its gain over the draft without."""

    paddable: PaddableChains
    padded: SearchDraft
    gain: Gain


def _trials(session: SearchSession, draft: SearchDraft) -> list[_Trial]:
    """Time the model with all chains padded, once for each multiple that makes other widths."""
    given_multiple = session.fold_options.pad_channels
    multiples = CHANNEL_MULTIPLES if given_multiple is None else (given_multiple,)
    if not any(multiples):
        return []
    trials: list[_Trial] = []
    earlier_widths: list[list[tuple[str, int]]] = []
    reading = session.read(draft)
    for multiple in multiples:
        paddable = selected_chains(reading, session.fold_options, multiple)
        widths = [(layer.node, layer.padded) for part in paddable.chains for layer in part.layers]
        if not paddable.chains or widths in earlier_widths:
            continue
        earlier_widths.append(widths)
        progress(Step(f"timing the whole model with channels padded to {multiple}"))
        padded = _padded(session, draft, paddable)
        trial = compare(session, draft, padded, session.spending.probe)
        if trial is not None and trial.status == "ok":
            trials.append(_Trial(paddable, padded, trial.gain))
            if trial.gain.is_surely_slower:
                break  # a larger multiple computes more
    return trials


def _untimed_chains(session: SearchSession, draft: SearchDraft) -> PaddableChains | None:
    """Return the chains that the caller's multiple would pad; None if there is no multiple."""
    multiple = session.fold_options.pad_channels
    reading = session.read(draft) if multiple else None
    if not multiple or reading is None or reading.is_folded:
        return None
    return selected_chains(reading, session.fold_options, multiple)


def _padded(session: SearchSession, draft: SearchDraft, paddable: PaddableChains) -> SearchDraft:
    """Return the draft with padded chains; padded layers are lifted if they are of one axis."""
    options = session.fold_options

    def choose(layer: Layer) -> Answer:
        form = draft.forms.get(layer.node_name)
        if form is None or form.structure != layer.structure:
            return lift_of(layer, options)
        return form_of(layer, form.spec, options)

    padded = replace(draft, padding=paddable.plan)
    return padded.with_forms(session.forms(padded, choose))


def _helping_chains(session: SearchSession, draft: SearchDraft, best: _Trial) -> PaddableChains:
    """Drop the chains that do not help the whole model; uncertain ones stay together."""
    paddable, chains = best.paddable, best.paddable.chains
    if len(chains) < 2 or not session.spending.ablation:
        return paddable
    remainders = [_padded(session, draft, paddable.without([chain])) for chain in chains]
    named = f"{len(chains)} padded chains"
    trials = without_each(session, best.padded, chains, remainders, named=named)
    slower = [chain for chain, trial in trials if trial.gain.is_surely_slower]
    helping = paddable.without(slower)
    return helping if slower and helping.chains else paddable
