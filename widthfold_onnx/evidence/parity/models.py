"""Compares two whole models on the same inputs, output by output.

The reference is the original with the runtime's own optimizations off: they have faults of
their own. Then both are compared as they would be deployed, with all of them on.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Literal

from widthfold_onnx.errors import NoKernelError, UnverifiedError
from widthfold_onnx.evidence.eight_bits.exact_kernels import may_saturate
from widthfold_onnx.evidence.parity.comparison import (
    Cells,
    Judge,
    Outputs,
    difference,
    merged,
    stored_differences,
)
from widthfold_onnx.evidence.parity.cudnn_fault import original_is_off
from widthfold_onnx.evidence.parity.float64_reference import true_outputs
from widthfold_onnx.evidence.parity.interface import interface_differences
from widthfold_onnx.evidence.parity.optimized_level import deployed_cells, in_float64, stepped
from widthfold_onnx.evidence.parity.outputs import meaningless
from widthfold_onnx.evidence.parity.overflow import overflowing_sets
from widthfold_onnx.evidence.parity.reference import Reference, reference_of, unsteady_of
from widthfold_onnx.evidence.parity.reference_validity import usable
from widthfold_onnx.evidence.parity.runs import (
    Report,
    attempt,
    no_report,
    rounding_noise,
)
from widthfold_onnx.evidence.parity.saturated import as_deployed
from widthfold_onnx.options import Shapes, VerifyOptions
from widthfold_onnx.results import OutputParity
from widthfold_onnx.runtime.sessions.session import Level, resolved


@dataclass(frozen=True, kw_only=True)
class ModelParity:
    """The result of comparing two models.

    Attributes:
        verdict: fail where a steady output differs; unverified where no statement is possible.
        reasons: those for the verdict, or limits of a pass; one line each.
        limits: those of the reasons that only limit the comparison.
        outputs: one row per output and level.
        input_sets: how many sets were judged.
        provider: where both models ran, "" if none did.
        shapes: of the first random input set, empty if there is none.
        saturates_further: as `VerifyReport.saturates_further`.
        unrun: why the runtime can run neither model, "" if that is not for lack of a kernel.
    """

    verdict: Literal["pass", "fail", "unverified"]
    reasons: tuple[str, ...]
    limits: tuple[str, ...] = ()
    outputs: tuple[OutputParity, ...] = ()
    input_sets: int = 0
    provider: str = ""
    shapes: Shapes = field(default_factory=dict)
    saturates_further: bool = False
    unrun: str = ""


def compare_models(
    original: Path, rewritten: Path, options: VerifyOptions, *, report: Report = no_report
) -> ModelParity:
    """Compare interface and values; meant to run in `runtime.child.isolated`.

    Args:
        original: model file.
        rewritten: model file.
        options: provider, seeds, stored inputs, shapes, tolerance and truth budget are used.
        report: called with a line before each round of runs.

    Raises:
        UsageError: stored inputs or shapes that do not fit the model.
    """
    try:
        differences = interface_differences(
            original, rewritten, freeze_weights=options.freeze_weights
        )
        if differences:
            return ModelParity(verdict="fail", reasons=tuple(differences))
        options = resolved(options)
        reference = reference_of(original, options, report)
    except NoKernelError as error:
        provider = options.provider.value
        return ModelParity(
            verdict="unverified", reasons=(str(error),), provider=provider, unrun=str(error)
        )
    except UnverifiedError as error:
        return ModelParity(verdict="unverified", reasons=(str(error),))
    computed = attempt(rewritten, options, Level.DISABLED, reference.sets, report)
    if isinstance(computed, str):
        return ModelParity(
            verdict="fail",
            reasons=(f"the original runs, the rewritten model does not: {computed}",),
            provider=options.provider.value,
            shapes=reference.shapes,
        )
    return _judged(original, rewritten, options, reference, computed, report)


def _judged(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    reference: Reference,
    computed: list[Outputs],
    report: Report,
) -> ModelParity:
    """Judge what the rewritten model computed, and what both compute as they would be deployed."""
    sets, expected = reference.sets, reference.outputs
    moved = cache(partial(rounding_noise, original, options, sets, expected, report))
    report("float64 reference")
    budget = options.truth_budget if options.thorough else 0.0
    truths, missing = true_outputs(original, reference.names, sets, budget)
    truths, unused = usable(truths, expected, moved)
    judge = Judge(options.tolerance, reference.unsteady, truths)
    plain = judge.cells("disabled", expected, computed)
    ends = deployed_cells(original, rewritten, options, sets, expected, judge, report)
    widened = partial(in_float64, (original, rewritten), reference.names, sets, report)
    (plain, unknown), deployed = stepped(plain, ends.cells, judge, widened), ends.cells
    if judge.failed(plain) or judge.failed(deployed):
        plain, deployed = judge.forgiven(plain, moved()), judge.forgiven(deployed, moved())
    doubtful = sorted(judge.failing(plain) | judge.failing(deployed))
    made_up = {number: sets[number] for number in doubtful if sets[number].made_up}
    overflown = overflowing_sets(original, rewritten, made_up, options, report)
    limits = [*reference.limits, *(line for line in (missing, unused, *unknown) if line)]
    limits += [f"left out {sets[number].label}: {why}" for number, why in overflown.items()]
    plain, deployed = _without(plain, overflown), _without(deployed, overflown)
    wrong = judge.failed(plain)
    failures = [difference(cell, sets[number].label) for number, cell in wrong]
    failures += stored_differences(reference.names, sets, expected, computed, options.tolerance)
    if not failures:
        lines = [*ends.stopped] + [difference(c, sets[i].label) for i, c in judge.failed(deployed)]
        failures = [f"only with the runtime's own optimizations: {line}" for line in lines]
    worse: list[str] = []
    models, exact = (original, rewritten), (ends.original, ends.rewritten)
    if not failures and ends.original and may_saturate(options, *models):
        worse, told = as_deployed(models, options, sets, exact, judge.unsteady, report)
        failures += worse
        limits += told
    if failures:
        runs = [expected, *([ends.original] if ends.original else [])]
        failures += original_is_off(models, options, sets, runs, judge.unsteady, report)
    rows = merged(plain)
    doubts = unsteady_of(reference)
    if meaningless(rows):
        doubts.append("no output shows anything on these inputs; pass --inputs with real ones")
    if len(overflown) == len(sets):
        doubts.append("the original overflows on every input set; pass --inputs with real ones")
    return ModelParity(
        verdict="fail" if failures else "unverified" if doubts else "pass",
        reasons=(*failures, *doubts, *limits),
        limits=tuple(limits),
        outputs=(*rows, *merged(deployed)),
        input_sets=len(sets) - len(overflown),
        provider=options.provider.value,
        shapes=reference.shapes,
        saturates_further=bool(worse),
    )


def _without(cells: Cells, numbers: Container[int]) -> Cells:
    """Return the cells of the other input sets; an output without any left is dropped."""
    kept = {
        name: {number: cell for number, cell in row.items() if number not in numbers}
        for name, row in cells.items()
    }
    return {name: row for name, row in kept.items() if row}
