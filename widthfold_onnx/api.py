"""The Python API: each call takes a model in any form, and gives it back in that form.

A model is the path of a file, an `onnx.ModelProto`, an `onnx_ir.Model` or an
`onnx_graphsurgeon.Graph`. Keywords are the options of the command line (`keywords`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import onnx

from widthfold_onnx import evidence, pipeline
from widthfold_onnx.decide.inspection import inspect_model
from widthfold_onnx.errors import CheckFailedError, UsageError
from widthfold_onnx.evidence.delivery import InMemory, IntoFile, Target
from widthfold_onnx.keywords import (
    CheckKeywords,
    FoldKeywords,
    InspectKeywords,
    OptimizeKeywords,
    PlanKeywords,
    TuneKeywords,
    VerifyKeywords,
    check_keywords,
    options_from,
)
from widthfold_onnx.model.interop import ModelHandle, handle_of
from widthfold_onnx.model.library import ir
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import LoadedModel, load
from widthfold_onnx.model.proto.walk import copy_of
from widthfold_onnx.model.writer import written
from widthfold_onnx.options import (
    DEFAULT_FACTOR,
    DeliveryOptions,
    FoldOptions,
    FormName,
    RuntimeOptions,
    SearchOptions,
    VerifyOptions,
)
from widthfold_onnx.pipeline import Result
from widthfold_onnx.progress import READING, Listener, progress, progress_to, silent
from widthfold_onnx.refusal import Code
from widthfold_onnx.reports import notebook
from widthfold_onnx.results import (
    InspectReport,
    OptimizeReport,
    SiteReport,
    TuneReport,
    VerifyReport,
)
from widthfold_onnx.rewrite.plan import Plan, read_plan
from widthfold_onnx.runtime.inputs.stored import with_stored_sizes
from widthfold_onnx.text import printable

notebook.show_as_html()

RUN_ONLY = ("seeds", "rtol", "atol", "inputs", "value")
"""Keywords of a comparison on the runtime. A model in memory at a fixed factor is not run, so they
are refused."""


def optimize(
    model: Any,
    out: Path | str | None = None,
    *,
    no_verify: bool = False,
    require_fold: bool = False,
    on_progress: Listener = silent,
    **keywords: Unpack[OptimizeKeywords],
) -> Result:
    """Fold the layers of a model where that was measured to be faster, and verify the result.

    Args:
        model: the model; it stays as it is.
        out: where the result goes, for a path; replaced in one step once the result has passed.
        no_verify: do not check the result.
        require_fold: give back no model if nothing is changed.
        on_progress: called with every step; at a given factor there are none without `out`.
        keywords: options of the command, e.g. `factor=8`, `skip=["*head"]`, `effort="quick"`,
            `threads=4`. By default `factor` is "auto": forms are measured. At a given factor a
            model in memory is proved equal and not run. A layer is left alone if its guard for open
            sizes cannot be proved.

    Raises:
        TypeError: a keyword that the call does not take.
        UsageError: a value or a combination that does not fit, or a model of another kind.
        InvalidModelError: the model is broken or not supported.
        CheckFailedError: a model in memory is not equal to its original: a fault of widthfold.
        UnverifiedError: nothing can be measured, or a model in memory cannot be proved.
    """
    check_keywords("optimize", keywords, OptimizeKeywords)
    options = options_from(FoldOptions, keywords)
    handle = _handle(model, out)
    search_options = options_from(SearchOptions, keywords)
    if out is None and not options.is_measured:
        _check_unused(RUN_ONLY, keywords, "compares a model that is written to `out`")
        result = pipeline.optimize(
            handle.model,
            options,
            search_options,
            InMemory(handle.model, no_verify),
            require_fold=require_fold,
        )
        return _in_form_of(handle, result)
    verify_options = None if no_verify else _delivery_options(keywords)
    with progress_to(on_progress), _place(out) as place:
        progress(READING)
        with _loaded(handle) as loaded:
            target = IntoFile(loaded, place, verify_options, search_options.files)
            result = pipeline.optimize(
                loaded, options, search_options, target, require_fold=require_fold
            )
            return _in_form_of(handle, result, out)


def fold(
    model: Any,
    out: Path | str | None = None,
    *,
    no_verify: bool = False,
    **keywords: Unpack[FoldKeywords],
) -> Any:
    """Fold every layer of a model that can be folded, and prove the result.

    A layer is left alone if its guard for open sizes cannot be proved.

    Args:
        model: the model; it stays as it is.
        out: where the result goes, for a path; then it is compared on the runtime, too.
        no_verify: do not prove the result.
        keywords: the options of `optimize` that decide forms; `factor` is 8 by default.

    Returns:
        The new model in the form of `model`; for a path, `out`, or a ModelProto without `out`.

    Raises:
        TypeError: a keyword that the call does not take.
        UsageError: a value or a combination that does not fit, or a model of another kind.
        InvalidModelError: the model is broken or not supported.
        CheckFailedError: the result is not equal to its original: a fault of widthfold.
        UnverifiedError: the result cannot be shown to be equal.
    """
    check_keywords("fold", keywords, FoldKeywords)
    keywords = {**_default_factor(keywords), **keywords}
    result = optimize(model, out, no_verify=no_verify, **keywords)
    if result.model is None:
        check_delivered(result.report)
    return result.model


def plan(model: Any, *, on_progress: Listener = silent, **keywords: Unpack[PlanKeywords]) -> Plan:
    """Decide what `optimize` would do to a model, and change nothing.

    `print` shows the plan as a table, `save` writes it to a file.

    Args:
        model: the model.
        on_progress: called with every step.
        keywords: options of the command `optimize` that decide forms or measure them.

    Raises:
        TypeError: a keyword that the call does not take.
        UsageError: a value or a combination that does not fit, or a model of another kind.
        InvalidModelError: the model is broken or not supported.
        UnverifiedError: nothing can be measured.
    """
    check_keywords("plan", keywords, PlanKeywords)
    search_options = options_from(SearchOptions, keywords)
    options, handle = options_from(FoldOptions, keywords), handle_of(model)
    with progress_to(on_progress):
        progress(READING)
        with _loaded(handle) as loaded:
            return pipeline.optimize(loaded, options, search_options).plan


def apply(
    model: Any,
    plan: Plan | Path | str,
    out: Path | str | None = None,
    *,
    partial: bool = False,
    no_verify: bool = False,
    **keywords: Unpack[CheckKeywords],
) -> Any:
    """Carry out a plan on a model; nothing is measured, and the result is proved.

    Args:
        model: the model; it stays as it is.
        plan: the plan, or the path of its file.
        out: where the result goes, for a path; then it is compared on the runtime, too.
        partial: leave out the parts of the plan that do not fit the model.
        no_verify: do not check the result.
        keywords: options of the comparison.

    Returns:
        The new model in the form of `model`; for a path, `out`, or a ModelProto without `out`.

    Raises:
        TypeError: a keyword that the call does not take.
        UsageError: a value or a combination that does not fit, or a file that is no plan.
        InvalidModelError: the model is broken or not supported.
        CheckFailedError: a part of the plan does not fit, or the result is not equal.
        UnverifiedError: the result cannot be shown to be equal.
    """
    check_keywords("apply", keywords, CheckKeywords)
    handle = _handle(model, out)
    plan_files = [] if isinstance(plan, Plan) else [Path(plan)]
    plan = plan if isinstance(plan, Plan) else read_plan(plan)
    if out is None:
        _check_unused(CheckKeywords.__annotations__, keywords, "compares a file written to `out`")
        target: Target = InMemory(handle.model, no_verify)
        result = pipeline.apply(handle.model, plan, target, allow_misfits=partial)
    else:
        options = _delivery_options(keywords)
        verify_options = None if no_verify else options
        with _loaded(handle) as loaded:
            other_inputs = [*plan_files, *options.files]
            target = IntoFile(loaded, Path(out), verify_options, other_inputs)
            result = pipeline.apply(loaded, plan, target, allow_misfits=partial)
    if result.model is None:
        check_delivered(result.report)
    return _in_form_of(handle, result, out).model


def verify(
    original: Any,
    rewritten: Any,
    *,
    on_progress: Listener = silent,
    **keywords: Unpack[VerifyKeywords],
) -> VerifyReport:
    """Compare two models on the runtime: interface, proof, outputs, time.

    Args:
        original: the model before.
        rewritten: the model after.
        on_progress: called with every step.
        keywords: options of the command, e.g. `no_timing=True`, `fail_under=1.0`.

    Returns:
        The report; its verdict is pass, fail or unverified.

    Raises:
        TypeError: a keyword that the call does not take.
        UsageError: a value that does not fit, or a model of another kind.
        InvalidModelError: a model that is none.
    """
    check_keywords("verify", keywords, VerifyKeywords)
    options = options_from(VerifyOptions, keywords)
    handles = handle_of(original), handle_of(rewritten)
    with progress_to(on_progress):
        progress(READING)
        with _loaded(handles[0]) as first, _loaded(handles[1]) as second:
            options = with_stored_sizes(options, options.inputs, first.proto)
            return evidence.verify(first, second, options)


def inspect(model: Any, **keywords: Unpack[InspectKeywords]) -> InspectReport:
    """List the layers of a model with their shapes, cost, legal forms and refusals.

    Args:
        model: the model.
        keywords: options of the command; `factor` is 8 by default.

    Raises:
        TypeError: a keyword that the call does not take.
        UsageError: a value that does not fit, or a model of another kind.
        InvalidModelError: the model is broken or not supported.
    """
    check_keywords("inspect", keywords, InspectKeywords)
    options = options_from(FoldOptions, keywords, **_default_factor(keywords))
    runtime_options = options_from(RuntimeOptions, keywords)
    with _loaded(handle_of(model)) as loaded:
        return inspect_model(loaded, options, runtime_options)


def tune(
    models: Sequence[Path | str],
    *,
    on_progress: Listener = silent,
    **keywords: Unpack[TuneKeywords],
) -> TuneReport:
    """Measure the layers of model files ahead of `optimize`, and keep the times in a store.

    Args:
        models: paths of models.
        on_progress: called with every step.
        keywords: options of the command, e.g. `store="times.db"`, `jobs=2`.

    Raises:
        TypeError: a keyword that the call does not take.
        UsageError: a value that does not fit, or there is no such cluster.
        UnverifiedError: nothing can be measured.
    """
    check_keywords("tune", keywords, TuneKeywords)
    from widthfold_onnx.tuning.tune import tune as tune_files

    if isinstance(models, str | Path):
        raise UsageError("tune takes a sequence of paths, not one path")
    fold_options = options_from(FoldOptions, keywords)
    search_options = options_from(SearchOptions, keywords)
    jobs, dask = keywords.get("jobs", 1), keywords.get("dask")
    with progress_to(on_progress):
        return tune_files(models, fold_options, search_options, jobs=jobs, dask=dask)


class WidthFold(ir.passes.FunctionalPass):
    """Folds every layer that can be folded, also in the bodies of If, Loop and Scan.

    Local functions that hold such a layer are inlined. A model that contains folds stays as it is,
    so a second run modifies nothing. Tensors that are not folded are shared with the input.

    Args:
        no_verify: do not prove the result equal; else `call` raises where that does not hold.
        keywords: keywords of `widthfold_onnx.fold`; `factor` is 8 by default.
    """

    def __init__(self, *, no_verify: bool = False, **keywords: Unpack[FoldKeywords]) -> None:
        self.no_verify = no_verify
        self.keywords = keywords

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Return a new model, and whether anything was folded."""
        result = fold(model, no_verify=self.no_verify, **self.keywords)
        if result is model:
            return ir.passes.PassResult(model.clone(), modified=False)
        return ir.passes.PassResult(result, modified=True)


def check_delivered(report: OptimizeReport) -> None:
    """Check that a model was delivered, because it passed its checks.

    Raises:
        CheckFailedError: the model is not equal, or the plan does not fit.
        UnverifiedError: the model cannot be shown to be equal.
    """
    if report.written is not None:
        return
    if report.verification is not None and report.verification.error is not None:
        raise report.verification.error
    misfits = [site for site in report.sites if site.code == Code.MISFIT]
    reasons = "; ".join(f"{_shown(site)}: {site.reason}" for site in misfits)
    raise CheckFailedError(f"the plan does not fit the model: {reasons}")


def _shown(site: SiteReport) -> str:
    return printable(str(NodeName(site.graph, site.node)))


def _default_factor(keywords: Mapping[str, Any]) -> FoldKeywords:
    """Return the keyword of the factor by default; strides alone have no factor."""
    return {} if keywords.get("form") == FormName.STRIDES else {"factor": DEFAULT_FACTOR}


def _delivery_options(keywords: Mapping[str, Any]) -> VerifyOptions:
    """Return the options with which a model is verified that was just folded."""
    names = {"threads", *CheckKeywords.__annotations__}
    values = {name: value for name, value in keywords.items() if name in names}
    return options_from(DeliveryOptions, values)


def _check_unused(names: Collection[str], keywords: Mapping[str, Any], purpose: str) -> None:
    """Refuse keywords that would have no effect.

    Raises:
        UsageError: one is given.
    """
    for name in keywords:
        if name in names:
            raise UsageError(f"{name} {purpose}; a model in memory is proved and not run")


def _handle(model: Any, out: Path | str | None) -> ModelHandle:
    """Return the handle of a model.

    Raises:
        UsageError: `out` is given for a model in memory; or as `handle_of`.
    """
    handle = handle_of(model)
    if handle.path is None and out is not None:
        raise UsageError("out is for a model that is given by its path")
    return handle


@contextmanager
def _loaded(handle: ModelHandle) -> Iterator[LoadedModel]:
    """Load the file of a model, a temporary one for a model in memory."""
    if handle.path is not None:
        yield load(handle.path)
        return
    model = handle.model
    with tempfile.TemporaryDirectory(prefix="widthfold-") as folder:
        path = Path(folder, model.name)
        with written(copy_of(model.proto), path, source_folder=model.folder) as file:
            file.publish()
        yield load(path)


@contextmanager
def _place(out: Path | str | None) -> Iterator[Path]:
    """Give the path of a result, a temporary one if there is none."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="widthfold-") as folder:
        yield Path(folder, "out.onnx")


def _in_form_of(handle: ModelHandle, result: Result, out: Path | str | None = None) -> Result:
    """Return a result with the model in the form in which its original was given."""
    model = result.model
    if isinstance(model, Path) and out is None:
        model = onnx.load(model) if result.plan.is_changing else handle.model.proto
    return replace(
        result, model=handle.give(model) if isinstance(model, onnx.ModelProto) else model
    )
