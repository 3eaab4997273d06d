"""The Python API: each call takes a model in any form, and gives it back in that form.

A model is the path of a file, an `onnx.ModelProto`, an `onnx_ir.Model` or an
`onnx_graphsurgeon.Graph`. Keywords are the options of the command line (`keywords`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import onnx

from widthfold_onnx import evidence, pipeline
from widthfold_onnx.decide.inspection import inspect_model
from widthfold_onnx.errors import CheckFailedError, UsageError
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
from widthfold_onnx.model.loader import load
from widthfold_onnx.model.proto.walk import copy_of
from widthfold_onnx.model.writer import write_model
from widthfold_onnx.options import (
    DEFAULT_FACTOR,
    DeliveryOptions,
    FoldOptions,
    FormName,
    RuntimeOptions,
    SearchOptions,
    VerifyOptions,
)
from widthfold_onnx.progress import READING, Listener, progress, progress_to, silent
from widthfold_onnx.reports import notebook
from widthfold_onnx.results import InspectReport, OptimizeReport, TuneReport, VerifyReport
from widthfold_onnx.rewrite.plan import Plan, read_plan
from widthfold_onnx.runtime.inputs.stored import with_stored_sizes

notebook.show_as_html()

RUN_ONLY = ("seeds", "rtol", "atol", "inputs", "value")
"""Keywords of a comparison on the runtime. A model in memory at a fixed factor is not run, so they
are refused."""


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
    fold_options = options_from(FoldOptions, keywords)
    handle = handle_of(model)
    search_options = options_from(SearchOptions, keywords)
    if out is None and not fold_options.is_measured:
        _check_unused(RUN_ONLY, keywords, "compares a model that is written to `out`")
        proto, (report, plan) = pipeline.optimize_in_memory(
            handle.model, handle.name, fold_options, search_options, no_verify=no_verify
        )
        is_refused = require_fold and not plan.is_changing
        return Result(None if is_refused else handle.give(proto), plan, report)
    verify_options = None if no_verify else _delivery_options(keywords)
    with _files(handle, out) as (source, target), progress_to(on_progress):
        progress(READING)
        report, plan = pipeline.optimize(
            load(source),
            target,
            fold_options,
            verify_options,
            search_options,
            require_fold=require_fold,
        )
        new_model = _written_model(handle, out, target, plan) if report.written else None
        return Result(new_model, plan, report)


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
        check_written(result.report)
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
    with _files(handle_of(model), None) as (source, _), progress_to(on_progress):
        fold_options = options_from(FoldOptions, keywords)
        progress(READING)
        return pipeline.plan(load(source), fold_options, search_options)


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
    handle = handle_of(model)
    if out is None:
        plan = plan if isinstance(plan, Plan) else read_plan(plan)
        _check_unused(CheckKeywords.__annotations__, keywords, "compares a file written to `out`")
        new_model = pipeline.apply_in_memory(
            handle.model, plan, partial=partial, no_verify=no_verify
        )
        return handle.give(new_model)
    plan = plan if isinstance(plan, Plan) else Path(plan)
    verify_options = None if no_verify else _delivery_options(keywords)
    with _files(handle, out) as (source, target):
        report, _ = pipeline.apply(load(source), plan, target, verify_options, partial=partial)
    check_written(report)
    return target


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
    with (
        _files(handle_of(original), None) as (first, _),
        _files(handle_of(rewritten), None) as (second, _),
        progress_to(on_progress),
    ):
        progress(READING)
        old, new = load(first), load(second)
        return evidence.verify(old, new, with_stored_sizes(options, options.inputs, old.proto))


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
    with _files(handle_of(model), None) as (source, _):
        return inspect_model(load(source), options, runtime_options)


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


def check_written(report: OptimizeReport) -> None:
    """Check that a model was written, because it passed verification.

    Raises:
        CheckFailedError: the model is not equal, or the plan does not fit.
        UnverifiedError: the model cannot be shown to be equal.
    """
    if report.written is not None:
        return
    if report.verification is not None and report.verification.error is not None:
        raise report.verification.error
    misfits = [site for site in report.sites if site.status == "refused"]
    raise CheckFailedError("; ".join(f"{site.node}: {site.reason}" for site in misfits))


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


@contextmanager
def _files(handle: ModelHandle, out: Path | str | None) -> Iterator[tuple[Path, Path]]:
    """Give the paths of a model and of its result; files for a model in memory are temporary."""
    if handle.path is None and out is not None:
        raise UsageError("out is for a model that is given by its path")
    with tempfile.TemporaryDirectory(prefix="widthfold-") as folder:
        source = handle.path
        if source is None:
            source = Path(folder, handle.name)
            write_model(copy_of(handle.model.proto), source, source_folder=handle.model.folder)
        yield source, Path(folder, "out.onnx") if out is None else Path(out)


def _written_model(handle: ModelHandle, out: Path | str | None, target: Path, plan: Plan) -> Any:
    """Return a written model in the form in which its original was given."""
    if out is not None:
        return target
    return handle.give(onnx.load(target) if plan.is_changing else handle.model.proto)
