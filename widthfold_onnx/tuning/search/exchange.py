"""The first stage: take the companions that make the whole model faster, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from widthfold_onnx.options import Companion
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.companions import COMPANIONS
from widthfold_onnx.rules.companions.companion import CompanionRule
from widthfold_onnx.rules.selection import lift_of
from widthfold_onnx.runtime.inputs.feeds import Distribution
from widthfold_onnx.tuning.measurement import Measurement
from widthfold_onnx.tuning.search.session import SearchDraft, SearchSession
from widthfold_onnx.tuning.search.trials import compare, ratios_to


def exchange(session: SearchSession, draft: SearchDraft) -> SearchDraft:
    """Return the draft with the companions that surely make the whole model faster.

    The runtime's PRelu branches on every element: an element of random sign takes 5 ns, and
    1 ns where neighbours have the same sign. Smooth inputs are like photographs and recordings.
    So a companion is left out that surely makes the model slower on smooth inputs.
    """
    matches = draft.matches(session.model, session.fold_options.active_companions)
    taken_names: tuple[Companion, ...] = ()
    gains = {}
    names_that_match = {m.companion for m in matches if not isinstance(m.replacements, Refusal)}
    for name in sorted(names_that_match):
        progress(Step(f"timing the whole model with the companion {name}"))
        rule = COMPANIONS[name]
        extension = draft.with_companions(draft.matches(session.model, (*taken_names, name)))
        results = _alone(session, draft, extension, rule)
        is_faster = bool(results) and results[0].gain.is_surely_faster
        is_faster = is_faster and not any(trial.gain.is_surely_slower for trial in results)
        if rule.lifts and not is_faster:
            lifted = _between_lifted_layers(session, draft, extension)
            is_faster = bool(lifted) and all(trial.gain.is_surely_faster for trial in lifted)
            results = lifted[:1] or results
        if results:
            gains[name] = [result.gain for result in results]
        if is_faster:
            draft, taken_names = extension, (*taken_names, name)
    return replace(draft, companion_matches=matches, companion_gains=gains)


def _alone(
    session: SearchSession, draft: SearchDraft, extension: SearchDraft, rule: CompanionRule
) -> list[Measurement]:
    """Time a draft with one more companion against the draft without it.

    The inputs are random. If the time of the companion depends on the data, smooth inputs
    follow. The result is empty if a trial is lost.
    """
    kinds = [Distribution.NORMAL]
    if rule.branches and not session.search_options.inputs:
        kinds.append(Distribution.SMOOTH)
    probe = partial(ratios_to, session, extension, [draft], session.spending.probe)
    return _complete([trial for kind in kinds for trial in probe(kind)])


def _between_lifted_layers(
    session: SearchSession, draft: SearchDraft, extension: SearchDraft
) -> list[Measurement]:
    """Time one more companion between lifted layers, if there are layers of one axis.

    The model is compared with the draft, and with the draft whose layers are lifted. The
    result is empty if a trial is lost.
    """
    lifted = _lifting(session, extension)
    if not lifted.forms:
        return []
    bases = (draft, _lifting(session, draft))
    return _complete([compare(session, base, lifted, session.spending.probe) for base in bases])


def _lifting(session: SearchSession, draft: SearchDraft) -> SearchDraft:
    """Return the draft that lifts every layer of one axis."""
    choose = partial(lift_of, options=session.fold_options)
    return draft.with_forms(session.forms(draft, choose))


def _complete(trials: Sequence[Measurement | None]) -> list[Measurement]:
    """Return the measurements if every trial has one, else none."""
    results = [trial for trial in trials if trial is not None and trial.status == "ok"]
    return results if len(results) == len(trials) else []
