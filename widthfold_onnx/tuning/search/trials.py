"""Time whole models against each other: a layer that is faster alone may not be in its place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.model.read.loader import LoadedModel
from widthfold_onnx.model.write.writer import write_model
from widthfold_onnx.options import Shapes, VerifyOptions
from widthfold_onnx.results import Measurement
from widthfold_onnx.results.store import lost
from widthfold_onnx.rewrite.apply import fit
from widthfold_onnx.rewrite.plan import EMPTY, Plan
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.inputs.distributions import Distribution
from widthfold_onnx.runtime.intervals import noise
from widthfold_onnx.runtime.paired_benchmark import ratio_of, ratio_of_levels, ratios_to
from widthfold_onnx.runtime.sessions.session import Level
from widthfold_onnx.tuning.measure.bench import Bench
from widthfold_onnx.tuning.measure.measurements import Outcome, is_known
from widthfold_onnx.tuning.store.identity import canonical

PATIENCE = 600.0
"""Seconds beyond the timing itself after which a model counts as hung: some run for ten seconds,
and the fewest processes of a trial run them almost sixty times."""

FOLDED = "the folded model"
"""File name of every folded model: errors of the runtime name it."""

AT_ONCE = 8
"""Most models that are in memory at a time, besides the one that they are compared with."""


class Trials:
    """Times rewritten models; results of earlier trials come from the store.

    Args:
        loaded: the original model.
        bench: the store, and how models run.
        shapes: shapes of every input.
        folder: folder for the models that are built.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        bench: Bench,
        shapes: Shapes,
        folder: Path,
    ) -> None:
        self._loaded = loaded
        self._bench = bench
        self._options = bench.setup.how
        self._shapes = shapes
        self._folder = folder
        self._subject = canonical(
            {
                "model": _digest(loaded.path.read_bytes()),
                "shapes": shapes,
                "inputs": _digests(self._options.inputs),
                "values": self._options.cases[0],
            }
        )

    def compare(self, base: Plan, other: Plan, seconds: float, **how: str) -> Measurement | None:
        """Time the models of two plans against each other, each at its strongest setting.

        Args:
            base: the plan that should be slower.
            other: the plan that should be faster.
            seconds: time that timing may take.
            how: what tells this trial apart from other trials of the two in the store.

        Returns:
            The ratio time of base / time of other, lost if one of them does not run; None if it is
            not in the store and nothing is to be measured.
        """
        candidate = _candidate(base, other, **how)
        if self._is_open(candidate, seconds):
            self._time([candidate], ratio_of, seconds, self._file(base), self._file(other))
        return self._bench.known(self._subject, candidate)

    def without(
        self,
        chosen: Plan,
        others: Sequence[Plan],
        seconds: float,
        kinds: Sequence[Distribution] = (Distribution.NORMAL,),
    ) -> list[Measurement | None]:
        """Time the models of other plans in turn with the model of one, all at one setting.

        Args:
            chosen: the plan.
            others: parts of it.
            seconds: time that timing may take, all others and kinds together.
            kinds: how random inputs are distributed, one after the other.

        Returns:
            On inputs of each kind, time of each other / time of `chosen`, as `compare` does.
        """

        def candidates(bases: Sequence[Plan]) -> list[str]:
            return [_candidate(base, chosen, inputs=kind) for kind in kinds for base in bases]

        untimed = [
            other
            for other in others
            if any(self._is_open(candidate, seconds) for candidate in candidates([other]))
        ]
        for start in range(0, len(untimed), AT_ONCE):
            part = untimed[start : start + AT_ONCE]
            files = [self._file(other) for other in part]
            share = len(part) / len(untimed)
            models = self._file(chosen), files, kinds
            self._time(candidates(part), ratios_to, seconds, *models, share=share)
        return [self._bench.known(self._subject, candidate) for candidate in candidates(others)]

    def levels(self, plan: Plan, seconds: float) -> Measurement | None:
        """Time one model on the CPU: at level ALL / at level EXTENDED, as `compare` does."""
        candidate = canonical({"of": plan.digest, "than": Level.ALL, "is": Level.EXTENDED})
        if self._is_open(candidate, seconds):
            self._time([candidate], ratio_of_levels, seconds, self._file(plan))
        return self._bench.known(self._subject, candidate)

    def decide(self, plan: Plan, seconds: float) -> Measurement | None:
        """Time a plan against the original, as `compare` does: this decides which model is written.

        It takes no result of an earlier comparison, which may have been shorter.
        """
        return self.compare(EMPTY, plan, seconds, trial="last")

    def known(self, plan: Plan) -> Measurement | None:
        """Return the stored result of `decide`, if there is one."""
        return self._bench.known(self._subject, _candidate(EMPTY, plan, trial="last"))

    def _is_open(self, candidate: str, seconds: float) -> bool:
        """Check whether something is to be timed, for so many seconds."""
        known = self._bench.known(self._subject, candidate)
        bar = 0.0 if known is None else noise(known.control)
        return self._options.measure and not is_known(known, seconds, bar=bar)

    def _time(
        self,
        candidates: Sequence[str],
        function: Callable[..., Measurement | list[Measurement]],
        seconds: float,
        *models: object,
        share: float = 1.0,
    ) -> None:
        """Time models in a child process, and keep one measurement for each candidate.

        They get a share of the seconds that all candidates of a trial have.
        """
        options = VerifyOptions(
            provider=self._options.provider,
            provider_options=self._options.provider_options,
            session_options=self._options.session_options,
            threads=self._options.threads,
            cases=self._options.cases,
            time_budget=seconds * share,
            inputs=self._options.inputs,
            seeds=0 if self._options.inputs else 1,
        )
        shapes = dict(self._shapes)
        try:
            times = isolated(function, *models, options, shapes, timeout=seconds + PATIENCE)
        except UnverifiedError as error:
            times = [lost(str(error))] * len(candidates)
        times = [times] if isinstance(times, Measurement) else times
        for candidate, measured in zip(candidates, times, strict=True):
            timed = msgspec.structs.replace(measured, budget=seconds)
            self._bench.keep(Outcome(self._subject, candidate, timed))

    def _file(self, plan: Plan) -> Path:
        """Return the file of the model that a plan makes, without what does not fit the model."""
        if not plan.changes:
            return self._loaded.path
        path = self._folder / plan.digest / FOLDED
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            rewriting = fit(self._loaded.proto, self._loaded.folder, plan).rewriting
            write_model(
                rewriting.carry_out(),
                path,
                source_folder=self._loaded.folder,
                check=lambda written: None,
                externalize=rewriting.document.external_names,
            )
        return path


def _candidate(base: Plan, other: Plan, **how: str) -> str:
    names = [plan.digest if plan.changes else "original" for plan in (base, other)]
    return canonical({"than": names[0], "is": names[1], **how})


def _digests(inputs: Sequence[str]) -> list[str]:
    """Digest the files of stored inputs: some kernels branch on the data."""
    paths = map(Path, inputs)
    files = (sorted(path.rglob("*.pb")) if path.is_dir() else [path] for path in paths)
    return [_digest(file.read_bytes()) for file in chain.from_iterable(files)]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
