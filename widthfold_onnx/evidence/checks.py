"""Run all checks of `verify` in a child process: interface, proof, outputs, time."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import onnx

from widthfold_onnx.errors import NoKernelError, UnverifiedError, UsageError
from widthfold_onnx.evidence.exact_kernels import holds_bytes
from widthfold_onnx.evidence.integers import run_on_integers
from widthfold_onnx.evidence.interface import interface_differences
from widthfold_onnx.evidence.parity.judgement import Findings, ModelParity, model_parity
from widthfold_onnx.evidence.parity.original_runs import OriginalRuns, original_runs_of
from widthfold_onnx.evidence.parity.outputs import Outputs
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import proof_report
from widthfold_onnx.evidence.timing.profile import fallback_lines
from widthfold_onnx.evidence.timing.requirement import gate, slowest
from widthfold_onnx.evidence.timing.speed import time_models
from widthfold_onnx.model.document import Document
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.model.proto.dims import dims_of
from widthfold_onnx.model.proto.walk import copy_of, frozen, overridable
from widthfold_onnx.model.shapes.declarations import (
    WrongDeclaration,
    contradict,
    declaration_remarks,
)
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import Shapes, Sizes, VerifyOptions
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.results import IntegerRun, Proof, Timing, VerifyReport
from widthfold_onnx.rewrite.record import recorded_folds, recorded_runtime
from widthfold_onnx.runtime.environment import StartReadings, environment, other_runtime
from widthfold_onnx.runtime.inputs.cases import values_for_report
from widthfold_onnx.runtime.inputs.sizes import assumption_report
from widthfold_onnx.runtime.kernels import u8s8_error
from widthfold_onnx.runtime.session import ports_of, resolved
from widthfold_onnx.text import printable


@dataclass(frozen=True)
class Uncompared:
    """Why the outputs of two models are not compared.

    Attributes:
        findings: the reasons.
        options: where the models would run. The provider is as the caller chose it if the
            interfaces differ, as nothing was run.
        missing_kernel: why the runtime can run neither model; "" if that is not the reason.
    """

    findings: Findings
    options: VerifyOptions
    missing_kernel: str = ""

    @property
    def is_unrunnable(self) -> bool:
        """True if the original cannot be run, for another reason than a missing kernel."""
        return self.findings.verdict == "unverified" and not self.missing_kernel


def verification_of(
    original: LoadedModel, rewritten: LoadedModel, options: VerifyOptions
) -> VerifyReport:
    """Compare two models in this process; `evidence.verify` starts one for it.

    The runtime reads their files again: all checks are of what was loaded, as the files must still
    be the same at the end.

    Raises:
        UsageError: an input, a shape or an option of the provider that does not fit.
        InvalidModelError: a file was changed meanwhile.
        UnverifiedError: there is no runtime.
    """
    state = StartReadings()
    comparison = comparable_runs(original, rewritten, options)
    options = comparison.options
    old = _frozen_alike(original, rewritten) if options.freeze_weights else original
    folds = recorded_folds(Document(rewritten.proto, rewritten.folder, OPERATORS))
    proof, integers = _proofs(old, rewritten, comparison)
    sizes: Sizes = ()
    compared: Sizes = ()
    unrun = ""
    if isinstance(comparison, Uncompared):
        parity, unrun = ModelParity(comparison.findings), comparison.missing_kernel
    else:
        sizes, compared = comparison.inputs.sizes, comparison.inputs.compared
        parity = model_parity(comparison, rewritten, is_proved=_is_equal(proof))
    findings = _of_integers(integers) + _of_proof(proof, parity, options) + parity.findings
    returned = _returned(comparison)
    lines = _wrong_declarations(old, rewritten, sizes or options.input_shapes, returned)
    findings += Findings(remarks=lines)
    timing: Timing | None = None
    if options.timing and parity.findings.verdict == "pass":
        timing, timing_findings = _timed(original, rewritten, options, sizes, state.load)
        findings += timing_findings
    original.check_unchanged()
    rewritten.check_unchanged()
    return VerifyReport(
        original=original.name,
        rewritten=rewritten.name,
        outputs=list(parity.outputs),
        proof=proof,
        integers=integers,
        folds=folds,
        timing=timing,
        verdict=findings.verdict,
        reasons=list(findings.reasons),
        input_sets=parity.input_sets,
        environment=environment(
            options, state, u8s8_error() if holds_bytes(old.proto, rewritten.proto) else None
        ),
        assumed=assumption_report(
            ports_of(old.proto), options.input_shapes, sizes if timing else compared
        ),
        saturates_further=parity.saturates_further,
        unrun=unrun if _is_equal(proof) else "",
        note=other_runtime(recorded_runtime(rewritten.proto)),
        values=values_for_report(options.cases),
    )


def _frozen_alike(original: LoadedModel, rewritten: LoadedModel) -> LoadedModel:
    """Return the original without the weights among its inputs that the rewritten model lacks."""
    names = overridable(original.proto) - {value.name for value in rewritten.proto.graph.input}
    return dataclasses.replace(original, proto=frozen(original.proto, names))


def comparable_runs(
    original: LoadedModel, rewritten: LoadedModel, options: VerifyOptions
) -> OriginalRuns | Uncompared:
    """Run the original if the interfaces agree; otherwise say why nothing is compared.

    Raises:
        UsageError: stored inputs or shapes that do not fit the model.
    """
    try:
        faults, declarations = interface_differences(
            original.proto, rewritten.proto, options.freeze_weights, options.input_shapes
        )
        if faults:
            return Uncompared(Findings(failures=tuple(faults)), options)
        options = resolved(options)
        original_runs = original_runs_of(original, options)
    except NoKernelError as error:
        return Uncompared(Findings(doubts=(str(error),)), options, str(error))
    except UnverifiedError as error:
        return Uncompared(Findings(doubts=(str(error),)), options)
    for item in declarations:
        shapes = [run[item.name].shape for run in original_runs.outputs if item.name in run]
        if fault := item.fault(shapes):
            faults.append(fault)
    if faults:
        return Uncompared(Findings(failures=tuple(faults)), options)
    remarks = [*(item.line for item in declarations), *original_runs.inputs.remarks]
    inputs = dataclasses.replace(original_runs.inputs, remarks=remarks)
    return dataclasses.replace(original_runs, inputs=inputs)


def _returned(comparison: OriginalRuns | Uncompared) -> Outputs:
    """Return the outputs of the original on its first inputs, none where it was not run."""
    return comparison.outputs[0] if isinstance(comparison, OriginalRuns) else {}


def _wrong_outputs(proto: onnx.ModelProto, returned: Outputs) -> list[onnx.ValueInfoProto]:
    """Return the outputs whose declared extents are not those that were returned."""
    return [
        value
        for value in proto.graph.output
        if value.name in returned and contradict(dims_of(value), returned[value.name].shape)
    ]


def _without_wrong_outputs(proto: onnx.ModelProto, returned: Outputs) -> onnx.ModelProto:
    """Return a model that declares no extents of outputs that are wrong, for the proof."""
    if not _wrong_outputs(proto, returned):
        return proto
    copy = copy_of(proto)
    for value in _wrong_outputs(copy, returned):
        value.type.tensor_type.ClearField("shape")
    return copy


def _wrong_declarations(
    old: LoadedModel, new: LoadedModel, sizes: Sizes, returned: Outputs
) -> tuple[str, ...]:
    """Name declared extents of both models that do not hold at the first sizes.

    A caller may demand extents that the new model does not take: that is said elsewhere.

    Args:
        old: the original.
        new: the rewritten model.
        sizes: shapes of the inputs.
        returned: outputs of the original, which judge where inference knows no extents.
    """
    lines: list[str] = []
    seen: set[tuple[str, str]] = set()
    for subject, model in (("the original", old), ("the rewritten model", new)):
        with suppress(UsageError):
            wrong = [*ShapeTable(model.proto, sizes[0]).wrong_declarations]
            names = {item.name for item in wrong}
            wrong += [
                WrongDeclaration("", value.name, dims_of(value) or (), returned[value.name].shape)
                for value in _wrong_outputs(model.proto, returned)
                if value.name not in names
            ]
            further = [item for item in wrong if (item.path, item.name) not in seen]
            seen.update((item.path, item.name) for item in further)
            lines += declaration_remarks(subject, further)
    return tuple(lines)


def _is_equal(proof: Proof | None) -> bool:
    return proof is not None and proof.verdict == "equal"


def _of_integers(integers: IntegerRun | None) -> Findings:
    """Return the findings of the run on integers."""
    if integers is None or integers.verdict != "different":
        return Findings()
    return Findings(failures=(f"on integers the runtime does not compute {integers.reason}",))


def _of_proof(proof: Proof | None, parity: ModelParity, options: VerifyOptions) -> Findings:
    """Return the findings of the proof, and the differences that only a proof would explain."""
    if _is_equal(proof):
        return Findings()
    findings = Findings()
    if proof is not None:
        is_open = proof.verdict == "not provable"
        is_wrong = proof.verdict == "different" or (options.needs_proof and is_open)
        lines = (f"proof: {proof.verdict}: {proof.reason}",)
        if is_wrong:
            findings = Findings(failures=lines)
        elif options.needs_proof:
            findings = Findings(doubts=lines)
        else:  # an open proof only limits the comparison of outputs
            findings = Findings(remarks=lines)
    if parity.findings.verdict == "pass" and (proof is None or proof.verdict == "skipped"):
        findings += Findings(doubts=_unexplained(parity))
    return findings


def _unexplained(parity: ModelParity) -> tuple[str, ...]:
    """Name outputs, one line each, that passed beyond the tolerance because rounding moves them.

    Rounding explains a difference only if something shows that both compute the same function.
    """
    names = [row.name for row in parity.outputs if row.caveat == "ill-conditioned"]
    return tuple(
        f"output {printable(name)} differs by more than the tolerance, and nothing proves that "
        "both models compute the same function"
        for name in dict.fromkeys(names)
    )


def _proofs(
    old: LoadedModel,
    new: LoadedModel,
    comparison: OriginalRuns | Uncompared,
) -> tuple[Proof | None, IntegerRun | None]:
    """Return the proof, and if it holds, the run of the changed nodes on integers.

    Nothing is proved if a proof is needed and the original does not run: then no fold is delivered.
    If outputs are not compared, nodes run only where the runtime lacks a kernel for another node.
    """
    options = comparison.options
    run_shapes: Shapes = {}
    nodes_run = True
    if isinstance(comparison, OriginalRuns):
        run_shapes = next(iter(comparison.inputs.sizes), {})
    elif options.needs_proof and comparison.is_unrunnable:
        return None, None
    else:
        nodes_run = bool(comparison.missing_kernel)
    progress(Step("proof by evaluation"))
    try:
        old_program, new_program = (
            Program.of(_without_wrong_outputs(model.proto, _returned(comparison)), model.folder)
            for model in (old, new)
        )
    except UnverifiedError as error:
        return Proof(verdict="skipped", reason=str(error)), None
    proof = proof_report(old_program, new_program, options.input_shapes, run_shapes)
    if proof.verdict != "equal" or not nodes_run:
        return proof, None
    progress(Step("linear nodes that changed, on integers"))
    extents = {name: tuple(dims) for name, dims in proof.extents[0].items()}
    return proof, run_on_integers(old_program, new_program, extents, options)


def _timed(
    original: LoadedModel,
    rewritten: LoadedModel,
    options: VerifyOptions,
    sizes: Sizes,
    load: float,
) -> tuple[Timing | None, Findings]:
    """Return the times, and the findings on the required gain."""
    try:
        timing = time_models(original, rewritten, options, sizes, load=load)
    except UnverifiedError as error:
        return None, Findings(doubts=(f"not timed: {error}",))
    alarms = fallback_lines(timing.sides, timing.provider, heavy=True)
    findings = Findings(remarks=tuple(alarms))
    if options.fail_under is None:
        return timing, findings
    verdict, reason = gate(slowest(timing), options.fail_under)
    requirement = {"fail_under": options.fail_under, "fail_under_verdict": verdict}
    if verdict != "pass":
        lines = (reason,)
        findings += Findings(failures=lines) if verdict == "fail" else Findings(doubts=lines)
    return msgspec.structs.replace(timing, **requirement), findings
