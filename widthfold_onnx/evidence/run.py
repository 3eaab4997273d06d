"""Run all that `verify` does in a child process: interface, values, proof, time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec

from widthfold_onnx.errors import NoKernelError, UnverifiedError
from widthfold_onnx.evidence.exact_kernels import holds_bytes
from widthfold_onnx.evidence.integers import run_on_integers
from widthfold_onnx.evidence.interface import interface_differences
from widthfold_onnx.evidence.parity.models import ModelParity, judged
from widthfold_onnx.evidence.parity.reference import Reference, reference_of
from widthfold_onnx.evidence.proof.compare import proved
from widthfold_onnx.evidence.proof.program import program
from widthfold_onnx.evidence.timing.profile import alarms
from widthfold_onnx.evidence.timing.requirement import gate, slowest
from widthfold_onnx.evidence.timing.speed import time_models
from widthfold_onnx.model.graph.document import Document
from widthfold_onnx.model.loader import LoadedModel, load
from widthfold_onnx.model.proto.walk import frozen
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.options.progress import Progress, Step, silent
from widthfold_onnx.results import IntegerRun, Proof, Timing, Verdict, VerifyReport
from widthfold_onnx.rewrite.record import recorded_folds, recorded_runtime
from widthfold_onnx.runtime.environment import Before, environment, other_runtime
from widthfold_onnx.runtime.inputs.cases import reported
from widthfold_onnx.runtime.inputs.sizes import assumed_sizes
from widthfold_onnx.runtime.kernels import u8s8_error
from widthfold_onnx.runtime.sessions.session import ports_of, resolved
from widthfold_onnx.text import printable


def verified(
    original: Path, rewritten: Path, options: VerifyOptions, *, on_progress: Progress
) -> VerifyReport:
    """Compare two model files in this process; `files.verify_files` starts one for it.

    Raises:
        UsageError: an input, a shape or an option of the provider that does not fit.
        UnverifiedError: there is no runtime.
    """
    state = Before()
    reference, parity = run_original(original, rewritten, options, on_progress=on_progress)
    if parity.provider is not None:
        options = dataclasses.replace(options, provider=parity.provider)
    old, new = load(original), load(rewritten)
    if options.freeze_weights:
        inputs = [value.name for value in new.proto.graph.input]
        old = dataclasses.replace(old, proto=frozen(old.proto, retained=inputs))
    folds = recorded_folds(Document(new.proto, new.folder, OPERATORS))
    proof, integers = _proofs(old, new, options, parity, on_progress)
    is_equal = proof is not None and proof.verdict == "equal"
    if reference is not None:
        parity = judged(reference, rewritten, is_proved=is_equal)
    failures, doubts, remarks = _findings(parity, proof, integers, options)
    timing: Timing | None = None
    if options.timing and parity.verdict == "pass":
        timing, outcome, reason = _timed(
            original, rewritten, options, parity, state.load, on_progress
        )
        if outcome != "pass":
            (failures if outcome == "fail" else doubts).append(reason)
    if timing is not None:
        remarks += alarms(timing.sides, timing.provider)
    parity = dataclasses.replace(parity, failures=failures, doubts=doubts, remarks=remarks)
    return VerifyReport(
        original=original.name,
        rewritten=rewritten.name,
        outputs=list(parity.outputs),
        proof=proof,
        integers=integers,
        folds=folds,
        timing=timing,
        verdict=parity.verdict,
        reasons=list(parity.reasons),
        input_sets=parity.input_sets,
        environment=environment(
            options, state, u8s8_error() if holds_bytes(old.proto, new.proto) else None
        ),
        assumed=assumed_sizes(ports_of(old.proto), options.input_shapes, parity.sizes),
        saturates_further=parity.saturates_further,
        unrun=parity.unrun if is_equal else "",
        note=other_runtime(recorded_runtime(new.proto)),
        values=reported(options.cases),
    )


def run_original(
    original: Path, rewritten: Path, options: VerifyOptions, *, on_progress: Progress = silent
) -> tuple[Reference | None, ModelParity]:
    """Compare the interfaces, and run the original.

    Returns:
        What the original returns, and where it ran; or None, and why nothing is left to compare.

    Raises:
        UsageError: stored inputs or shapes that do not fit the model.
    """
    try:
        faults, declarations = interface_differences(
            original, rewritten, options.freeze_weights, options.input_shapes
        )
        if faults:
            return None, ModelParity(failures=faults)
        options = resolved(options)
        reference = reference_of(original, options, on_progress)
    except NoKernelError as error:
        unrun = str(error)
        return None, ModelParity(doubts=[unrun], provider=options.provider, unrun=unrun)
    except UnverifiedError as error:
        return None, ModelParity(doubts=[str(error)])
    for item in declarations:
        shapes = [run[item.name].shape for run in reference.outputs if item.name in run]
        if not item.is_exact(shapes):
            faults.append(item.line)
    if faults:
        return None, ModelParity(failures=faults)
    reference.inputs.remarks[:0] = [item.line for item in declarations]
    return reference, ModelParity(provider=options.provider, sizes=reference.inputs.sizes)


def _findings(
    parity: ModelParity, proof: Proof | None, integers: IntegerRun | None, options: VerifyOptions
) -> tuple[list[str], list[str], list[str]]:
    """Return failures, doubts and remarks of the parity, the proof and the integers."""
    failures, doubts, remarks = list(parity.failures), list(parity.doubts), list(parity.remarks)
    if integers is not None and integers.verdict == "different":
        failures.insert(0, f"on integers the runtime does not compute {integers.reason}")
    if proof is not None and proof.verdict == "equal":
        return failures, doubts, remarks
    if proof is not None:
        is_wrong = proof.verdict == "different" or (
            options.needs_proof and proof.verdict == "not provable"
        )
        statement = f"proof: {proof.verdict}: {proof.reason}"
        if is_wrong:
            failures.insert(0, statement)
        else:  # if no proof is needed, an open one only limits the comparison of outputs
            (doubts if options.needs_proof else remarks).append(statement)
    if parity.verdict == "pass" and (proof is None or proof.verdict == "skipped"):
        doubts += _unexplained(parity)
    return failures, doubts, remarks


def _unexplained(parity: ModelParity) -> list[str]:
    """Name outputs, one line each, that passed beyond the tolerance because rounding moves them.

    Rounding explains a difference only if something shows that both compute the same function.
    """
    names = [row.name for row in parity.outputs if row.caveat == "ill-conditioned"]
    return [
        f"output {printable(name)} differs by more than the tolerance, and nothing proves that "
        "both models compute the same function"
        for name in dict.fromkeys(names)
    ]


def _proofs(
    old: LoadedModel,
    new: LoadedModel,
    options: VerifyOptions,
    parity: ModelParity,
    on_progress: Progress,
) -> tuple[Proof | None, IntegerRun | None]:
    """Return the proof, and if it holds, the run of the changed nodes on integers.

    Nothing is proved if a proof is needed and the original does not run: then no fold is delivered.
    """
    is_open = parity.verdict == "unverified" and not parity.unrun
    if not options.exact or (options.needs_proof and is_open):
        return None, None
    on_progress(Step("proof by evaluation"))
    try:
        old_program, new_program = (program(model.proto, model.folder) for model in (old, new))
    except UnverifiedError as error:
        return Proof(verdict="skipped", reason=str(error)), None
    shapes = parity.sizes[0] if parity.sizes else {}
    proof = proved(old_program, new_program, options.input_shapes, shapes)
    if proof.verdict != "equal" or parity.provider is None:
        return proof, None
    on_progress(Step("linear nodes that changed, on integers"))
    extents = {name: tuple(dims) for name, dims in proof.extents[0].items()}
    return proof, run_on_integers(old_program, new_program, extents, options)


def _timed(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    parity: ModelParity,
    load: float,
    on_progress: Progress,
) -> tuple[Timing | None, Verdict, str]:
    """Return the times, the verdict on the requirement, and the reason."""
    try:
        timing = time_models(
            original, rewritten, options, parity.sizes, load=load, on_progress=on_progress
        )
    except UnverifiedError as error:
        return None, "unverified", f"not timed: {error}"
    if options.fail_under is None:
        return timing, "pass", ""
    outcome, reason = gate(slowest(timing), options.fail_under)
    requirement = {"fail_under": options.fail_under, "fail_under_verdict": outcome}
    return msgspec.structs.replace(timing, **requirement), outcome, reason
