"""Define what each effort of the search spends, and how forms race.

The numbers were chosen so that `default` ends in half a minute for models of 50 ms a run. In eight
models 90 layers gain at all, alone or inside regions. For 89 of them a form within 5 % of the
fastest was among the first 12 of `tuning.workloads.most_promising_first`. For all it was among the
first 24. For 18 it was not among the first 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from widthfold_onnx.options import Effort, Provider, SearchOptions
from widthfold_onnx.runtime.intervals import MIN_DIFFERENCE
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.settings import Setting


class Rung(NamedTuple):
    """One later round of a race: how many of the best forms run, and in how many pairs."""

    forms: int
    pairs: int


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Seconds, forms and runs that one effort spends.

    Attributes:
        forms: the most forms of a layer that race, the form in which its neighbours agree included;
            None: all.
        pairs: pairs of runs in which each of them runs first.
        rungs: the later rounds.
        probe: seconds of each of these trials: the levels, each companion on each kind of inputs,
            each multiple of padding.
        race: seconds in which all layers race.
        negligible_share: share of the model's time; layers that together cannot gain it are left
            out.
        trial: seconds of one trial of the forms of all layers; 0.0: no such trial runs.
        lifting: seconds of the trial in which neighbouring layers are lifted.
        ablation: seconds in which the model is timed without each form, or each padded chain;
            0.0: no such trial runs.
        final: seconds of the final trial, which decides.
    """

    forms: int | None
    pairs: int
    rungs: tuple[Rung, ...]
    probe: float
    race: float
    negligible_share: float
    trial: float
    lifting: float
    ablation: float
    final: float


SPENDING = {
    Effort.QUICK: Spending(
        forms=4,
        pairs=2,
        rungs=(),
        probe=1.0,
        race=5.0,
        negligible_share=MIN_DIFFERENCE - 1,
        trial=0.0,
        lifting=1.0,
        ablation=0.0,
        final=2.0,
    ),
    Effort.DEFAULT: Spending(
        forms=12,
        pairs=2,
        rungs=(Rung(6, 8), Rung(2, 24)),
        probe=1.0,
        race=4.5,
        negligible_share=MIN_DIFFERENCE - 1,
        trial=1.0,
        lifting=1.0,
        ablation=2.0,
        final=5.0,
    ),
    Effort.THOROUGH: Spending(
        forms=None,
        pairs=4,
        rungs=(Rung(6, 10), Rung(2, 40)),
        probe=2.0,
        race=150.0,
        negligible_share=0.0,
        trial=3.0,
        lifting=3.0,
        ablation=15.0,
        final=10.0,
    ),
}


@dataclass(frozen=True)
class RaceOptions:
    """How the forms of layers race.

    Attributes:
        setting: of every session.
        spending: how many forms run, and how often.
    """

    setting: Setting
    spending: Spending

    @property
    def provider(self) -> Provider:
        """Where the forms run."""
        return self.setting.options.provider

    @classmethod
    def at(cls, level: Level, options: SearchOptions) -> Self:
        """Return the options at a level."""
        return cls(Setting(level, options), SPENDING[options.effort])
