"""Settle on the forms of layers: try the forms of all layers together, then the model without each.

Layers that gain alone need not gain in their places. Every trial compares whole models that are
rewritten; against the original there is only the last one, which takes longer (`search`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from widthfold_onnx.options.progress import Progress, Step
from widthfold_onnx.rewrite.plan import Plan
from widthfold_onnx.rules.forms.form import FormSpec
from widthfold_onnx.runtime.measurement import AS_IS, Measurement
from widthfold_onnx.tuning.search.assign import assign
from widthfold_onnx.tuning.search.level_search import LevelSearch
from widthfold_onnx.tuning.search.trials import Trials

WEAK_SHARE = 0.1
"""Forms that save less than this share of the total saving are tried together."""


Forms = Mapping[str, FormSpec]
"""Subject of a layer -> its form; a layer that is not named stays as it is."""


@dataclass(frozen=True)
class Settling:
    """Settle on the forms of one level by trials of the whole model.

    Attributes:
        trials: times whole models.
        draft: the plan without layers: frozen weights and companions.
        say: gets a step for each trial.
    """

    trials: Trials
    draft: Plan
    say: Progress

    def settle(self, levels: Sequence[LevelSearch]) -> tuple[LevelSearch, Forms]:
        """Return the level at which the whole model is fastest, and the forms that help there.

        Args:
            levels: the levels, the most promising one first.
        """
        level, *others = levels
        forms = self._agreed(level)
        for other in others:
            agreed = self._agreed(other)
            if self._is_better(other.plan(self.draft, agreed), level.plan(self.draft, forms)):
                level, forms = other, agreed
        forms = self._lifted(level, forms)
        return level, self._helping(level, forms) if self.trials.spending.trial else forms

    def _is_better(self, other: Plan, chosen: Plan) -> bool:
        if not other.changes or other == chosen:
            return False
        if not chosen.changes:
            return True
        if not self.trials.spending.trial:
            return False
        self.say(Step("timing the whole model folded for another level"))
        trial = self.trials.compare(chosen, other, self.trials.spending.trial)
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
        alone, together = (level.plan(self.draft, f) for f in (forms, agreed))
        if agreed == forms or not alone.changes or not self.trials.spending.trial:
            return agreed
        self.say(Step(f"timing the whole model with {len(agreed)} layers that agree"))
        trial = self.trials.compare(alone, together, self.trials.spending.trial)
        if trial is None:
            timed = self.trials.stored(alone), self.trials.stored(together)
            return forms if timed[0] is not None and timed[1] is None else agreed
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
            if form.spec.is_lift_alone and not (subject in forms and forms[subject].is_lifted)
        }
        lifted = {**forms, **lifts}
        if lifted == forms or len(lifted) < 2:
            return forms
        self.say(Step("timing the whole model with neighbours of one axis lifted"))
        alone, together = (level.plan(self.draft, f) for f in (forms, lifted))
        trial = self.trials.compare(alone, together, self.trials.spending.lifting)
        return lifted if trial is not None and trial.low > 1 else forms

    def _helping(self, level: LevelSearch, forms: Forms) -> Forms:
        """Drop the forms that do not help the whole model.

        A form that surely slows it down in its place is dropped. Uncertain forms stay if they help
        together.
        """
        groups = _groups(level, forms)
        others = [_without(forms, group) for group in groups]
        if not groups or (others == [{}] and not self.draft.changes):
            return forms
        self.say(Step(f"timing the whole model without each of {len(forms)} folded layers"))
        trials = self._trials_without(level, forms, others)
        timed = {s: t for group, t in zip(groups, trials, strict=True) for s in group if t}
        helping = _without(forms, [s for s, t in timed.items() if t.high < 1])
        if not helping and not self.draft.changes:
            # The last trial decides on the least harmful form.
            best = max(timed, key=lambda s: timed[s].ratio)
            return {best: forms[best]}
        sure = _without(forms, [s for s, t in timed.items() if t.low <= 1])
        if sure == helping or not (sure or self.draft.changes):
            return helping
        (together,) = self._trials_without(level, helping, [sure])
        return sure if together is not None and together.ratio < 1 else helping

    def _trials_without(
        self, level: LevelSearch, forms: Forms, others: Sequence[Forms]
    ) -> list[Measurement | None]:
        """Return for each of other forms the time of its model / time with all forms."""
        plans = [level.plan(self.draft, other) for other in others]
        return self.trials.without(
            level.plan(self.draft, forms), plans, self.trials.spending.without
        )


def _groups(level: LevelSearch, forms: Forms) -> list[list[str]]:
    """Return the layers to try together: neighbours, and all that save little, if others save more.

    Lifted neighbours are tried together, because a lifted layer alone pays for copies.
    """
    lifted = {s for s, form in forms.items() if form.is_lift_alone}
    together = [[s for s in group if s in lifted] for group in level.layers.neighbours]
    together = [group for group in together if group]
    grouped = {s for group in together for s in group}
    saved = {s: level.saved(s, form) for s, form in forms.items() if s not in grouped}
    total = sum(max(seconds, 0.0) for seconds in saved.values())
    weak = [s for s in saved if saved[s] < WEAK_SHARE * total]
    strong = [[s] for s in saved if s not in weak]
    if not strong:
        return [*together, *([s] for s in saved)]
    return [*together, *strong, *([weak] if weak else [])]


def _without(forms: Forms, subjects: Sequence[str]) -> Forms:
    return {s: f for s, f in forms.items() if s not in subjects}
