"""Compares two whole models on the same inputs, output by output.

Both run without the runtime's own optimizations, which have faults of their own, and as they
would be deployed, with all of them on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from widthfold_onnx.errors import NoKernelError, UnverifiedError
from widthfold_onnx.evidence.parity.exact_kernels import may_saturate
from widthfold_onnx.evidence.parity.float64_reference import true_outputs
from widthfold_onnx.evidence.parity.interface import interface_differences
from widthfold_onnx.evidence.parity.outputs import difference
from widthfold_onnx.evidence.parity.reference import (
    Reference,
    reference_of,
    stored_differences,
)
from widthfold_onnx.evidence.parity.rule import COPIES, Cells, Rule, failed, merged
from widthfold_onnx.evidence.parity.runs import Outputs
from widthfold_onnx.evidence.parity.saturated import as_deployed
from widthfold_onnx.options import Provider, Sizes, VerifyOptions
from widthfold_onnx.progress import Say, quiet
from widthfold_onnx.results import OutputParity, Verdict
from widthfold_onnx.runtime.sessions.session import Level, resolved

NOTHING = "no output shows anything on these inputs"


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
    sizes: Sizes = ()
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


@dataclass(frozen=True)
class ModelRuns:
    """The outputs of two models on the same inputs.

    Attributes:
        reference: the original without the runtime's optimizations.
        rewritten: model file.
        notes: differences of the interfaces that are no fault.
        plain: outputs of the rewritten model without the runtime's optimizations, by input set.
        deployed: the same with them, or why there is none.
    """

    reference: Reference
    rewritten: Path
    notes: Sequence[str]
    plain: list[Outputs]
    deployed: list[Outputs] | str

    @cached_property
    def original_deployed(self) -> list[Outputs] | str:
        """Outputs of the original with the optimizations, or why there are none; run if needed."""
        return self.reference.run(self.reference.model, Level.ALL)

    @property
    def sizes(self) -> Sizes:
        """Sizes of the random input sets; empty if there is none."""
        return self.reference.inputs.sizes

    @property
    def provider(self) -> Provider:
        """The settings at which both models ran."""
        return self.reference.options.provider


def run_models(
    original: Path, rewritten: Path, options: VerifyOptions, *, report: Say = quiet
) -> ModelRuns | ModelParity:
    """Compare the interfaces and run both models; meant to run in `runtime.child.isolated`.

    Args:
        original: model file.
        rewritten: model file.
        options: provider, seeds, stored inputs, shapes and frozen weights are used.
        report: called with a line before each round of runs.

    Returns:
        What both return, or the result where nothing is left to compare.

    Raises:
        UsageError: stored inputs or shapes that do not fit the model.
    """
    try:
        faults, declared = interface_differences(
            original, rewritten, options.freeze_weights, options.input_shapes
        )
        if faults:
            return ModelParity(failures=faults)
        options = resolved(options)
        reference = reference_of(original, options, report)
    except NoKernelError as error:
        unrun = str(error)
        return ModelParity(doubts=[unrun], provider=options.provider, unrun=unrun)
    except UnverifiedError as error:
        return ModelParity(doubts=[str(error)])
    faults = [item.line for item in declared if not item.is_exact(reference.shapes(item.name))]
    if faults:
        return ModelParity(failures=faults)
    plain = reference.run(rewritten, Level.DISABLED)
    if isinstance(plain, str):
        return ModelParity(
            failures=[f"the original runs, the rewritten model does not: {plain}"],
            provider=options.provider,
            sizes=reference.inputs.sizes,
        )
    notes = [item.line for item in declared]
    return ModelRuns(reference, rewritten, notes, plain, reference.run(rewritten, Level.ALL))


def judged(runs: ModelRuns, *, is_proved: bool) -> ModelParity:
    """Judge what both models returned.

    Args:
        runs: from `run_models`.
        is_proved: whether both are proved to be the same function. Then rounding and overflow
            explain more, and outputs that show nothing are no obstacle.
    """
    reference, sets = runs.reference, runs.reference.sets
    cells, limits = _compared(runs, is_proved=is_proved)
    masks = {key[-1] for key, cell in failed(cells).items() if not cell.nonfinite_match}
    left_out = {n: reference.overflows(n) for n in sorted(masks) if is_proved and sets[n].random}
    left_out = {number: why for number, why in left_out.items() if why}
    cells = {key: cell for key, cell in cells.items() if key[-1] not in left_out}
    limits = [*runs.notes, *reference.inputs.limits, *limits]
    limits += [f"left out {sets[number].label}: {why}" for number, why in left_out.items()]
    plain, deployed = ({k: c for k, c in cells.items() if k[0] == at} for at in ("disabled", "all"))
    failures = [*_differences(plain, reference), *stored_differences(reference, runs.plain)]
    if not failures:
        lines = _differences(deployed, reference)
        if isinstance(runs.deployed, str) and not isinstance(runs.original_deployed, str):
            lines.insert(0, runs.deployed)
        failures = [f"only with the runtime's own optimizations: {line}" for line in lines]
    worse: list[str] = []
    if not failures and may_saturate(reference.options, reference.model, runs.rewritten):
        worse, remarks = as_deployed(
            reference, runs.rewritten, (runs.original_deployed, runs.deployed)
        )
        failures += worse
        limits += remarks
    doubts = reference.doubts
    if len(left_out) == len(sets) or {row.caveat for row in merged(plain)} == {"meaningless"}:
        why = "the original overflows on every input set" if left_out else NOTHING
        if is_proved:
            limits.append(f"{why}: the proof alone decides")
        else:
            doubts.append(f"{why}; pass --inputs with real ones")
    return ModelParity(
        failures=failures,
        doubts=doubts,
        limits=limits,
        outputs=tuple(merged(cells)),
        input_sets=len(sets) - len(left_out),
        provider=runs.provider,
        sizes=runs.sizes,
        saturates_further=bool(worse),
    )


def _compared(runs: ModelRuns, *, is_proved: bool) -> tuple[Cells, list[str]]:
    """Compare all outputs by the rule, with as many shaken copies as that takes; add limits."""
    reference, options = runs.reference, runs.reference.options
    reference.report("float64 reference")
    budget = options.truth_budget if options.thorough else 0.0
    truths, missing = true_outputs(reference.model, reference.names, reference.sets, budget)
    rule = Rule(reference, truths, is_proved)
    for copy in range(len(COPIES)):
        unmoved = rule.measure(copy)
        cells = rule.cells(runs.plain, runs.deployed, lambda: runs.original_deployed)
        if unmoved or rule.is_settled(cells):
            break
    if unmoved:
        unmoved = f"how far rounding moves the original is not known: {unmoved}"
    return cells, [line for line in (missing, *rule.limits(), unmoved) if line]


def _differences(cells: Cells, reference: Reference) -> list[str]:
    """Describe the first failed cell of each output that repeats."""
    first: dict[str, str] = {}
    for (_, name, number), cell in failed(cells).items():
        first.setdefault(name, difference(cell, reference.sets[number].label))
    return list(first.values())
