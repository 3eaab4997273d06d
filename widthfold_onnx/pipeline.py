"""The order of the steps of every verb but `tune`, which has `plan.tuning`."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import onnx

from widthfold_onnx.delivery import Planned, write_verified
from widthfold_onnx.errors import UsageError
from widthfold_onnx.evidence.models import check_judged
from widthfold_onnx.evidence.run import verify_files
from widthfold_onnx.model.atomic import check_target
from widthfold_onnx.model.check import check_model
from widthfold_onnx.model.external import check_external, external_tensors
from widthfold_onnx.model.graph import Document
from widthfold_onnx.model.loader import LoadedModel, load
from widthfold_onnx.options import FoldOptions, SearchOptions, VerifyOptions
from widthfold_onnx.plan.decisions import Decision, applied, plan
from widthfold_onnx.plan.layouts import settled
from widthfold_onnx.plan.outline import outline
from widthfold_onnx.plan.rivals import find
from widthfold_onnx.plan.store import Store
from widthfold_onnx.progress import Progress, Step, silent
from widthfold_onnx.results import (
    InspectReport,
    OptimizeReport,
    OptimizeSummary,
    SiteReport,
    VerifyReport,
)
from widthfold_onnx.rules.conv import reformulate
from widthfold_onnx.runtime.worker import isolated
from widthfold_onnx.survey import survey

BY_DEFAULT = SearchOptions()
PROVE_ONLY = VerifyOptions(thorough=False, timing=False)
"""How `optimize` verifies by default: what a wrong fold cannot pass; `verify` looks further."""


def optimize(
    model: Path | str,
    out: Path | str | None,
    options: FoldOptions,
    verify_options: VerifyOptions | None = PROVE_ONLY,
    search_options: SearchOptions = BY_DEFAULT,
    *,
    require_fold: bool = False,
    on_progress: Progress = silent,
) -> OptimizeReport:
    """Fold the sites where it pays, or at a fixed factor every site that the rules allow.

    Args:
        model: the model file; it is never changed.
        out: where the result goes, replaced in one step and only after it passed verification;
            None plans only. If nothing is folded it becomes a copy, byte for byte.
        options: which sites, how far, in which form.
        verify_options: how the result is verified; None writes it unverified. Where the runtime
            has no kernel to run the model, the proof alone must do, at a fixed factor.
        search_options: how it is measured what pays; at a fixed factor only its options of the
            provider count, which decide the emitted form where that is left open.
        require_fold: write nothing where no site is folded.
        on_progress: gets what is being done.

    Returns:
        What became of every site. `written` is None if verification did not pass.

    Raises:
        UsageError: an option or path that does not fit.
        InvalidModelError: the model is broken or not supported.
        UnverifiedError: nothing can be measured, for want of a runtime or of usable inputs.
    """
    on_progress(Step("reading the model"))
    model, out = Path(model), None if out is None else Path(out)
    loaded = load(model)
    # Folding drops tensors, and with them the names of the files that must stay.
    data = {check_external(t, loaded.folder).location for t in external_tensors(loaded.proto)}
    protected = [model, *(loaded.folder / location for location in sorted(data))]
    if out is not None:
        check_target(out, protected)  # not after minutes of measuring
    if out is not None and verify_options is not None and options.factor is None:
        _check_judged(model, options, verify_options, on_progress)  # nor this
    planned = _planned(model, loaded, options, search_options, on_progress)
    if out is None or (require_fold and not planned.report.summary.folded):
        return planned.report
    return write_verified(
        planned, out, verify_options, protected=protected, on_progress=on_progress
    )


def _check_judged(
    model: Path, options: FoldOptions, verify_options: VerifyOptions, on_progress: Progress
) -> None:
    """Check that the values of a model can be judged.

    Raises:
        UnverifiedError: they cannot.
    """
    on_progress(Step("running the model as its values are judged"))
    shapes = {**options.input_shapes, **verify_options.input_shapes}
    isolated(check_judged, model, dataclasses.replace(verify_options, input_shapes=shapes))


def _planned(
    model: Path,
    loaded: LoadedModel,
    options: FoldOptions,
    search_options: SearchOptions,
    on_progress: Progress,
) -> Planned:
    """What becomes of every site: as measured, or at a fixed factor whatever is legal."""
    options = settled(options, search_options.provider_options)
    on_progress(Step("planning"))
    if options.factor is None:
        with Store(search_options.store) as store:
            found = find(loaded, options, search_options, store, on_progress)
        document, decisions, sites, search = (
            found.document,
            found.decisions,
            found.sites,
            found.report,
        )
        origins = found.origins
    else:
        document, search, origins = Document(loaded.proto, loaded.folder), None, {}
        decisions, sites = _at_factor(document, options, options.factor)
    size = model.stat().st_size
    report = OptimizeReport(
        model=model.name,
        sites=sites,
        regions=outline(document, decisions, options, origins),
        summary=OptimizeSummary(
            folded=sum(site.status == "folded" for site in sites),
            kept=sum(site.status == "kept" for site in sites),
            refused=sum(site.status == "refused" for site in sites),
            bytes_before=size,
            bytes_after=size,
        ),
        search=search,
        written=None,
        verification=None,
    )
    return Planned(model, loaded, document, options, decisions, report)


def _at_factor(
    document: Document, options: FoldOptions, factor: int
) -> tuple[list[Decision], list[SiteReport]]:
    """The decisions at a fixed factor, and their lines of the report."""
    choose = functools.partial(reformulate, options=options, factor=factor)
    decisions = plan(document, options, choose)
    return decisions, [decision.report(options) for decision in decisions]


def fold_model(
    proto: onnx.ModelProto, options: FoldOptions, folder: Path | None = None
) -> tuple[onnx.ModelProto, list[SiteReport]]:
    """Fold a model in memory, without running it.

    Args:
        proto: the model; it stays as it is.
        options: which sites, in which form; the factor must be given.
        folder: where its external data lies.

    Returns:
        The folded model, or where nothing is folded one equal to `proto`, and what became of
        every site.

    Raises:
        UsageError: an option that does not fit.
        InvalidModelError: the model is broken or not supported.
    """
    if options.factor is None:
        raise UsageError("fold_model runs nothing, so it takes a factor")
    check_model(proto, folder)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    document = Document(copy, folder)
    decisions, sites = _at_factor(document, options, options.factor)
    if not any(site.status == "folded" for site in sites):
        return copy, sites
    return applied(document, decisions, options), sites


def verify(
    original: Path | str,
    rewritten: Path | str,
    options: VerifyOptions,
    *,
    on_progress: Progress = silent,
) -> VerifyReport:
    """Compare two models on the runtime: interface, outputs, exact probe, time.

    Args:
        original: the model before.
        rewritten: the model after.
        options: inputs, tolerances, provider and what to run.
        on_progress: gets what is being done.

    Returns:
        The report; its verdict is pass, fail or unverified.

    Raises:
        UsageError: a path, an input, a shape or an option of the provider that does not fit.
        InvalidModelError: a file that is no model.
    """
    return verify_files(
        Path(original), Path(rewritten), options, lambda line: on_progress(Step(line))
    )


def inspect(model: Path | str, options: FoldOptions) -> InspectReport:
    """List every site with its shapes, cost, legal reformulations and refusals.

    Args:
        model: the model file.
        options: as for `optimize`.

    Raises:
        UsageError: an option or path that does not fit.
        InvalidModelError: the model is broken or not supported.
    """
    if options.factor is None:
        raise UsageError(
            "inspect measures nothing and shows the forms of one factor: give a number; what auto "
            "takes is shown by `optimize --dry-run`"
        )
    model = Path(model)
    loaded = load(model)
    document = Document(loaded.proto, loaded.folder)
    return InspectReport(
        model=model.name,
        opset=document.opset,
        ir_version=loaded.proto.ir_version,
        nodes=len(loaded.proto.graph.node),
        sites=survey(document, options, options.factor),
    )
