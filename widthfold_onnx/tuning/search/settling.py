"""Settle on the forms of layers: try the forms of all layers together, then the model without each.

Layers that gain alone need not gain in their places. Every trial compares whole models that are
rewritten; against the original there is only the last one, which takes longer (`search`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from widthfold_onnx.progress import Step, progress
from widthfold_onnx.rewrite.plan import Plan
from widthfold_onnx.rules.form import FormSpec
from widthfold_onnx.tuning.measurement import AS_IS
from widthfold_onnx.tuning.search.agreement import forms_by_measurement
from widthfold_onnx.tuning.search.level_search import LevelSearch
from widthfold_onnx.tuning.search.trials import Trials

WEAK_SHARE = 0.1
"""Forms that save less than this share of the total saving are tried together."""


Forms = Mapping[str, FormSpec]
"""Subject of a layer -> its form; a layer that is not named stays as it is."""


def settle(trials: Trials, fastest_first: Sequence[LevelSearch]) -> tuple[LevelSearch, Forms]:
    """Return the search of the level at which the whole model is fastest, and the forms that help.

    Args:
        trials: times whole models.
        fastest_first: the searches at all levels, as `LevelSearches` has them.
    """
    level_search, *challengers = fastest_first
    forms = _agreed(trials, level_search)
    for challenger in challengers:
        challenger_forms = _agreed(trials, challenger)
        if _is_better(trials, challenger.plan(challenger_forms), level_search.plan(forms)):
            level_search, forms = challenger, challenger_forms
    forms = _with_lifted_neighbours(trials, level_search, forms)
    if trials.spending.ablation:
        forms = _helping_forms(trials, level_search, forms)
    return level_search, forms


def _is_better(trials: Trials, challenger: Plan, champion: Plan) -> bool:
    if not challenger.is_changing or challenger == champion:
        return False
    if not champion.is_changing:
        return True
    if not trials.spending.trial:
        return False
    progress(Step("timing the whole model folded for another level"))
    trial = trials.compare(champion, challenger, trials.spending.trial)
    return trial is not None and trial.gain.is_surely_faster


def _agreed(trials: Trials, level_search: LevelSearch) -> Forms:
    """Return the forms in which neighbours agree on layouts, if these are better.

    If nothing is to be measured, layers without a measurement keep their predicted forms. The
    others agree, unless the store has a time only for the forms in which they do not.
    """
    measurement_of = level_search.bench.measurement
    forms = level_search.chosen()
    predicted = {s: form for s, form in forms.items() if measurement_of(s, AS_IS) is None}
    agreed = {**predicted, **forms_by_measurement(level_search.layers, measurement_of)}
    plan, agreed_plan = (level_search.plan(f) for f in (forms, agreed))
    if agreed == forms or not plan.is_changing or not trials.spending.trial:
        return agreed
    progress(Step(f"timing the whole model with {len(agreed)} layers that agree"))
    trial = trials.compare(plan, agreed_plan, trials.spending.trial)
    if trial is None:
        stored_finals = trials.stored_final(plan), trials.stored_final(agreed_plan)
        return forms if stored_finals[0] is not None and stored_finals[1] is None else agreed
    return agreed if trial.gain.is_surely_faster else forms


def _with_lifted_neighbours(trials: Trials, level_search: LevelSearch, forms: Forms) -> Forms:
    """Return the forms in which all neighbours are lifted, if these are better.

    Alone a lifted layer pays for copies into the runtime's blocked layout and back. Between
    lifted neighbours it does not, and no layer that is measured by itself shows that.
    """
    lifts = {
        subject: form.spec
        for group in level_search.layers.neighbours
        for subject in group
        for form in level_search.layers.workloads[subject].forms
        if form.spec.is_lift_alone and not (subject in forms and forms[subject].is_lifted_1d)
    }
    lifted = {**forms, **lifts}
    if lifted == forms or len(lifted) < 2:
        return forms
    progress(Step("timing the whole model with neighbours of one axis lifted"))
    plan, lifted_plan = (level_search.plan(f) for f in (forms, lifted))
    trial = trials.compare(plan, lifted_plan, trials.spending.lifting)
    return lifted if trial is not None and trial.gain.is_surely_faster else forms


def _helping_forms(trials: Trials, level_search: LevelSearch, forms: Forms) -> Forms:
    """Drop the forms that do not help the whole model.

    A form that surely slows it down in its place is dropped. Uncertain forms stay if they help
    together. Where the model does not run without a form, nothing is known of the form, which
    stays.
    """
    groups = _groups(level_search, forms)
    remainders = [_without(forms, group) for group in groups]
    if not groups or (remainders == [{}] and not level_search.draft.is_changing):
        return forms
    plan, *plans = (level_search.plan(f) for f in (forms, *remainders))
    group_trials = trials.without_each(plan, groups, plans, named=f"{len(forms)} folded layers")
    helping = _without(
        forms, [s for group, t in group_trials if t.gain.is_surely_slower for s in group]
    )
    if not helping and not level_search.draft.is_changing:
        # The final trial decides on the least harmful group.
        group, _ = max(group_trials, key=lambda item: item[1].ratio)
        return {s: forms[s] for s in group}
    sure = _without(
        forms, [s for group, t in group_trials if not t.gain.is_surely_faster for s in group]
    )
    if sure == helping or not (sure or level_search.draft.is_changing):
        return helping
    sure_plan, helping_plan = (level_search.plan(f) for f in (sure, helping))
    (trial,) = trials.ratios_to(helping_plan, [sure_plan], trials.spending.trial)
    is_faster = trial is not None and trial.status == "ok" and trial.ratio < 1
    return sure if is_faster else helping


def _groups(level_search: LevelSearch, forms: Forms) -> list[list[str]]:
    """Return the groups of layers without which the model is timed.

    Lifted neighbours are one group, because a lifted layer alone pays for copies. All layers that
    save little are one, if others save more. Every other layer is a group by itself.
    """
    lifted = {s for s, form in forms.items() if form.is_lift_alone}
    lifted_groups = [[s for s in group if s in lifted] for group in level_search.layers.neighbours]
    lifted_groups = [group for group in lifted_groups if group]
    members = {s for group in lifted_groups for s in group}
    savings = {s: level_search.saved(s, form) for s, form in forms.items() if s not in members}
    total = sum(max(seconds, 0.0) for seconds in savings.values())
    weak = [s for s in savings if savings[s] < WEAK_SHARE * total]
    strong = [[s] for s in savings if s not in weak]
    if not strong:
        return [*lifted_groups, *([s] for s in savings)]
    return [*lifted_groups, *strong, *([weak] if weak else [])]


def _without(forms: Forms, subjects: Sequence[str]) -> Forms:
    return {s: f for s, f in forms.items() if s not in subjects}
