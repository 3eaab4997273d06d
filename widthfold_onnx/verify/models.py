"""Compare two whole models on the same inputs, output by output.

The reference is the original with the runtime's own optimizations off: they have faults of
their own. Then both are compared as they would be deployed, with all of them on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider, Shapes, Tolerance, VerifyOptions
from widthfold_onnx.results import OutputParity
from widthfold_onnx.runtime.feeds import find_shapes, other_shapes, random_feeds
from widthfold_onnx.runtime.session import Array, Level, Session, open_session
from widthfold_onnx.runtime.stored import InputSet, stored_feeds
from widthfold_onnx.text import printable
from widthfold_onnx.verify.interface import interface_differences
from widthfold_onnx.verify.parity import NOT_MEANINGFUL, LevelName, compare, worst

Outputs = dict[str, Array]
Report = Callable[[str], None]

SLACK = 2.0
"""The rewritten model may be this many times as far from stored outputs as the original is."""

_UNSTEADY = "cannot be judged: the original itself gives other values when it runs again"


@dataclass(frozen=True, kw_only=True)
class ModelParity:
    """What the comparison of two models found.

    Attributes:
        verdict: fail where a steady output differs; unverified where nothing can be said.
        reasons: why it is not a pass, or what limits the pass; one line each.
        outputs: one row per output and level.
        input_sets: how many sets were compared.
        provider: where both models ran, "" if none did.
        shapes: of the first random input set, empty if there is none.
    """

    verdict: Literal["pass", "fail", "unverified"]
    reasons: tuple[str, ...]
    outputs: tuple[OutputParity, ...] = ()
    input_sets: int = 0
    provider: str = ""
    shapes: Shapes = field(default_factory=dict)


def silent(line: str) -> None:
    """A report that nobody reads."""


def compare_models(
    original: Path, rewritten: Path, options: VerifyOptions, *, report: Report = silent
) -> ModelParity:
    """Compare interface and values; meant to run in `runtime.worker.isolated`.

    Args:
        original: model file.
        rewritten: model file.
        options: provider, seeds, stored inputs, shapes and tolerance are used.
        report: called with a line before each round of runs.

    Raises:
        UsageError: stored inputs or shapes that do not fit the model.
    """
    try:
        differences = interface_differences(original, rewritten)
        if differences:
            return ModelParity(verdict="fail", reasons=tuple(differences))
        session = open_session(original, options.provider, Level.DISABLED)
        sets, shapes, limits = _input_sets(session, options)
        truth = _run(session, sets, "original", report)
        again = session.run(sets[0].feeds)
    except UnverifiedError as error:
        return ModelParity(verdict="unverified", reasons=(str(error),))
    provider, names = session.provider, session.outputs
    del session  # two models in memory at a time are enough
    unsteady = {
        name
        for name in _names([truth[0]], [again])
        if not compare(name, *_both(name, truth[0], again), options.tolerance).passed
    }
    judge = _Judge(options.tolerance, unsteady)
    computed = _attempt(rewritten, provider, Level.DISABLED, sets, report)
    if isinstance(computed, str):
        reasons = (f"the original runs, the rewritten model does not: {computed}",)
        return ModelParity(verdict="fail", reasons=reasons, provider=provider.value, shapes=shapes)
    rows = judge.rows("disabled", truth, computed)
    failures = [_difference(row) for row in judge.failed(rows)]
    failures += _stored_differences(names, sets, truth, computed, options.tolerance)
    deployed, more = _deployed(original, rewritten, provider, sets, truth, judge, report)
    if not failures:
        failures = [f"only with the runtime's own optimizations: {line}" for line in more]
    doubts = [f"output {printable(name)} {_UNSTEADY}" for name in sorted(unsteady)]
    if rows and all(row.note.startswith(NOT_MEANINGFUL) for row in rows):
        doubts.append("no output shows anything on these inputs; pass --inputs with real ones")
    return ModelParity(
        verdict="fail" if failures else "unverified" if doubts else "pass",
        reasons=(*failures, *doubts, *limits),
        outputs=(*rows, *deployed),
        input_sets=len(sets),
        provider=provider.value,
        shapes=shapes,
    )


@dataclass(frozen=True)
class _Judge:
    tolerance: Tolerance
    unsteady: set[str]

    def rows(
        self, level: LevelName, references: Sequence[Outputs], candidates: Sequence[Outputs]
    ) -> list[OutputParity]:
        """One row per output: the worst over all input sets."""
        pairs = list(zip(references, candidates, strict=True))
        return [self._row(name, level, pairs) for name in _names(references, candidates)]

    def _row(
        self, name: str, level: LevelName, pairs: Iterable[tuple[Outputs, Outputs]]
    ) -> OutputParity:
        row = reduce(
            worst,
            (
                compare(name, *_both(name, reference, candidate), self.tolerance, level)
                for reference, candidate in pairs
                if name in reference or name in candidate
            ),
        )
        if name in self.unsteady:
            return msgspec.structs.replace(row, passed=False, note=_UNSTEADY)
        return row

    def failed(self, rows: Iterable[OutputParity]) -> list[OutputParity]:
        return [row for row in rows if not row.passed and row.name not in self.unsteady]


def _names(*runs: Sequence[Outputs]) -> list[str]:
    return list(dict.fromkeys(name for side in runs for outputs in side for name in outputs))


def _both(name: str, reference: Outputs, candidate: Outputs) -> tuple[Array, Array]:
    """Both values; one that only one side has (sequences differ in length) is empty there."""
    present = reference[name] if name in reference else candidate[name]
    absent = np.empty((0, *present.shape), present.dtype)
    return reference.get(name, absent), candidate.get(name, absent)


def _input_sets(
    session: Session, options: VerifyOptions
) -> tuple[list[InputSet], Shapes, list[str]]:
    """Stored sets, then random ones; the shapes of the first random set; what was left out."""
    sets = [item for path in options.inputs for item in stored_feeds(Path(path), session.inputs)]
    if options.seeds < 1 and sets:
        return sets, {}, []
    try:
        shapes = find_shapes(session, options.input_shapes)
    except UnverifiedError as error:
        if not sets:
            raise
        return sets, {}, [f"stored inputs only: {error}"]
    others = other_shapes(session, options.input_shapes, shapes) or shapes
    for seed in range(max(options.seeds, 1)):
        chosen = others if seed % 2 else shapes
        sets.append(InputSet(f"seed {seed}", random_feeds(session.inputs, seed, chosen)))
    return sets, shapes, []


def _run(session: Session, sets: Sequence[InputSet], who: str, report: Report) -> list[Outputs]:
    results = []
    for item in sets:
        report(f"{who}: {item.label}")
        results.append(session.run(item.feeds))
    return results


def _attempt(
    model: Path, provider: Provider, level: Level, sets: Sequence[InputSet], report: Report
) -> list[Outputs] | str:
    """All outputs, or why there are none."""
    try:
        session = open_session(model, provider, level)
        return _run(session, sets, f"{printable(model.name)}, level {level}", report)
    except UnverifiedError as error:
        return str(error)


def _deployed(
    original: Path,
    rewritten: Path,
    provider: Provider,
    sets: Sequence[InputSet],
    truth: Sequence[Outputs],
    judge: _Judge,
    report: Report,
) -> tuple[list[OutputParity], list[str]]:
    """Rows at the level of deployment, and what is wrong there.

    Where the runtime's optimizations change the original, the rewritten model passes as well if
    it still computes what the original computes without them.
    """
    candidate = _attempt(rewritten, provider, Level.ALL, sets, report)
    reference = _attempt(original, provider, Level.ALL, sets, report)
    if isinstance(candidate, str):
        if isinstance(reference, str):
            return [], []
        return [], [candidate]
    strict = judge.rows("all", truth, candidate)
    if isinstance(reference, str):
        note = "the original does not run at this level; compared with level disabled"
        rows = [_noted(row, note) for row in strict]
        return rows, [_difference(row) for row in judge.failed(rows)]
    rows = judge.rows("all", reference, candidate)
    moved = {row.name: row for row in judge.rows("all", truth, reference)}
    bad = {row.name for row in judge.failed(rows)}
    good = {row.name: row for row in strict if row.passed}
    note = "the runtime's optimizations change the original; compared with level disabled"
    rows = [
        _noted(good[row.name], note) if row.name in bad and row.name in good else row
        for row in rows
    ]
    return rows, [
        f"{_difference(row)}; the original itself moves by {_figure(moved[row.name].max_rel)}"
        for row in judge.failed(rows)
    ]


def _stored_differences(
    names: Sequence[str],
    sets: Sequence[InputSet],
    truth: Sequence[Outputs],
    computed: Sequence[Outputs],
    tolerance: Tolerance,
) -> list[str]:
    """Where the rewritten model is further from stored outputs than it may be."""
    lines = []
    for item, before, after in zip(sets, truth, computed, strict=True):
        for name, expected in zip(names, item.expected, strict=False):
            if name not in before or name not in after:
                continue
            old = compare(name, expected, before[name], tolerance)
            new = compare(name, expected, after[name], tolerance)
            far = new.max_abs is None or old.max_abs is None or new.max_abs > SLACK * old.max_abs
            if not new.passed and (far or (old.nonfinite_match and not new.nonfinite_match)):
                lines.append(f"{item.label}: stored {_difference(new)}")
    return lines


def _noted(row: OutputParity, note: str) -> OutputParity:
    return row if row.note else msgspec.structs.replace(row, note=note)


def _difference(row: OutputParity) -> str:
    if row.max_rel is None or not row.nonfinite_match:
        detail = row.note or "values differ"
    else:
        detail = f"max_rel {_figure(row.max_rel)}, allowed {row.tolerance:g}"
    return f"output {printable(row.name)}: {detail}"


def _figure(value: float | None) -> str:
    return "an unknown amount" if value is None else f"{value:.3g}"
