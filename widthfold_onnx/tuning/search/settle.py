"""The third stage: try the forms of all layers together, then the model without each.

Layers that gain alone need not gain in their places. Every trial compares whole models that are
rewritten; against the original there is only the last one, which takes longer (`confirm`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from widthfold_onnx.progress import Step, progress
from widthfold_onnx.rules.form import FormSpec
from widthfold_onnx.tuning.measurement import AS_IS
from widthfold_onnx.tuning.search.agreement import forms_by_measurement
from widthfold_onnx.tuning.search.session import SearchDraft, SearchSession
from widthfold_onnx.tuning.search.trials import compare, ratios_to, stored_final, without_each

WEAK_SHARE = 0.1
"""Forms that save less than this share of the total saving are tried together."""

Specs = Mapping[str, FormSpec]
"""Subject of a layer -> its form; a layer that is not named stays as it is."""


def settle(session: SearchSession, draft: SearchDraft) -> SearchDraft:
    """Return the draft at the level at which the whole model is fastest, with the forms that help.

    After an interrupt every layer keeps its best form.
    """
    if draft.is_interrupted:
        return draft
    champion, *challengers = (
        _agreed(session, draft.taking(race.chosen(), race)) for race in draft.races
    )
    for challenger in challengers:
        if _is_better(session, challenger, champion):
            champion = challenger
    champion = _with_lifted_neighbours(session, champion)
    return _helping_forms(session, champion) if session.spending.ablation else champion


def _is_better(session: SearchSession, challenger: SearchDraft, champion: SearchDraft) -> bool:
    if not challenger.is_changing or challenger.specs == champion.specs:
        return False
    if not champion.is_changing:
        return True
    if not session.spending.trial:
        return False
    progress(Step("timing the whole model folded for another level"))
    trial = compare(session, champion, challenger, session.spending.trial)
    return trial is not None and trial.gain.is_surely_faster


def _agreed(session: SearchSession, draft: SearchDraft) -> SearchDraft:
    """Return the draft in which neighbours agree on layouts, if that is better.

    If nothing is to be measured, layers without a measurement keep their predicted forms. The
    others agree, unless the store has a time only for the forms in which they do not.
    """
    measurement_of = draft.race.bench.measurement
    predicted = {s: spec for s, spec in draft.specs.items() if measurement_of(s, AS_IS) is None}
    specs = {**predicted, **forms_by_measurement(draft.race.layers, measurement_of)}
    agreed = draft.taking(specs)
    if specs == draft.specs or not draft.is_changing or not session.spending.trial:
        return agreed
    progress(Step(f"timing the whole model with {len(specs)} layers that agree"))
    trial = compare(session, draft, agreed, session.spending.trial)
    if trial is None:
        is_timed, agreed_is_timed = (stored_final(session, d) is not None for d in (draft, agreed))
        return draft if is_timed and not agreed_is_timed else agreed
    return agreed if trial.gain.is_surely_faster else draft


def _with_lifted_neighbours(session: SearchSession, draft: SearchDraft) -> SearchDraft:
    """Return the draft in which all neighbours are lifted, if that is better.

    Alone a lifted layer pays for copies into the runtime's blocked layout and back. Between
    lifted neighbours it does not, and no layer that is measured by itself shows that.
    """
    layers, specs = draft.race.layers, draft.specs
    lifts = {
        subject: form.spec
        for group in layers.neighbours
        for subject in group
        for form in layers.workloads[subject].forms
        if form.spec.is_lift_alone and not (subject in specs and specs[subject].is_lifted_1d)
    }
    lifted = draft.taking({**specs, **lifts})
    if lifted.specs == specs or len(lifted.specs) < 2:
        return draft
    progress(Step("timing the whole model with neighbours of one axis lifted"))
    trial = compare(session, draft, lifted, session.spending.lifting)
    return lifted if trial is not None and trial.gain.is_surely_faster else draft


def _helping_forms(session: SearchSession, draft: SearchDraft) -> SearchDraft:
    """Drop the forms that do not help the whole model.

    A form that surely slows it down in its place is dropped. Uncertain forms stay if they help
    together. Where the model does not run without a form, nothing is known of the form, which
    stays.
    """
    groups = _groups(draft)
    remainders = [_without(draft, group) for group in groups]
    if not groups or (len(groups) == 1 and not remainders[0].is_changing):
        return draft
    trials = without_each(
        session, draft, groups, remainders, named=f"{len(draft.specs)} folded layers"
    )
    helping = _without(draft, [s for group, t in trials if t.gain.is_surely_slower for s in group])
    if not helping.is_changing:
        # The final trial decides on the least harmful group.
        group, _ = max(trials, key=lambda item: item[1].ratio)
        return draft.taking({s: draft.specs[s] for s in group})
    sure = _without(draft, [s for group, t in trials if not t.gain.is_surely_faster for s in group])
    if sure.specs == helping.specs or not sure.is_changing:
        return helping
    (trial,) = ratios_to(session, helping, [sure], session.spending.trial)
    is_faster = trial is not None and trial.status == "ok" and trial.ratio < 1
    return sure if is_faster else helping


def _groups(draft: SearchDraft) -> list[list[str]]:
    """Return the groups of layers without which the model is timed.

    Lifted neighbours are one group, because a lifted layer alone pays for copies. All layers that
    save little are one, if others save more. Every other layer is a group by itself.
    """
    race, specs = draft.race, draft.specs
    lifted = {s for s, spec in specs.items() if spec.is_lift_alone}
    lifted_groups = [[s for s in group if s in lifted] for group in race.layers.neighbours]
    lifted_groups = [group for group in lifted_groups if group]
    members = {s for group in lifted_groups for s in group}
    savings = {s: race.saved(s, spec) for s, spec in specs.items() if s not in members}
    total = sum(max(seconds, 0.0) for seconds in savings.values())
    weak = [s for s in savings if savings[s] < WEAK_SHARE * total]
    strong = [[s] for s in savings if s not in weak]
    if not strong:
        return [*lifted_groups, *([s] for s in savings)]
    return [*lifted_groups, *strong, *([weak] if weak else [])]


def _without(draft: SearchDraft, subjects: Sequence[str]) -> SearchDraft:
    return draft.taking({s: spec for s, spec in draft.specs.items() if s not in subjects})
