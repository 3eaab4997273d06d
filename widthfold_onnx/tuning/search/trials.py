"""Time whole models against each other: a layer that is faster alone may not be in its place."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from widthfold_onnx.decide.decisions import Drafting
from widthfold_onnx.decide.match import fit
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import SearchOptions, Shapes, Sizes, VerifyOptions
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.results import SpeedVerdict
from widthfold_onnx.rewrite.plan import EMPTY_PLAN, Plan
from widthfold_onnx.rewrite.scratch import Scratch
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.inputs.feeds import Distribution
from widthfold_onnx.runtime.intervals import noise, speed_verdict
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning.bench import Bench, is_complete
from widthfold_onnx.tuning.effort import Spending
from widthfold_onnx.tuning.identity import canonical
from widthfold_onnx.tuning.measurement import CandidateResult, Measurement
from widthfold_onnx.tuning.search.context import SearchContext
from widthfold_onnx.tuning.search.timers import (
    Results,
    Timer,
    send_each,
    time_in_process,
    time_in_turn,
    time_levels,
    time_over_processes,
)

HANG_SECONDS = 600.0
"""Seconds beyond the timing at one size after which a model counts as hung.

Some models run for ten seconds, and an undecided trial runs them almost sixty times.
"""

MAX_MODELS_IN_MEMORY = 8
"""Most models that are in memory at a time, besides the one that they are compared with."""


T = TypeVar("T")


@dataclass(frozen=True)
class Trials:
    """Times rewritten models; results of earlier trials come from the store.

    Attributes:
        bench: the store, and how models run.
        context: has the sizes at which whole models run.
        scratch: the original model, and the folder for the models that are built of it.
        level: the level at which models run; None chooses it for each model.
    """

    bench: Bench
    context: SearchContext
    scratch: Scratch
    level: Level | None = None

    @property
    def loaded(self) -> LoadedModel:
        """The original model."""
        return self.scratch.original

    @cached_property
    def drafting(self) -> Drafting:
        """The model, whose plans are drafted and timed."""
        return Drafting(self.loaded, self.bench.options.fold_options)

    @property
    def search_options(self) -> SearchOptions:
        """The options with which models run."""
        return self.bench.options.search_options

    @property
    def spending(self) -> Spending:
        """The seconds of each trial."""
        return self.bench.options.spending

    def at(self, level: Level | None) -> Self:
        """Return the same at a level."""
        return replace(self, level=level)

    def compare(self, base: Plan, plan: Plan, seconds: float) -> Measurement | None:
        """Time the models of two plans against each other, each at its strongest setting.

        Args:
            base: the plan that should be slower.
            plan: the plan that should be faster.
            seconds: time that timing may take, at all sizes together.

        Returns:
            The ratio time of base / time of plan (`deciding_trial`), lost if one of them does not
            run; None if it is not in the store and nothing is to be measured.
        """
        of_size = seconds / len(self._trial_sizes)
        candidate = _candidate(base, plan, **self._conditions)
        timer = partial(time_in_process, level=self.level)
        trials = self._results(self._trial_sizes, candidate, timer, of_size, plans=(base, plan))
        return deciding_trial(trials)

    def ratios_to(
        self,
        plan: Plan,
        others: Sequence[Plan],
        seconds: float,
        kind: Distribution = Distribution.NORMAL,
    ) -> list[Measurement | None]:
        """Time models of other plans in turn with the model of a plan, all at one setting.

        Args:
            plan: the plan.
            others: such as the plan without some of its changes.
            seconds: time that timing may take, for all others and sizes together.
            kind: how random inputs are distributed.

        Returns:
            Time of each other / time of `plan`, as `compare` does.
        """
        candidates = [_candidate(other, plan, inputs=kind, **self._conditions) for other in others]
        of_size = seconds / len(self._trial_sizes)
        open_sizes = [self._open_sizes(candidate, of_size) for candidate in candidates]
        untimed = [number for number, sizes in enumerate(open_sizes) if sizes]

        def time_others(chunk: Sequence[int]) -> bool:
            open_trials = [(candidates[number], open_sizes[number]) for number in chunk]
            with self._files([plan, *(others[number] for number in chunk)]) as (file, *files):
                timer = partial(time_in_turn, file, files, kind, level=self.level)
                return self._run(open_trials, timer, of_size, share=len(chunk) / len(untimed))

        for start in range(0, len(untimed), MAX_MODELS_IN_MEMORY):
            chunk = untimed[start : start + MAX_MODELS_IN_MEMORY]
            child_survived = time_others(chunk)
            if not child_survived and len(chunk) > 1:
                # One of them may not run, or memory holds some of them only.
                for number in chunk:
                    time_others([number])
        return [
            deciding_trial([self._measurement(shapes, candidate) for shapes in self._trial_sizes])
            for candidate in candidates
        ]

    def without_each(
        self, plan: Plan, parts: Sequence[T], remainders: Sequence[Plan], *, named: str
    ) -> list[tuple[T, Measurement]]:
        """Time plans that each lack a part of a plan in turn with that plan.

        Returns:
            The parts without which the model was timed, with what `ratios_to` returns for them.
        """
        progress(Step(f"timing the whole model without each of {named}"))
        trials = self.ratios_to(plan, remainders, self.spending.ablation)
        pairs = zip(parts, trials, strict=True)
        return [
            (part, trial) for part, trial in pairs if trial is not None and trial.status == "ok"
        ]

    def level_ratio(self, plan: Plan) -> Measurement | None:
        """Time one model on the CPU at the first size: at level ALL / at level EXTENDED."""
        candidate = canonical({"of": plan.digest, "than": Level.ALL, "is": Level.EXTENDED})
        sizes, seconds = self.context.sizes[:1], self.spending.probe
        (measurement,) = self._results(sizes, candidate, time_levels, seconds, plans=[plan])
        return measurement

    def final(self, plan: Plan) -> list[Measurement | None]:
        """Time a plan against the original at every size, in several processes.

        The caller decides by it which model is written. No result of an earlier comparison counts,
        as that may have been shorter. The level is no part of the candidate. It is set only where
        the original surely is slower at the others, so that the original runs at it anyway.

        Returns:
            By size, as `compare` does.
        """
        candidate, plans = _final_candidate(plan), (EMPTY_PLAN, plan)
        timer, seconds = partial(time_over_processes, level=self.level), self.spending.final
        return [
            measurement
            for shapes in self.context.sizes  # each by itself: one may crash
            for measurement in self._results([shapes], candidate, timer, seconds, plans=plans)
        ]

    def stored_final(self, plan: Plan) -> Measurement | None:
        """Return the stored result of `final` at the first size, if there is one."""
        return self._measurement(self.context.sizes[0], _final_candidate(plan))

    @cached_property
    def _unsized_subject(self) -> dict[str, object]:
        """The subject in the store without the shapes of the inputs."""
        return {
            "model": _digest(self.loaded.path.read_bytes()),
            "inputs": _digests(self.search_options.inputs),
            "values": self.search_options.cases[0],
        }

    def _subject(self, shapes: Shapes) -> str:
        return canonical({**self._unsized_subject, "shapes": shapes})

    @cached_property
    def _trial_sizes(self) -> Sizes:
        """The first size and all larger ones: smaller ones get the final trial alone."""
        first, *others = self.context.sizes
        return first, *(other for other in others if _elements(other) > _elements(first))

    def _results(
        self,
        sizes: Sequence[Shapes],
        candidate: str,
        function: Callable[..., Results],
        seconds: float,
        *,
        plans: Sequence[Plan],
    ) -> list[Measurement | None]:
        """Return the results of one trial by size, and run it first where it is open.

        `function` times the models of the plans, whose files it takes in this order.
        """
        open_sizes = self._open_sizes(candidate, seconds, sizes)
        if open_sizes:
            with self._files(plans) as files:
                self._run([(candidate, open_sizes)], partial(function, *files), seconds)
        return [self._measurement(shapes, candidate) for shapes in sizes]

    @property
    def _conditions(self) -> dict[str, str]:
        """The level as a condition of a candidate, if it is not chosen for each model."""
        return {} if self.level is None else {"level": self.level}

    def _measurement(self, shapes: Shapes, candidate: str) -> Measurement | None:
        return self.bench.measurement(self._subject(shapes), candidate)

    def _open_sizes(
        self, candidate: str, seconds: float, sizes: Sequence[Shapes] | None = None
    ) -> list[Shapes]:
        """Return at which sizes something is to be timed, for so many seconds each.

        No size follows one at which the candidate is known to be surely slower.
        """
        open_sizes = list[Shapes]()
        for shapes in self._trial_sizes if sizes is None else sizes:
            trial = self._measurement(shapes, candidate)
            is_done = trial is not None and is_complete(trial, seconds, bar=noise(trial.control))
            if self.search_options.measure and not is_done:
                open_sizes.append(shapes)
            elif is_decided(trial):
                break
        return open_sizes

    def _run(
        self,
        open_trials: Sequence[tuple[str, Sequence[Shapes]]],
        timer: Timer,
        seconds: float,
        *,
        share: float = 1.0,
    ) -> bool:
        """Time models in a child process, and save the measurements of each size when it is done.

        Args:
            open_trials: the candidates, in the order in which the timer yields them, each with
                the sizes at which it is to be timed.
            timer: times the candidates at each size.
            seconds: budget of all candidates of a trial, at each size.
            share: share of the budget that these candidates get.

        Returns:
            Whether the child lived; else the candidates are lost at the size at which it ended.
        """
        options = self.search_options.to(
            VerifyOptions,
            time_budget=seconds * share,
            seeds=0 if self.search_options.inputs else 1,
        )
        sizes = [
            dict(shapes)
            for shapes in self.context.sizes
            if any(shapes in open_sizes for _, open_sizes in open_trials)
        ]
        remaining_sizes = list(sizes)

        def save(results: Sequence[Measurement | None]) -> None:
            shapes = remaining_sizes.pop(0)
            for (candidate, open_sizes), result in zip(open_trials, results, strict=True):
                if result is not None and shapes in open_sizes:
                    measurement = msgspec.structs.replace(result, budget=seconds)
                    self.bench.save(CandidateResult(self._subject(shapes), candidate, measurement))

        try:
            isolated(
                send_each,
                timer,
                options,
                sizes,
                child=self.bench.child,
                silence=seconds + HANG_SECONDS,
                on_message=save,
            )
        except UnverifiedError as error:
            if remaining_sizes:  # at the first one of them
                save([Measurement.lost(str(error))] * len(open_trials))
            return False
        return True

    @contextmanager
    def _files(self, plans: Sequence[Plan]) -> Iterator[list[Path]]:
        """Yield the files of the models that plans make, without what does not fit the model."""
        rewritings = (fit(self.loaded, plan).rewriting for plan in plans if plan.is_changing)
        with self.scratch.models(rewritings) as files:
            unused = iter(files)
            yield [next(unused) if plan.is_changing else self.loaded.path for plan in plans]


def deciding_trial(trials: Sequence[Measurement | None]) -> Measurement | None:
    """Return the deciding trial among the trials at several sizes.

    A change is taken only if it gains at one size and surely loses at none: so the first trial that
    is surely slower, or lost, decides, and else the best one.

    Returns:
        The deciding trial; None if a trial is not known.
    """
    for trial in trials:
        if is_decided(trial):
            return trial
    return max(filter(None, trials), key=lambda trial: trial.low)


def is_decided(trial: Measurement | None) -> bool:
    """Check whether a trial is unknown or surely slower: no later size can change that answer."""
    return trial is None or trial.gain.is_surely_slower


def gains_over_sizes(finals: Sequence[Measurement | None]) -> bool:
    """Check whether trials at several sizes show a gain at one size and a loss at none.

    A trial that was not timed shows neither; where nothing was timed, predictions have decided.
    """
    verdicts = [verdict_of(trial) for trial in finals if trial is not None]
    return not verdicts or ("faster" in verdicts and "slower" not in verdicts)


def verdict_of(trial: Measurement) -> SpeedVerdict:
    """Judge a trial; a model that does not run is slower than any other."""
    return speed_verdict(trial.low, trial.high, trial.control)


def _elements(shapes: Shapes) -> int:
    """Return the number of elements of all inputs."""
    return sum(map(math.prod, shapes.values()))


def _candidate(base: Plan, plan: Plan, **conditions: str) -> str:
    names = [p.digest if p.is_changing else "original" for p in (base, plan)]
    return canonical({"than": names[0], "is": names[1], **conditions})


def _final_candidate(plan: Plan) -> str:
    """Return the candidate of the trial that decides whether a plan is taken."""
    return _candidate(EMPTY_PLAN, plan, trial="last")


def _digests(inputs: Sequence[str]) -> list[str]:
    """Digest the files of stored inputs: some kernels branch on the data."""
    paths = map(Path, inputs)
    files = (sorted(path.rglob("*.pb")) if path.is_dir() else [path] for path in paths)
    return [_digest(file.read_bytes()) for file in chain.from_iterable(files)]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
