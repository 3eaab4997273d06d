"""Settle on the forms of layers: try the forms of all layers together, then the model without each.

Layers that gain alone need not gain in their places. Every trial compares whole models that are
rewritten; against the original there is only the last one, which takes longer (`search`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from widthfold_onnx.options.progress import Progress, Step
from widthfold_onnx.rewrite.plan import Plan
from widthfold_onnx.rules.form import FormSpec
from widthfold_onnx.runtime.measurement import AS_IS
from widthfold_onnx.tuning.search.assign import assign
from widthfold_onnx.tuning.search.level_search import LevelSearch
from widthfold_onnx.tuning.search.trials import Trials

WEAK_SHARE = 0.1
"""Forms that save less than this share of the total saving are tried together."""


Forms = Mapping[str, FormSpec]
"""Subject of a layer -> its form; a layer that is not named stays as it is."""


@dataclass(frozen=True)
class Settling:
    """The search for the forms that help in their places, by trials of the whole model.

    Attributes:
        trials: times whole models.
        draft: the plan without layers: frozen weights and companions.
        on_progress: gets a step for each trial.
    """

    trials: Trials
    draft: Plan
    on_progress: Progress

    def settle(self, levels: Sequence[LevelSearch]) -> tuple[LevelSearch, Forms]:
        """Return the level at which the whole model is fastest, and the forms that help there.

        Args:
            levels: the levels, the most promising one first.
        """
        level, *challengers = levels
        forms = self._agreed(level)
        for challenger in challengers:
            challenger_forms = self._agreed(challenger)
            if self._is_better(
                challenger.plan(self.draft, challenger_forms), level.plan(self.draft, forms)
            ):
                level, forms = challenger, challenger_forms
        forms = self._lifted(level, forms)
        if self.trials.spending.ablation:
            forms = self._helping(level, forms)
        return level, forms

    def _is_better(self, challenger: Plan, champion: Plan) -> bool:
        if not challenger.changes or challenger == champion:
            return False
        if not champion.changes:
            return True
        if not self.trials.spending.trial:
            return False
        self.on_progress(Step("timing the whole model folded for another level"))
        trial = self.trials.compare(champion, challenger, self.trials.spending.trial)
        return trial is not None and trial.low > 1

    def _agreed(self, level: LevelSearch) -> Forms:
        """Return the forms in which neighbours agree on layouts, if these are better.

        If nothing is to be measured, layers without a measurement keep their predicted forms. The
        others agree, unless the store has a time only for the forms in which they do not.
        """
        measurement = level.bench.measurement
        forms = level.chosen()
        predicted = {s: form for s, form in forms.items() if measurement(s, AS_IS) is None}
        agreed = {**predicted, **assign(level.layers, measurement)}
        plan, agreed_plan = (level.plan(self.draft, f) for f in (forms, agreed))
        if agreed == forms or not plan.changes or not self.trials.spending.trial:
            return agreed
        self.on_progress(Step(f"timing the whole model with {len(agreed)} layers that agree"))
        trial = self.trials.compare(plan, agreed_plan, self.trials.spending.trial)
        if trial is None:
            stored_finals = self.trials.stored_final(plan), self.trials.stored_final(agreed_plan)
            return forms if stored_finals[0] is not None and stored_finals[1] is None else agreed
        return agreed if trial.low > 1 else forms

    def _lifted(self, level: LevelSearch, forms: Forms) -> Forms:
        """Return the forms in which all neighbours are lifted, if these are better.

        Alone a lifted layer pays for copies into the runtime's blocked layout and back. Between
        lifted neighbours it does not, and no layer that is measured by itself shows that.
        """
        lifts = {
            subject: form.spec
            for group in level.layers.neighbours
            for subject in group
            for form in level.layers.workloads[subject].forms
            if form.spec.is_lift_alone and not (subject in forms and forms[subject].is_lifted_1d)
        }
        lifted = {**forms, **lifts}
        if lifted == forms or len(lifted) < 2:
            return forms
        self.on_progress(Step("timing the whole model with neighbours of one axis lifted"))
        plan, lifted_plan = (level.plan(self.draft, f) for f in (forms, lifted))
        trial = self.trials.compare(plan, lifted_plan, self.trials.spending.lifting)
        return lifted if trial is not None and trial.low > 1 else forms

    def _helping(self, level: LevelSearch, forms: Forms) -> Forms:
        """Drop the forms that do not help the whole model.

        A form that surely slows it down in its place is dropped. Uncertain forms stay if they help
        together.
        """
        groups = _groups(level, forms)
        remainders = [_without(forms, group) for group in groups]
        if not groups or (remainders == [{}] and not self.draft.changes):
            return forms
        self.on_progress(Step(f"timing the whole model without each of {len(forms)} folded layers"))
        plans = [level.plan(self.draft, remainder) for remainder in remainders]
        plan, seconds = level.plan(self.draft, forms), self.trials.spending.ablation
        trials = self.trials.without(plan, plans, seconds)
        trial_of = {s: t for group, t in zip(groups, trials, strict=True) for s in group if t}
        helping = _without(forms, [s for s, t in trial_of.items() if t.high < 1])
        if not helping and not self.draft.changes:
            # The final trial decides on the least harmful form.
            best = max(trial_of, key=lambda s: trial_of[s].ratio)
            return {best: forms[best]}
        sure = _without(forms, [s for s, t in trial_of.items() if t.low <= 1])
        if sure == helping or not (sure or self.draft.changes):
            return helping
        sure_plan, helping_plan = (level.plan(self.draft, f) for f in (sure, helping))
        trial = self.trials.compare(sure_plan, helping_plan, self.trials.spending.trial)
        return sure if trial is not None and trial.ratio < 1 else helping


def _groups(level: LevelSearch, forms: Forms) -> list[list[str]]:
    """Return the groups of layers without which the model is timed.

    Lifted neighbours are one group, because a lifted layer alone pays for copies. All layers that
    save little are one, if others save more. Every other layer is a group by itself.
    """
    lifted = {s for s, form in forms.items() if form.is_lift_alone}
    lifted_groups = [[s for s in group if s in lifted] for group in level.layers.neighbours]
    lifted_groups = [group for group in lifted_groups if group]
    members = {s for group in lifted_groups for s in group}
    savings = {s: level.saved(s, form) for s, form in forms.items() if s not in members}
    total = sum(max(seconds, 0.0) for seconds in savings.values())
    weak = [s for s in savings if savings[s] < WEAK_SHARE * total]
    strong = [[s] for s in savings if s not in weak]
    if not strong:
        return [*lifted_groups, *([s] for s in savings)]
    return [*lifted_groups, *strong, *([weak] if weak else [])]


def _without(forms: Forms, subjects: Sequence[str]) -> Forms:
    return {s: f for s, f in forms.items() if s not in subjects}
