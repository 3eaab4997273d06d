"""Compares two whole models on the same inputs, output by output.

The reference is the original with the runtime's own optimizations off: they have faults of
their own. Then both are compared as they would be deployed, with all of them on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from widthfold_onnx.errors import NoKernelError, UnverifiedError
from widthfold_onnx.evidence.eight_bits.exact_kernels import may_saturate
from widthfold_onnx.evidence.parity.comparison import Judge, Outputs, at_level, merged
from widthfold_onnx.evidence.parity.cudnn_fault import original_is_off
from widthfold_onnx.evidence.parity.float64_reference import true_outputs
from widthfold_onnx.evidence.parity.interface import interface_differences
from widthfold_onnx.evidence.parity.optimized_level import deployed_cells, in_float64, stepped
from widthfold_onnx.evidence.parity.outputs import meaningless
from widthfold_onnx.evidence.parity.overflow import overflowing_sets
from widthfold_onnx.evidence.parity.reference import (
    Reference,
    reference_of,
    stored_differences,
)
from widthfold_onnx.evidence.parity.reference_validity import usable
from widthfold_onnx.evidence.parity.saturated import as_deployed
from widthfold_onnx.options import Provider, Shapes, VerifyOptions
from widthfold_onnx.progress import Say, quiet
from widthfold_onnx.results import OutputParity, Verdict
from widthfold_onnx.runtime.sessions.session import Level, resolved


@dataclass(frozen=True, kw_only=True)
class ModelParity:
    """The result of comparing two models.

    Attributes:
        failures: how a steady output differs, one line each.
        doubts: why no statement is possible.
        limits: what limits the comparison.
        outputs: one row per output and level.
        input_sets: how many sets were judged.
        provider: where both models ran, None if none did.
        shapes: of the first random input set, empty if there is none.
        saturates_further: as `VerifyReport.saturates_further`.
        unrun: why the runtime can run neither model, "" if that is not for lack of a kernel.
    """

    failures: Sequence[str] = ()
    doubts: Sequence[str] = ()
    limits: Sequence[str] = ()
    outputs: Sequence[OutputParity] = ()
    input_sets: int = 0
    provider: Provider | None = None
    shapes: Shapes = field(default_factory=dict)
    saturates_further: bool = False
    unrun: str = ""

    @property
    def verdict(self) -> Verdict:
        """Fail if anything failed, unverified if anything is left open, else pass."""
        return "fail" if self.failures else "unverified" if self.doubts else "pass"

    @property
    def reasons(self) -> tuple[str, ...]:
        """All lines; failures come before limits, as a message may be cut at its end."""
        return (*self.failures, *self.doubts, *self.limits)


def compare_models(
    original: Path, rewritten: Path, options: VerifyOptions, *, report: Say = quiet
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
            return ModelParity(failures=differences)
        options = resolved(options)
        reference = reference_of(original, options, report)
    except NoKernelError as error:
        unrun = str(error)
        return ModelParity(doubts=[unrun], provider=options.provider, unrun=unrun)
    except UnverifiedError as error:
        return ModelParity(doubts=[str(error)])
    computed = reference.run(rewritten, Level.DISABLED)
    if isinstance(computed, str):
        return ModelParity(
            failures=[f"the original runs, the rewritten model does not: {computed}"],
            provider=options.provider,
            shapes=reference.inputs.shapes,
        )
    return _judged(reference, rewritten, computed)


def _judged(reference: Reference, rewritten: Path, computed: list[Outputs]) -> ModelParity:
    """Judge what the rewritten model computed, and what both compute as they would be deployed."""
    options, sets = reference.options, reference.sets
    reference.report("float64 reference")
    budget = options.truth_budget if options.thorough else 0.0
    truths, missing = true_outputs(reference.model, reference.names, sets, budget)
    truths, unused = usable(truths, reference.outputs, lambda: reference.noise)
    judge = Judge(options.tolerance, reference.unsteady, truths)
    ends = deployed_cells(reference, rewritten, judge)
    cells = judge.cells("disabled", reference.outputs, computed) | ends.cells
    cells, unknown = stepped(cells, judge, partial(in_float64, reference, rewritten))
    if judge.failed(cells):
        cells = judge.forgiven(cells, reference.noise)
    doubtful = sorted({number for *_, number in judge.failed(cells) if sets[number].random})
    overflown = overflowing_sets(reference, rewritten, doubtful)
    cells = {key: cell for key, cell in cells.items() if key[-1] not in overflown}
    limits = [*reference.inputs.limits, *(line for line in (missing, unused, *unknown) if line)]
    limits += [f"left out {sets[number].label}: {why}" for number, why in overflown.items()]
    failures = judge.differences(at_level("disabled", cells), sets)
    failures += stored_differences(reference, computed)
    if not failures:
        lines = [*ends.stopped, *judge.differences(at_level("all", cells), sets)]
        failures = [f"only with the runtime's own optimizations: {line}" for line in lines]
    worse: list[str] = []
    if not failures and ends.original and may_saturate(options, reference.model, rewritten):
        worse, told = as_deployed(reference, rewritten, (ends.original, ends.rewritten))
        failures += worse
        limits += told
    if failures:
        runs = [reference.outputs, *([ends.original] if ends.original else [])]
        failures += original_is_off(reference, rewritten, runs)
    doubts = reference.doubts
    if meaningless(merged(at_level("disabled", cells))):
        doubts.append("no output shows anything on these inputs; pass --inputs with real ones")
    if len(overflown) == len(sets):
        doubts.append("the original overflows on every input set; pass --inputs with real ones")
    return ModelParity(
        failures=failures,
        doubts=doubts,
        limits=limits,
        outputs=tuple(merged(cells)),
        input_sets=len(sets) - len(overflown),
        provider=options.provider,
        shapes=reference.inputs.shapes,
        saturates_further=bool(worse),
    )
