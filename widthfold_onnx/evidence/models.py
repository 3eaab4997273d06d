"""Compare two whole models on the same inputs, output by output.

The reference is the original with the runtime's own optimizations off: they have faults of
their own. Then both are compared as they would be deployed, with all of them on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.bisect import first_difference
from widthfold_onnx.evidence.interface import interface_differences
from widthfold_onnx.evidence.parity import NOT_MEANINGFUL, compare, relative_error
from widthfold_onnx.evidence.rows import (
    UNSTEADY,
    Cells,
    Judge,
    Outputs,
    both,
    difference,
    merged,
    output_names,
    stored_differences,
)
from widthfold_onnx.evidence.truth import true_outputs
from widthfold_onnx.options import Shapes, VerifyOptions
from widthfold_onnx.results import OutputParity
from widthfold_onnx.runtime.feeds import made_up
from widthfold_onnx.runtime.session import Array, Level, Session, open_session, resolved
from widthfold_onnx.runtime.stored import InputSet, stored_feeds
from widthfold_onnx.text import printable

Report = Callable[[str], None]

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""Values do not depend on the number of threads beyond rounding; only times need one thread."""


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
        options: all but those of the exact probe and of timing are used.
        report: called with a line before each round of runs.

    Raises:
        UsageError: stored inputs or shapes that do not fit the model, or options that do not
            fit the provider.
    """
    try:
        differences = interface_differences(original, rewritten)
        if differences:
            return ModelParity(verdict="fail", reasons=tuple(differences))
        options = resolved(options)
        session = _opened(original, options, Level.DISABLED)
        sets, shapes, limits = _input_sets(session, options)
        sets, reference = _originals(session, sets, limits, report)
        again = session.run(sets[0].feeds)
    except UnverifiedError as error:
        return ModelParity(verdict="unverified", reasons=(str(error),))
    provider, declared = options.provider.value, session.outputs
    del session  # two models in memory at a time are enough
    unsteady = {
        name
        for name in output_names([reference[0]], [again])
        if not compare(name, *both(name, reference[0], again), options.tolerance).passed
    }
    computed = _attempt(rewritten, options, Level.DISABLED, sets, report)
    if isinstance(computed, str):
        reasons = (f"the original runs, the rewritten model does not: {computed}",)
        return ModelParity(verdict="fail", reasons=reasons, provider=provider, shapes=shapes)
    budget = options.truth_budget if options.thorough else 0.0
    report("float64 reference")
    truths = true_outputs(original, declared, sets, budget)
    judge = Judge(options.tolerance, unsteady, truths)
    plain = judge.cells("disabled", reference, computed)
    deployed, stopped = _deployed(original, rewritten, options, sets, reference, judge, report)
    if judge.failed(plain) or judge.failed(deployed):
        noise = _noise(original, options, sets, reference, report)
        plain, deployed = judge.forgiven(plain, noise), judge.forgiven(deployed, noise)
    wrong = judge.failed(plain)
    failures = [difference(cell, sets[number].label) for number, cell in wrong]
    failures += stored_differences(declared, sets, reference, computed, options.tolerance)
    if wrong:
        smallest = min((number for number, _ in wrong), key=lambda i: _elements(sets[i]))
        failures.append(first_difference(original, rewritten, sets[smallest], options, report))
    if not failures:
        lines = stopped + [difference(c, sets[i].label) for i, c in judge.failed(deployed)]
        failures = [f"only with the runtime's own optimizations: {line}" for line in lines]
    rows = merged(plain)
    doubts = [f"output {printable(name)} {UNSTEADY}" for name in sorted(unsteady)]
    if rows and all(row.note.startswith(NOT_MEANINGFUL) for row in rows):
        doubts.append("no output shows anything on these inputs; pass --inputs with real ones")
    return ModelParity(
        verdict="fail" if failures else "unverified" if doubts else "pass",
        reasons=(*failures, *doubts, *limits),
        outputs=(*rows, *merged(deployed)),
        input_sets=len(sets),
        provider=provider,
        shapes=shapes,
    )


def _input_sets(
    session: Session, options: VerifyOptions
) -> tuple[list[InputSet], Shapes, list[str]]:
    """Stored sets, then made-up ones; the shapes of the first of those; what was left out."""
    sets = [item for path in options.inputs for item in stored_feeds(Path(path), session.inputs)]
    if options.seeds < 1 and sets:
        return sets, {}, []
    try:
        made = made_up(
            session,
            options.input_shapes,
            max(options.seeds, 1),
            varied=options.thorough,
        )
    except UnverifiedError as error:
        if not sets:
            raise
        return sets, {}, [f"stored inputs only: {error}"]
    return [*sets, *made.sets], made.shapes, list(made.limits)


def _elements(item: InputSet) -> int:
    return sum(array.size for array in item.feeds.values())


def _originals(
    session: Session, sets: Sequence[InputSet], limits: list[str], report: Report
) -> tuple[list[InputSet], list[Outputs]]:
    """Outputs of the original, and the sets without those made-up ones on which it stops.

    Raises:
        UnverifiedError: it stops on the first set or on a stored one.
    """
    kept: list[InputSet] = []
    results: list[Outputs] = []
    for item in sets:
        try:
            results += _run(session, [item], "original", report)
        except UnverifiedError as error:
            if not (kept and item.made_up):
                raise
            limits.append(f"left out {item.label}: {error}")
        else:
            kept.append(item)
    return kept, results


def _run(session: Session, sets: Sequence[InputSet], who: str, report: Report) -> list[Outputs]:
    results = []
    for item in sets:
        report(f"{who}: {item.label}")
        results.append(session.run(item.feeds))
    return results


def _opened(model: Path, options: VerifyOptions, level: Level) -> Session:
    return open_session(
        model, options.provider, level, CORES, provider_options=options.provider_options
    )


def _attempt(
    model: Path, options: VerifyOptions, level: Level, sets: Sequence[InputSet], report: Report
) -> list[Outputs] | str:
    """All outputs, or why there are none."""
    try:
        session = _opened(model, options, level)
        return _run(session, sets, f"{printable(model.name)}, level {level}", report)
    except UnverifiedError as error:
        return str(error)


def _deployed(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    sets: Sequence[InputSet],
    plain: Sequence[Outputs],
    judge: Judge,
    report: Report,
) -> tuple[Cells, list[str]]:
    """Cells at the level of deployment, and why there are none if only the rewritten stops there.

    Where the runtime's optimizations change the original, the rewritten model passes as well if
    it still computes what the original computes without them (`plain`).
    """
    candidate = _attempt(rewritten, options, Level.ALL, sets, report)
    reference = _attempt(original, options, Level.ALL, sets, report)
    if isinstance(candidate, str):
        return {}, [] if isinstance(reference, str) else [candidate]
    if isinstance(reference, str):
        note = "the original does not run at this level; compared with level disabled"
        return _noted(judge.cells("all", plain, candidate), note), []
    cells = judge.cells("all", reference, candidate)
    bad = {cell.name for _, cell in judge.failed(cells)}
    if not bad:
        return cells, []
    steady = judge.cells("all", plain, candidate)
    wrong = {cell.name for _, cell in judge.failed(steady)}
    note = "the runtime's optimizations change the original; compared with level disabled"
    good = _noted({name: row for name, row in steady.items() if name in bad - wrong}, note)
    return {name: good.get(name, row) for name, row in cells.items()}, []


def _noise(
    original: Path,
    options: VerifyOptions,
    sets: Sequence[InputSet],
    plain: Sequence[Outputs],
    report: Report,
) -> list[dict[str, float | None]]:
    """How far each output of the original moves when every float input moves by one rounding.

    By input set; an input set that cannot be moved has no noise.
    """
    shaken = [
        InputSet(f"{item.label} shaken", {name: _shaken(x) for name, x in item.feeds.items()})
        for item in sets
    ]
    moved = _attempt(original, options, Level.DISABLED, shaken, report)
    if isinstance(moved, str):
        return [{} for _ in sets]
    return [
        {name: relative_error(*both(name, before, after)) for name in before}
        for before, after in zip(plain, moved, strict=True)
    ]


def _shaken(array: Array) -> Array:
    if array.dtype.kind != "f":
        return array
    return np.asarray(np.nextafter(array, np.asarray(np.inf, array.dtype)))


def _noted(cells: Cells, note: str) -> Cells:
    return {
        name: {
            number: cell if cell.note else msgspec.structs.replace(cell, note=note)
            for number, cell in row.items()
        }
        for name, row in cells.items()
    }
