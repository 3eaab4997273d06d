"""Run the steps of `optimize` and `apply`: decide or read a plan, carry it out, verify, write.

`evidence.verify`, `decide.inspection` and `tuning.tune` have the steps of the other commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import onnx

from widthfold_onnx.decide.decided_plan import DecidedPlan
from widthfold_onnx.decide.fixed import decide_fixed, decide_layout
from widthfold_onnx.decide.hints import size_finder_of
from widthfold_onnx.decide.match import FittedPlan, fit, misfit_text
from widthfold_onnx.decide.outcomes import applied_outcomes, optimize_report, unread_remark
from widthfold_onnx.errors import CheckFailedError, UnverifiedError
from widthfold_onnx.evidence import verify
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import proof_report
from widthfold_onnx.evidence.saturation import run_as_judged, usable_forms
from widthfold_onnx.model.atomic import check_target
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import LoadedModel, Model, load
from widthfold_onnx.model.proto.walk import OVERRIDABLE_SINCE, frozen, unread_weights
from widthfold_onnx.model.writer import copy_model
from widthfold_onnx.options import (
    FoldOptions,
    RuntimeOptions,
    SearchOptions,
    VerifyOptions,
)
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import OptimizeReport, Proof, VerifyReport
from widthfold_onnx.rewrite.plan import Plan, read_plan
from widthfold_onnx.runtime.environment import other_runtime
from widthfold_onnx.runtime.inputs.cases import cases, for_model, values_for_report
from widthfold_onnx.runtime.inputs.stored import with_stored_sizes
from widthfold_onnx.tuning.search import search
from widthfold_onnx.tuning.store import Store

Result = TypeVar("Result")

GUARD_NOT_PROVED = Refusal(
    Code.GUARD_NOT_PROVED,
    "no sizes were tried at which the model is known to run and to choose the fold (--input-shape)",
)


class CommandResult(NamedTuple):
    """The report of a command, and the plan that was carried out."""

    report: OptimizeReport
    plan: Plan


def optimize(
    loaded: LoadedModel,
    out: Path | None,
    options: FoldOptions,
    verify_options: VerifyOptions | None,
    search_options: SearchOptions,
    *,
    require_fold: bool = False,
) -> CommandResult:
    """Fold the layers where it pays, or at a fixed factor every layer that the rules allow.

    Args:
        loaded: the model; its file is never changed.
        out: where the result goes, replaced in one step and only after it passed verification;
            None plans only. If nothing is folded it becomes a copy, byte for byte.
        options: which layers, how far, in which form.
        verify_options: how the result is verified; None writes it unverified. At a fixed factor the
            proof is enough where the runtime lacks a kernel.
        search_options: how candidates are measured; at a fixed factor its provider with options,
            its stored inputs and its values count.
        require_fold: write nothing if nothing is changed.

    Returns:
        The outcome of every layer, and the plan. `report.written` is None without `out`, if
        verification failed, or under `require_fold` if nothing was changed.

    Raises:
        UsageError: an option or path that does not fit.
        InvalidModelError: the model is broken or not supported.
        UnverifiedError: nothing can be measured, for want of a runtime or of usable inputs.
    """
    name, size = loaded.path.name, loaded.path.stat().st_size
    values = values_for_report(cases(loaded.proto, search_options.values))
    if out is None:
        verify_options = None
    else:
        check_target(out, loaded.files)  # before minutes of measuring
    decided_plan = _decide_plan(loaded, options, verify_options, search_options)

    def attempt(
        decided_plan: DecidedPlan, fitted_plan: FittedPlan
    ) -> tuple[CommandResult, Proof | None]:
        plan = decided_plan.plan
        report = optimize_report(name, size, fitted_plan, decided_plan.outcomes, values=values)
        if out is None or (require_fold and not plan.is_changing):
            return CommandResult(report, plan), None
        report = _deliver(
            loaded,
            fitted_plan,
            report,
            out,
            verify_options,
            may_be_unrun=not options.is_measured,
        )
        proof = None if report.verification is None else report.verification.proof
        return CommandResult(report, plan), proof

    return _until_proved(decided_plan, loaded, attempt)


def optimize_in_memory(
    model: Model,
    name: str,
    options: FoldOptions,
    runtime_options: RuntimeOptions,
    *,
    no_verify: bool = False,
) -> tuple[onnx.ModelProto, CommandResult]:
    """Fold every layer of a model that the rules allow, and prove the result.

    The model is not run; a PRelu may be tried on the runtime (`rewrite.exchange`).

    Args:
        model: the model.
        name: its name in the report.
        options: which layers, by which factor, in which form.
        runtime_options: where the model will run, which decides the layout.
        no_verify: do not prove the result.

    Returns:
        The new model, or the given one if nothing is changed; the outcome of every layer, and the
        plan.

    Raises:
        UsageError: no factor is given, or an option does not fit.
        InvalidModelError: the graph library cannot read the model.
        CheckFailedError: the result is not equal.
        UnverifiedError: the result cannot be shown to be equal.
    """
    decided_plan = decide_fixed(model, decide_layout(options, runtime_options))
    size = model.proto.ByteSize()

    def attempt(
        decided_plan: DecidedPlan, fitted_plan: FittedPlan
    ) -> tuple[tuple[onnx.ModelProto, CommandResult, Proof | None], Proof | None]:
        report = optimize_report(name, size, fitted_plan, decided_plan.outcomes)
        new_model, proof = _carry_out_and_prove(model, fitted_plan, no_verify=no_verify)
        summary = msgspec.structs.replace(report.summary, bytes_after=new_model.ByteSize())
        report = msgspec.structs.replace(report, summary=summary)
        report = _with_unread_weights(report, model.proto, new_model)
        return (new_model, CommandResult(report, decided_plan.plan), proof), proof

    new_model, result, proof = _until_proved(decided_plan, model, attempt)
    _require_equal(proof)
    return new_model, result


def plan(
    loaded: LoadedModel,
    options: FoldOptions,
    search_options: SearchOptions,
) -> Plan:
    """Return the plan of `optimize` without `out`; write nothing.

    Raises:
        UsageError: an option or path that does not fit.
        InvalidModelError: the model is broken or not supported.
        UnverifiedError: nothing can be measured, for want of a runtime or of usable inputs.
    """
    return _decide_plan(loaded, options, None, search_options).plan


def apply(
    loaded: LoadedModel,
    plan: Path | Plan,
    out: Path | None,
    verify_options: VerifyOptions | None,
    *,
    partial: bool = False,
) -> CommandResult:
    """Carry out a plan on a model; measure nothing.

    Args:
        loaded: the model; its file is never changed.
        plan: the plan, or its file.
        out: where the result goes, as for `optimize`; None reports what would be done.
        verify_options: how the result is verified; None writes it unverified.
        partial: leave out what does not fit the model.

    Returns:
        The outcome of every layer, and the parts of the plan that fit. `report.written` is None
        if other parts are left without `partial`, or verification did not pass.

    Raises:
        UsageError: an option or path that does not fit, or a file that is no plan.
        InvalidModelError: the model is broken or not supported.
        CheckFailedError: the model contains folds, or a size of the plan does not fit an input.
    """
    plan_files = [plan] if isinstance(plan, Path) else []
    plan = read_plan(plan) if isinstance(plan, Path) else plan
    if out is not None:
        check_target(out, [*plan_files, *loaded.files])
    progress(Step("applying the plan"))
    fitted_plan = fit(loaded, plan)
    outcomes = applied_outcomes(fitted_plan, plan)
    name, size, note = loaded.path.name, loaded.path.stat().st_size, other_runtime(plan.runtime)
    report = optimize_report(name, size, fitted_plan, outcomes, note=note)
    if out is not None and (partial or not fitted_plan.misfits):
        report = _deliver(
            loaded,
            fitted_plan,
            report,
            out,
            verify_options,
            may_be_unrun=True,
            plan_files=plan_files,
        )
    return CommandResult(report, fitted_plan.plan)


def apply_in_memory(
    model: Model,
    plan: Plan,
    *,
    partial: bool = False,
    no_verify: bool = False,
) -> onnx.ModelProto:
    """Carry out a plan on a model in memory, and prove the result.

    Nothing is measured and the model is not run; a PRelu may be tried on the runtime.

    Args:
        model: the model.
        plan: the plan.
        partial: leave out what does not fit the model.
        no_verify: do not prove the result.

    Returns:
        The new model, or the given one if nothing is changed.

    Raises:
        InvalidModelError: the graph library cannot read the model.
        CheckFailedError: a part of the plan does not fit, or the result is not equal.
        UnverifiedError: the result cannot be shown to be equal.
    """
    fitted_plan = fit(model, plan)
    if fitted_plan.misfits and not partial:
        raise CheckFailedError(misfit_text(fitted_plan.misfits))
    new_model, proof = _carry_out_and_prove(model, fitted_plan, no_verify=no_verify)
    _require_equal(proof)
    return new_model


def _until_proved(
    decided_plan: DecidedPlan,
    model: Model,
    attempt: Callable[[DecidedPlan, FittedPlan], tuple[Result, Proof | None]],
) -> Result:
    """Carry a plan out and prove it; leave out the folds that cannot be proved, until none is left.

    Args:
        decided_plan: the plan.
        model: the model for which it was decided.
        attempt: carries a plan out, and returns what it made with the proof.
    """
    while True:
        fitted_plan = decided_plan.fit()
        result, proof = attempt(decided_plan, fitted_plan)
        refusals = _unproved_layers(fitted_plan, proof)
        if not refusals:
            return result
        progress(Step(f"leaving out {len(refusals)} folds that cannot be proved"))
        decided_plan = decided_plan.without_unproved(refusals, model)


def _unproved_layers(fitted_plan: FittedPlan, proof: Proof | None) -> Mapping[NodeName, Refusal]:
    """Return the layers that make a result not provable, with the reasons.

    First these are layers with a branch that the proof computed at no extents, of their guard or of
    an If around them. Only if there are none, they are those from which an unproved value is
    computed. A result that is different is a fault, which no smaller plan may hide.
    """
    if proof is None or proof.verdict != "not provable":
        return {}
    rewriting = fitted_plan.rewriting
    guarded = rewriting.guarded_layers()
    unseen = {
        layer.name: GUARD_NOT_PROVED
        for layer in fitted_plan.plan.layers
        for output in proof.unseen
        if layer.name in guarded.get(output, ()) or layer.name.lies_in_branch_of(output)
    }
    return unseen or {
        name: Refusal(Code.FOLD_NOT_PROVED, f"the proof does not show it equal: {item.reason}")
        for item in proof.unproved
        for name in rewriting.layers_of(item.values)
    }


def _decide_plan(
    loaded: LoadedModel,
    options: FoldOptions,
    verify_options: VerifyOptions | None,
    search_options: SearchOptions,
) -> DecidedPlan:
    """Decide the plan of a model, by measurement or at a fixed factor.

    Where a result that was measured will be verified, no form saturates further than the model.
    """
    options = with_stored_sizes(options, search_options.inputs, loaded.proto)
    search_options = for_model(search_options, loaded.proto)
    exclusions: Mapping[NodeName, Refusal] = {}
    if verify_options is not None and options.is_measured:
        options, exclusions = _without_saturating_forms(loaded, options, verify_options)
    options = decide_layout(options, search_options)
    progress(Step("planning"))
    if options.is_measured:
        with Store(search_options.store) as store:
            decided_plan = search(loaded, options, search_options, store)
        return decided_plan.with_refusals(exclusions)
    return decide_fixed(loaded, options, size_finder_of(loaded.path, search_options.cases))


def _without_saturating_forms(
    loaded: LoadedModel,
    options: FoldOptions,
    verify_options: VerifyOptions,
) -> tuple[FoldOptions, Mapping[NodeName, Refusal]]:
    """Check that a model can be judged, and leave out forms that saturate further than it does.

    Returns:
        The options without these forms; the layers that are left with none, with the reason.

    Raises:
        UnverifiedError: the model does not run, or not twice alike.
        UsageError: stored inputs or shapes that do not fit it.
    """
    progress(Step("running the model as its values are judged"))
    run_options = for_model(
        replace(verify_options, input_shapes=options.input_shapes), loaded.proto
    )
    if not run_as_judged(loaded, run_options):
        return options, {}
    progress(Step("trying which folds saturate no further than the model"))
    return usable_forms(loaded, options, run_options)


def _carry_out_and_prove(
    model: Model, fitted_plan: FittedPlan, *, no_verify: bool
) -> tuple[onnx.ModelProto, Proof | None]:
    """Carry out a plan on a model in memory, and compare the result with it.

    Returns:
        The new model, or the given one if nothing is changed; the proof, None without one.
    """
    plan = fitted_plan.plan
    if not plan.is_changing:
        return model.proto, None
    new_model = fitted_plan.rewriting.carry_out()
    if no_verify:
        return new_model, None
    original = frozen(model.proto) if plan.frozen else model.proto
    old, new = (Program.of(proto, model.folder) for proto in (original, new_model))
    return new_model, proof_report(old, new, plan.sizes, {})


def _require_equal(proof: Proof | None) -> None:
    """Check the proof of a result, if it was proved.

    Raises:
        CheckFailedError: the result is not equal.
        UnverifiedError: the result cannot be shown to be equal.
    """
    if proof is None or proof.verdict == "equal":
        return
    message = f"proof: {proof.verdict}: {proof.reason}"
    raise CheckFailedError(message) if proof.verdict == "different" else UnverifiedError(message)


def _deliver(
    loaded: LoadedModel,
    fitted_plan: FittedPlan,
    report: OptimizeReport,
    out: Path,
    verify_options: VerifyOptions | None,
    *,
    may_be_unrun: bool,
    plan_files: Sequence[Path] = (),
) -> OptimizeReport:
    """Carry out a plan, replace `out` if the result passes, and return the full report.

    Args:
        loaded: the original model.
        fitted_plan: the plan at this model; carrying it out consumes it.
        report: the report, so far without file and verification.
        out: where the result goes; a copy of the model where nothing is changed.
        verify_options: how the result is verified; None writes it unverified.
        may_be_unrun: whether a model that cannot be run is written.
        plan_files: files of the plan, which must not be overwritten.

    Raises:
        UsageError: a path or an option that does not fit.
        InvalidModelError: the result is no model that could be read again.
        UnverifiedError: no statement is possible without a runtime.
    """
    plan = fitted_plan.plan
    if not plan.is_changing:
        copy_model(loaded.path, out, proto=loaded.proto)
        return msgspec.structs.replace(report, written=out.name)
    verification: VerifyReport | None = None

    def accepts(file: Path) -> bool:
        nonlocal verification
        rewritten = load(file, out.name)
        if verify_options is None:
            return True
        run_options = replace(
            verify_options,
            input_shapes=plan.sizes,
            needs_proof=True,
            freeze_weights=bool(plan.frozen),
        )
        verification = verify(loaded, rewritten, run_options)
        return verification.verdict == "pass" or (may_be_unrun and bool(verification.unrun))

    progress(Step("writing"))
    is_written = fitted_plan.rewriting.write(out, accepts, [*plan_files, *loaded.files])
    report = msgspec.structs.replace(report, verification=verification)
    if not is_written:
        return report
    summary = msgspec.structs.replace(report.summary, bytes_after=out.stat().st_size)
    report = msgspec.structs.replace(report, summary=summary, written=out.name)
    if loaded.proto.ir_version >= OVERRIDABLE_SINCE:
        return report  # no weight that can be folded is an input
    return _with_unread_weights(report, loaded.proto, load(out).proto)


def _with_unread_weights(
    report: OptimizeReport, old: onnx.ModelProto, new: onnx.ModelProto
) -> OptimizeReport:
    """Return a report that counts the weights which only the new model does not read."""
    count = len(unread_weights(new) - unread_weights(old))
    remarks = [*report.remarks, *([unread_remark(count)] if count else [])]
    return msgspec.structs.replace(report, remarks=remarks)
