"""The ways of `optimize` and `apply`: read, choose forms or match a plan, rewrite, deliver.

`evidence.verify`, `decide.inspection` and `tuning.tune` are the ways of the other commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from widthfold_onnx.decide.fixed import decide_fixed, decide_layout
from widthfold_onnx.decide.hints import size_finder_of
from widthfold_onnx.decide.match import match, read_for
from widthfold_onnx.decide.outcomes import Decided, applied, optimize_report
from widthfold_onnx.evidence.delivery import Delivery, IntoFile, Target
from widthfold_onnx.evidence.saturation import run_as_judged, usable_forms
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import LoadedModel, Model
from widthfold_onnx.options import FoldOptions, SearchOptions, VerifyOptions
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import OptimizeReport, Proof
from widthfold_onnx.rewrite.plan import Plan
from widthfold_onnx.rewrite.rewriting import Rewriting, rewrite
from widthfold_onnx.runtime.environment import other_runtime
from widthfold_onnx.runtime.inputs.cases import for_model, values_for_report
from widthfold_onnx.runtime.inputs.stored import with_stored_sizes
from widthfold_onnx.tuning.search import search
from widthfold_onnx.tuning.store import Store

GUARD_NOT_PROVED = Refusal(
    Code.GUARD_NOT_PROVED,
    "no sizes were tried at which the model is known to run and to choose the fold (--input-shape)",
)


@dataclass(frozen=True)
class Result:
    """The result of `optimize`.

    Attributes:
        model: the new model in the form of the given one; for a path, `out`, or a ModelProto
            without `out`. None if verification did not pass, or nothing was changed under
            `require_fold`.
        plan: the plan that was carried out.
        report: the outcome of every layer, and the verification.
    """

    model: Any
    plan: Plan
    report: OptimizeReport

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def optimize(
    model: Model,
    options: FoldOptions,
    search_options: SearchOptions,
    target: Target | None = None,
    *,
    require_fold: bool = False,
) -> Result:
    """Fold the layers where it pays, or at a fixed factor every layer that the rules allow.

    Args:
        model: the model. One that was loaded from a file may be run, another one is not.
        options: which layers, how far, in which form.
        search_options: how candidates are measured; at a fixed factor its provider with options,
            its stored inputs and its values count.
        target: where the result goes; None plans only.
        require_fold: deliver nothing if nothing is changed.

    Returns:
        The delivered model, the plan, and the outcome of every layer.

    Raises:
        UsageError: an option or path that does not fit.
        InvalidModelError: the model is broken or not supported.
        CheckFailedError: a model in memory is not equal to its original.
        UnverifiedError: nothing can be measured, for want of a runtime or of usable inputs; or a
            model in memory cannot be shown to be equal.
    """
    search_options = for_model(search_options, model.proto)
    is_run = isinstance(model, LoadedModel)
    values = values_for_report(search_options.cases) if is_run else []
    verify_options = target.verify_options if isinstance(target, IntoFile) else None
    decided = decide(model, options, search_options, verify_options)

    def send(decided: Decided, rewriting: Rewriting) -> Delivery:
        report = optimize_report(model, decided, rewriting, values=values)
        if target is None or (require_fold and not decided.draft.is_changing):
            return Delivery(report)
        return target.send(decided, rewriting, report)

    return deliver(model, decided, send)


def apply(
    model: Model, plan: Plan, target: Target | None = None, *, allow_misfits: bool = False
) -> Result:
    """Carry out a plan on a model; measure nothing.

    Args:
        model: the model.
        plan: the plan.
        target: where the result goes; None reports what would be done.
        allow_misfits: leave out what does not fit the model; else nothing is delivered then.

    Returns:
        The delivered model, the parts of the plan that fit, and the outcome of every layer.

    Raises:
        UsageError: an option or path that does not fit.
        InvalidModelError: the model is broken or not supported.
        CheckFailedError: the model contains folds, or a size of the plan does not fit an input; or
            a model in memory is not equal to its original.
        UnverifiedError: a model in memory cannot be shown to be equal.
    """
    progress(Step("applying the plan"))
    reading = read_for(model, plan)
    draft, misfits = match(reading, plan)
    decided = applied(reading, draft, misfits, plan)
    rewriting = rewrite(reading, draft.forms, decided.runtime)
    report = optimize_report(model, decided, rewriting, note=other_runtime(decided.runtime))
    if target is None or (misfits and not allow_misfits):
        return Result(None, decided.plan, report)
    return _result(decided, target.send(decided, rewriting, report))


def decide(
    model: Model,
    options: FoldOptions,
    search_options: SearchOptions,
    verify_options: VerifyOptions | None,
) -> Decided:
    """Decide the form of every layer, by measurement or at a fixed factor.

    If the result will be verified, forms that saturate further than the model are left out before
    anything is measured.
    """
    options = with_stored_sizes(options, search_options.inputs, model.proto)
    if not isinstance(model, LoadedModel):
        return decide_fixed(model, decide_layout(options, search_options))
    exclusions: Mapping[NodeName, Refusal] = {}
    if verify_options is not None and options.is_measured:
        options, exclusions = _without_saturating_forms(model, options, verify_options)
    progress(Step("planning"))
    if not options.is_measured:
        size_finder = size_finder_of(model.path, search_options.cases)
        return decide_fixed(model, decide_layout(options, search_options), size_finder)
    with Store(search_options.store) as store:
        decided = search(model, options, search_options, store)
    return decided._replace(outcomes=decided.outcomes.with_refusals(exclusions))


def _without_saturating_forms(
    model: LoadedModel, options: FoldOptions, verify_options: VerifyOptions
) -> tuple[FoldOptions, Mapping[NodeName, Refusal]]:
    """Check that a model can be judged, and leave out forms that saturate further than it does.

    Returns:
        The options without these forms; the layers that are left with none, with the reason.

    Raises:
        UnverifiedError: the model does not run, or not twice alike.
        UsageError: stored inputs or shapes that do not fit it.
    """
    progress(Step("running the model as its values are judged"))
    run_options = for_model(replace(verify_options, input_shapes=options.input_shapes), model.proto)
    if not run_as_judged(model, run_options):
        return options, {}
    progress(Step("trying which folds saturate no further than the model"))
    return usable_forms(model, options, run_options)


def deliver(
    model: Model, decided: Decided, send: Callable[[Decided, Rewriting], Delivery]
) -> Result:
    """Rewrite a model and send it, without the folds that its proof does not show.

    Args:
        model: the model.
        decided: what was decided for it.
        send: carries a rewriting out, and delivers the new model if it passes its checks.

    Raises:
        CheckFailedError: a model in memory is not equal to its original.
        UnverifiedError: a model in memory cannot be shown to be equal.
    """
    while True:
        rewriting = rewrite(decided.reading, decided.draft.forms, decided.runtime)
        delivery = send(decided, rewriting)
        refusals = _unproved_layers(rewriting, delivery.proof)
        if not refusals:
            return _result(decided, delivery)
        progress(Step(f"leaving out {len(refusals)} folds that cannot be proved"))
        decided = decided.without(refusals, model)


def _unproved_layers(rewriting: Rewriting, proof: Proof | None) -> Mapping[NodeName, Refusal]:
    """Return the layers that make a result not provable, with the reasons.

    First these are layers with a branch that the proof computed at no extents, of their guard or of
    an If around them. Only if there are none, they are those from which an unproved value is
    computed. A result that is different is a fault, which no smaller plan may hide.
    """
    if proof is None or proof.verdict != "not provable":
        return {}
    guarded = rewriting.guarded_layers()
    unseen = {
        name: GUARD_NOT_PROVED
        for name in rewriting.layer_names
        for output in proof.unseen
        if name in guarded.get(output, ()) or name.lies_in_branch_of(output)
    }
    return unseen or {
        name: Refusal(Code.FOLD_NOT_PROVED, f"the proof does not show it equal: {item.reason}")
        for item in proof.unproved
        for name in rewriting.layers_of(item.values)
    }


def _result(decided: Decided, delivery: Delivery) -> Result:
    """Return the result of the last delivery, or raise why a model in memory is not given back."""
    if delivery.error is not None:
        raise delivery.error
    return Result(delivery.model, decided.plan, delivery.report)
