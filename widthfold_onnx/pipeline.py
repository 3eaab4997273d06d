"""Run the steps of the commands on files; `tuning.tune` has the steps of `tune`.

A command checks its files before it imports the rest of the package: a file that is no model is
refused in a tenth of the time that the imports take.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from widthfold_onnx.errors import UsageError
from widthfold_onnx.evidence.verification import verify_files
from widthfold_onnx.model.atomic import check_target
from widthfold_onnx.model.loader import LoadedModel, load
from widthfold_onnx.options import (
    ANY_SIZE,
    PROVING,
    FoldOptions,
    Progress,
    RuntimeOptions,
    SearchOptions,
    Step,
    VerifyOptions,
    silent,
)
from widthfold_onnx.results import InspectReport, OptimizeReport, VerifyReport

if TYPE_CHECKING:
    from widthfold_onnx.decide.report import DecidedPlan
    from widthfold_onnx.model.messages import NodeName
    from widthfold_onnx.refusal import Refusal
    from widthfold_onnx.rewrite.fit import FittedPlan
    from widthfold_onnx.rewrite.plan import Plan

SizedOptions = TypeVar("SizedOptions", FoldOptions, VerifyOptions)

BY_DEFAULT = SearchOptions()
PROVE_ONLY = VerifyOptions(**PROVING)


class CommandResult(NamedTuple):
    """The report of a command, and the plan that was carried out."""

    report: OptimizeReport
    plan: Plan


def optimize(
    model: Path | str,
    out: Path | str | None,
    options: FoldOptions,
    verify_options: VerifyOptions | None = PROVE_ONLY,
    search_options: SearchOptions = BY_DEFAULT,
    *,
    require_fold: bool = False,
    on_progress: Progress = silent,
) -> CommandResult:
    """Fold the layers where it pays, or at a fixed factor every layer that the rules allow.

    Args:
        model: the model file; it is never changed.
        out: where the result goes, replaced in one step and only after it passed verification;
            None plans only. If nothing is folded it becomes a copy, byte for byte.
        options: which layers, how far, in which form.
        verify_options: how the result is verified; by default proved and compared, but not timed.
            None writes it unverified. At a fixed factor the proof is enough where the runtime lacks
            a kernel.
        search_options: how candidates are measured; at a fixed factor its provider with options,
            its stored inputs and its values count.
        require_fold: write nothing if nothing is changed.
        on_progress: called with every step.

    Returns:
        The outcome of every layer, and the plan; `report.written` is None if verification failed.

    Raises:
        UsageError: an option or path that does not fit.
        InvalidModelError: the model is broken or not supported.
        UnverifiedError: nothing can be measured, for want of a runtime or of usable inputs.
    """
    on_progress(Step("reading the model"))
    model, out = Path(model), None if out is None else Path(out)
    loaded = load(model)
    options = with_stored_sizes(options, search_options.inputs, loaded)
    protected = _protected_files(loaded)
    exclusions: Mapping[NodeName, Refusal] = {}
    if out is not None:  # before minutes of measuring
        check_target(out, protected)
        if verify_options is not None and options.fixed_factor is None:
            options, exclusions = _usable_forms(loaded, options, verify_options, on_progress)
    decided_plan = _decide_plan(loaded, options, search_options, on_progress)
    decided_plan = decided_plan.with_refusals(exclusions)
    from widthfold_onnx.decide.report import optimize_report
    from widthfold_onnx.runtime.inputs.cases import cases, reported

    size, values = model.stat().st_size, reported(cases(loaded.proto, search_options.values))
    deliver = functools.partial(
        _deliver,
        loaded,
        verify_options=verify_options,
        may_be_unrun=options.fixed_factor is not None,
        protected=protected,
        on_progress=on_progress,
    )
    while True:
        fitted_plan = decided_plan.fit()
        report = optimize_report(model.name, size, fitted_plan, decided_plan.outcomes)
        report = msgspec.structs.replace(report, values=values)
        if out is None or (require_fold and not decided_plan.plan.changes):
            return CommandResult(report, decided_plan.plan)
        report = deliver(fitted_plan, report, out)
        layers = _unproved_layers(fitted_plan, report)
        if not layers:
            return CommandResult(report, decided_plan.plan)
        on_progress(Step(f"leaving out {len(layers)} folds whose guards cannot be proved"))
        decided_plan = decided_plan.without_unproved(layers, loaded.proto, loaded.folder)


def decide(
    model: Path | str,
    options: FoldOptions,
    search_options: SearchOptions = BY_DEFAULT,
    *,
    on_progress: Progress = silent,
) -> Plan:
    """Return the plan of `optimize`, and change nothing; see there.

    Raises:
        UsageError: an option or path that does not fit.
        InvalidModelError: the model is broken or not supported.
        UnverifiedError: nothing can be measured, for want of a runtime or of usable inputs.
    """
    loaded = load(Path(model))
    options = with_stored_sizes(options, search_options.inputs, loaded)
    return _decide_plan(loaded, options, search_options, on_progress).plan


def apply(
    model: Path | str,
    plan: Path | str | Plan,
    out: Path | str | None,
    verify_options: VerifyOptions | None = PROVE_ONLY,
    *,
    partial: bool = False,
    on_progress: Progress = silent,
) -> CommandResult:
    """Carry out a plan on a model; measure nothing.

    Args:
        model: the model file; it is never changed.
        plan: the plan, or its file.
        out: where the result goes, as for `optimize`; None reports what would be done.
        verify_options: how the result is verified; None writes it unverified.
        partial: leave out what does not fit the model.
        on_progress: called with every step.

    Returns:
        The outcome of every layer, and the parts of the plan that fit. `report.written` is None
        if other parts are left without `partial`, or verification did not pass.

    Raises:
        UsageError: an option or path that does not fit, or a file that is no plan.
        InvalidModelError: the model is broken or not supported.
        CheckFailedError: the model contains folds, or a size of the plan does not fit an input.
    """
    from widthfold_onnx.decide.report import applied_outcomes, optimize_report
    from widthfold_onnx.rewrite.fit import fit
    from widthfold_onnx.rewrite.plan import Plan, read_plan
    from widthfold_onnx.rewrite.reading import Reading
    from widthfold_onnx.runtime.environment import other_runtime

    model, out = Path(model), None if out is None else Path(out)
    sources = [] if isinstance(plan, Plan) else [Path(plan)]
    plan = plan if isinstance(plan, Plan) else read_plan(plan)
    on_progress(Step("reading the model"))
    loaded = load(model)
    protected = [*sources, *_protected_files(loaded)]
    if out is not None:
        check_target(out, protected)
    on_progress(Step("applying the plan"))
    fitted_plan = fit(Reading.of(loaded.proto, loaded.folder, plan), plan)
    size = model.stat().st_size
    outcomes = applied_outcomes(fitted_plan, plan)
    report = optimize_report(model.name, size, fitted_plan, outcomes)
    report = msgspec.structs.replace(report, note=other_runtime(plan.runtime))
    if out is None or (fitted_plan.misfits and not partial):
        return CommandResult(report, fitted_plan.plan)
    report = _deliver(
        loaded,
        fitted_plan,
        report,
        out,
        verify_options,
        may_be_unrun=True,
        protected=protected,
        on_progress=on_progress,
    )
    return CommandResult(report, fitted_plan.plan)


def verify(
    original: Path | str,
    rewritten: Path | str,
    options: VerifyOptions,
    *,
    on_progress: Progress = silent,
) -> VerifyReport:
    """Compare two models on the runtime: interface, outputs, proof, time.

    Args:
        original: the model before.
        rewritten: the model after.
        options: inputs, tolerances, provider and the checks to run.
        on_progress: called with every step.

    Returns:
        The report; its verdict is pass, fail or unverified.

    Raises:
        UsageError: a path, an input, a shape or an option of the provider that does not fit.
        InvalidModelError: a file that is no model.
    """
    loaded = load(Path(original))
    options = with_stored_sizes(options, options.inputs, loaded)
    return verify_files(loaded, Path(rewritten), options, on_progress)


def inspect(
    model: Path | str, options: FoldOptions, runtime_options: RuntimeOptions | None = None
) -> InspectReport:
    """List every site with its shapes, cost, legal forms and refusals.

    Args:
        model: the model file.
        options: as for `optimize`.
        runtime_options: values of its inputs.

    Raises:
        UsageError: an option or path that does not fit.
        InvalidModelError: the model is broken or not supported.
    """
    if options.fixed_factor is None:
        raise UsageError(
            "inspect measures nothing and shows the forms of one factor: give a number; what auto "
            "takes is shown by `optimize MODEL`"
        )
    loaded = load(Path(model))
    from widthfold_onnx.decide.survey import survey
    from widthfold_onnx.runtime.inputs.cases import cases

    values = cases(loaded.proto, (runtime_options or RuntimeOptions()).values)
    return survey(loaded, options, options.fixed_factor, values)


def _unproved_layers(fitted_plan: FittedPlan, report: OptimizeReport) -> set[NodeName]:
    """Return the layers in a branch that the proof reached at no extents; empty if OUT was written.

    The branch is of the layers' guard, or of an If around them.
    """
    checks = report.verification
    if report.written is not None or checks is None or checks.proof is None:
        return set()
    guarded, unseen = fitted_plan.rewriting.guarded(), checks.proof.unseen
    bodies = [f"/{name}/{place}/" for name in unseen for place in ("then_branch", "else_branch")]
    names = [layer.name for layer in fitted_plan.plan.layers]
    return {name for value in unseen for name in guarded.get(value, ())} | {
        name for name in names if any(body in f"/{name.graph}/" for body in bodies)
    }


def with_stored_sizes(
    options: SizedOptions, inputs: Sequence[str], loaded: LoadedModel
) -> SizedOptions:
    """Return options with the sizes of stored inputs, where the caller names no others.

    Raises:
        UsageError: stored inputs that do not fit the model.
    """
    if not inputs or options.input_shapes != ANY_SIZE:
        return options
    from widthfold_onnx.runtime.inputs.recorded import stored_sizes
    from widthfold_onnx.runtime.session import ports_of

    return replace(options, input_shapes=stored_sizes(inputs, ports_of(loaded.proto)))


def _decide_plan(
    loaded: LoadedModel,
    options: FoldOptions,
    search_options: SearchOptions,
    on_progress: Progress,
) -> DecidedPlan:
    """Decide the plan of a model, by measurement or at a fixed factor."""
    from widthfold_onnx.decide.fixed import decide_fixed, decide_layout
    from widthfold_onnx.decide.hints import runnable_sizes
    from widthfold_onnx.runtime.inputs.cases import with_cases
    from widthfold_onnx.tuning.search.search import search
    from widthfold_onnx.tuning.store import Store

    options = decide_layout(options, search_options)
    on_progress(Step("planning"))
    search_options = with_cases(search_options, loaded.proto)
    if options.fixed_factor is None:
        with Store(search_options.store) as store:
            return search(loaded, options, search_options, store, on_progress)
    runs = functools.partial(runnable_sizes, loaded.path, search_options.cases)
    return decide_fixed(loaded.proto, loaded.folder, options, runs)


def _usable_forms(
    loaded: LoadedModel,
    options: FoldOptions,
    verify_options: VerifyOptions,
    on_progress: Progress,
) -> tuple[FoldOptions, Mapping[NodeName, Refusal]]:
    """Check that a model can be judged, and leave out forms that saturate further than it does.

    Returns:
        The options of the other forms, and why layers have none.

    Raises:
        UnverifiedError: the model does not run, or not twice alike.
        UsageError: stored inputs or shapes that do not fit it.
    """
    from widthfold_onnx.evidence.saturation import may_saturate, usable_forms
    from widthfold_onnx.runtime.inputs.cases import with_cases

    on_progress(Step("running the model as its values are judged"))
    run_options = with_cases(
        replace(verify_options, input_shapes=options.input_shapes), loaded.proto
    )
    if not may_saturate(loaded.path, run_options):
        return options, {}
    on_progress(Step("trying which folds saturate no further than the model"))
    return usable_forms(loaded, options, run_options)


def _protected_files(loaded: LoadedModel) -> list[Path]:
    """Return the files of a model, which must stay as they are."""
    from widthfold_onnx.model.proto.tensors import data_files

    return [loaded.path, *data_files(loaded.proto, loaded.folder)]


def _deliver(
    loaded: LoadedModel,
    fitted_plan: FittedPlan,
    report: OptimizeReport,
    out: Path,
    verify_options: VerifyOptions | None,
    *,
    may_be_unrun: bool,
    protected: Sequence[Path],
    on_progress: Progress,
) -> OptimizeReport:
    """Carry out a plan, replace `out` if the result passes, and return the full report.

    Args:
        loaded: the original model.
        fitted_plan: the plan at this model; carrying it out consumes it.
        report: the report, so far without file and verification.
        out: where the result goes; a copy of the model where nothing is changed.
        verify_options: how the result is verified; None writes it unverified.
        may_be_unrun: whether a model that cannot be run is written.
        protected: files of the model, which must not be overwritten.
        on_progress: called with every step.

    Raises:
        UsageError: a path or an option that does not fit.
        InvalidModelError: the result is no model that could be read again.
        UnverifiedError: no statement is possible without a runtime.
    """
    from widthfold_onnx.model.writer import copy_model, write_model

    plan, rewriting = fitted_plan.plan, fitted_plan.rewriting
    if not plan.changes:
        copy_model(loaded.path, out, proto=loaded.proto)
        return msgspec.structs.replace(report, written=out.name)
    verification: VerifyReport | None = None

    def accepts(file: Path) -> bool:
        nonlocal verification
        if verify_options is None:
            load(file)  # verification does that itself
            return True
        verification = _verify_as(out.name, loaded, file, plan, verify_options, on_progress)
        return verification.verdict == "pass" or (may_be_unrun and bool(verification.unrun))

    proto = rewriting.carry_out()
    on_progress(Step("writing"))
    is_written = write_model(
        proto,
        out,
        source_folder=loaded.folder,
        accepts=accepts,
        protected=protected,
        externalize=rewriting.document.external_names,
    )
    report = msgspec.structs.replace(report, verification=verification)
    if not is_written:
        return report
    summary = msgspec.structs.replace(report.summary, bytes_after=out.stat().st_size)
    return msgspec.structs.replace(report, summary=summary, written=out.name)


def _verify_as(
    final: str,
    original: LoadedModel,
    file: Path,
    plan: Plan,
    options: VerifyOptions,
    on_progress: Progress,
) -> VerifyReport:
    """Verify a temporary file that a plan made, and return the report under its final name."""
    options = replace(
        options, input_shapes=plan.sizes, needs_proof=True, freeze_weights=bool(plan.frozen)
    )

    def on_step(step: Step) -> None:
        on_progress(replace(step, text=step.text.replace(file.name, final)))

    report = verify_files(original, file, options, on_step)
    reasons = [reason.replace(file.name, final) for reason in report.reasons]
    return msgspec.structs.replace(report, rewritten=final, reasons=reasons)
