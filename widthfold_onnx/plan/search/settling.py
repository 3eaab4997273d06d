"""Settle on one choice: try the forms of all layers together, then the model without each.

Layers that gain alone need not gain in their places. Every trial compares whole models that are
rewritten; against the original there is only the last one, which takes longer (`search`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from widthfold_onnx.plan.measure.effort import Spending
from widthfold_onnx.plan.search.assign import assign
from widthfold_onnx.plan.search.choice import ORIGINAL, Choice
from widthfold_onnx.plan.search.level_search import LevelSearch
from widthfold_onnx.plan.search.trials import Trials
from widthfold_onnx.plan.workload.candidates import is_lift_alone, is_lifted
from widthfold_onnx.progress import Progress, Step
from widthfold_onnx.results.store import AS_IS
from widthfold_onnx.rules.companions.table import COMPANIONS

WEAK_SHARE = 0.1
"""Choices that save less than this share of the total saving are tried together."""


@dataclass(frozen=True)
class Settling:
    """Settle on one choice by trials of the whole model.

    Attributes:
        trials: times whole models.
        taken: what is changed beside the layers.
        spending: how long a trial takes.
        say: gets a step for each trial.
    """

    trials: Trials
    taken: Choice
    spending: Spending
    say: Progress

    def settle(self, levels: Sequence[LevelSearch]) -> tuple[LevelSearch, Choice]:
        """Return the level at which the whole model is fastest, and the choice that helps there.

        Args:
            levels: the one first that promises most.
        """
        level, *others = levels
        chosen = self._agreed(level)
        for other in others:
            agreed = self._agreed(other)
            if self._is_better(agreed, chosen):
                level, chosen = other, agreed
        chosen = self._lifted(level, chosen)
        return level, self._helping(level, chosen) if self.spending.trial else chosen

    def _is_better(self, other: Choice, chosen: Choice) -> bool:
        if other in (ORIGINAL, chosen):
            return False
        if chosen == ORIGINAL:
            return True
        if not self.spending.trial:
            return False
        self.say(Step("timing the whole model folded for another level"))
        trial = self.trials.compare(chosen, other, self.spending.trial)
        return trial is not None and trial.low > 1

    def _agreed(self, level: LevelSearch) -> Choice:
        """Return the choice in which neighbours agree on layouts, if that is better.

        If nothing is to be measured, the layers that were not either keep their predicted forms,
        and the others agree, unless the store timed only the choice in which they do not.
        """
        known = level.bench.known
        forms = level.chosen()
        predicted = {s: form for s, form in forms.items() if known(s, AS_IS) is None}
        chosen = replace(self.taken, forms=forms)
        agreed = replace(self.taken, forms={**predicted, **assign(level.layers, known)})
        if agreed == chosen or chosen == ORIGINAL or not self.spending.trial:
            return agreed
        self.say(Step(f"timing the whole model with {len(agreed.forms)} layers that agree"))
        trial = self.trials.compare(chosen, agreed, self.spending.trial)
        if trial is None:
            timed = self.trials.known(chosen), self.trials.known(agreed)
            return chosen if timed[0] is not None and timed[1] is None else agreed
        return agreed if trial.low > 1 else chosen

    def _lifted(self, level: LevelSearch, chosen: Choice) -> Choice:
        """Return the choice in which all neighbours of one axis are lifted, if that is better.

        Alone a lifted layer pays for copies into the runtime's blocked layout and back. Between
        lifted neighbours it does not, and no layer that is measured by itself shows that.
        """
        lifts = {
            subject: form.key
            for subject in level.layers.neighbours
            for form in level.layers.workloads[subject].forms
            if is_lift_alone(form.key) and not is_lifted(chosen.forms.get(subject))
        }
        lifted = replace(chosen, forms={**chosen.forms, **lifts})
        if lifted == chosen or len(lifted.forms) < 2:
            return chosen
        if not self.spending.trial:  # a companion was timed between lifted layers alone
            return lifted if any(COMPANIONS[name].lifts for name in chosen.companions) else chosen
        self.say(Step("timing the whole model with neighbours of one axis lifted"))
        trial = self.trials.compare(chosen, lifted, self.spending.trial)
        return lifted if trial is not None and trial.low > 1 else chosen

    def _helping(self, level: LevelSearch, chosen: Choice) -> Choice:
        """Return the choice without the forms that do not help the whole model.

        A form that surely slows it down in its place is dropped. Those of which it is not sure
        whether they help stay if they help together.
        """
        groups = _groups(level, chosen)
        others = [_without(chosen, group) for group in groups]
        if others in ([], [ORIGINAL]):
            return chosen
        self.say(Step(f"timing the whole model without each of {len(chosen.forms)} folded layers"))
        found = self.trials.without(chosen, others, self.spending.without)
        timed = {s: t for group, t in zip(groups, found, strict=True) for s in group if t}
        kept = _without(chosen, [s for s, t in timed.items() if t.high < 1])
        if kept == ORIGINAL:  # the last trial decides on the one that does least harm
            best = max(timed, key=lambda s: timed[s].ratio)
            return replace(chosen, forms={best: chosen.forms[best]})
        sure = _without(chosen, [s for s, t in timed.items() if t.low <= 1])
        if sure in (ORIGINAL, kept):
            return kept
        (together,) = self.trials.without(kept, [sure], self.spending.without)
        return sure if together is not None and together.ratio < 1 else kept


def _groups(level: LevelSearch, chosen: Choice) -> list[list[str]]:
    """Return the layers that are tried together: those that save little, if others save more."""
    saved = {s: level.saved(s, form) for s, form in chosen.forms.items()}
    total = sum(max(seconds, 0.0) for seconds in saved.values())
    weak = [s for s in saved if saved[s] < WEAK_SHARE * total]
    strong = [[s] for s in saved if s not in weak]
    if not strong:
        return [[s] for s in saved]
    return [*strong, weak] if weak else strong


def _without(choice: Choice, subjects: Sequence[str]) -> Choice:
    return replace(choice, forms={s: f for s, f in choice.forms.items() if s not in subjects})
