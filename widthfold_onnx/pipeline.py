"""The order of the steps of every verb but `tune`, which has `plan.tuning`."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import msgspec
import onnx

from widthfold_onnx.errors import CheckFailedError, UsageError
from widthfold_onnx.evidence.parity import meaningless
from widthfold_onnx.evidence.run import verify_files
from widthfold_onnx.model.atomic import check_target
from widthfold_onnx.model.check import check_model
from widthfold_onnx.model.external import check_external, external_tensors
from widthfold_onnx.model.graph import Document
from widthfold_onnx.model.loader import load
from widthfold_onnx.model.writer import copy_model, write_model
from widthfold_onnx.options import FoldOptions, SearchOptions, VerifyOptions
from widthfold_onnx.plan.decisions import applied, find_sites, plan
from widthfold_onnx.plan.layouts import settled
from widthfold_onnx.plan.outline import outline
from widthfold_onnx.plan.search import Search
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
    document = Document(loaded.proto, loaded.folder)
    options = settled(options, search_options.provider_options)
    on_progress(Step("planning"))
    found = None
    if options.factor is None:
        with Store(search_options.store) as store:
            search = Search(loaded, options, search_options, store, on_progress)
            found = search.run()
            decisions = plan(document, options, search.choose)
            sites = [d.report(options, search.gain(d.conv)) for d in decisions]
    else:
        choose = functools.partial(reformulate, options=options, factor=options.factor)
        decisions = plan(document, options, choose)
        sites = [decision.report(options) for decision in decisions]
    folded = sum(site.status == "folded" for site in sites)
    size = model.stat().st_size
    report = OptimizeReport(
        model=model.name,
        sites=sites,
        regions=outline(document, decisions, options),
        summary=OptimizeSummary(
            folded=folded,
            kept=sum(site.status == "kept" for site in sites),
            refused=sum(site.status == "refused" for site in sites),
            bytes_before=size,
            bytes_after=size,
        ),
        search=found,
        written=None,
        verification=None,
    )
    if out is None or (require_fold and not folded):
        return report
    if not folded:
        copy_model(model, out, proto=loaded.proto)
        return msgspec.structs.replace(report, written=out.name)

    if verify_options is not None:
        shapes = {**options.input_shapes, **verify_options.input_shapes}
        verify_options = dataclasses.replace(verify_options, input_shapes=shapes)
    proto = applied(document, decisions, options)
    verification: list[VerifyReport] = []

    def check(written: Path) -> None:
        load(written)
        if verify_options is not None:
            result = verify_files(
                model,
                written,
                verify_options,
                lambda line: on_progress(Step(line.replace(written.name, out.name))),
            )
            result = _renamed(result, written.name, out.name)
            verification.append(result)
            # A fixed factor asks no questions; auto writes only what was run.
            proved = result.unrun and options.factor is not None
            if result.verdict != "pass" and not proved:
                raise CheckFailedError(result.verdict)

    on_progress(Step("writing"))
    try:
        write_model(
            proto,
            out,
            source_folder=loaded.folder,
            check=check,
            protected=protected,
            externalize=document.external_names,
        )
    except CheckFailedError:
        result = verification[0]
        blind = result.verdict == "unverified" and meaningless(
            [row for row in result.outputs if row.level == "disabled"]
        )
        if options.factor is None and blind:
            copy_model(model, out, proto=loaded.proto)
            report = _left_alone(report, result.reasons[0], out.name)
        return msgspec.structs.replace(report, verification=result)
    summary = msgspec.structs.replace(report.summary, bytes_after=out.stat().st_size)
    return msgspec.structs.replace(
        report,
        summary=summary,
        written=out.name,
        verification=verification[0] if verification else None,
    )


def _left_alone(report: OptimizeReport, why: str, written: str) -> OptimizeReport:
    """The report of a model that stays as it is, although layers would be faster."""
    assert report.search is not None
    sites = [
        SiteReport(
            node=site.node,
            graph=site.graph,
            op=site.op,
            status="kept",
            code="not-comparable",
            reason=why,
            gain=site.gain,
        )
        if site.status == "folded"
        else site
        for site in report.sites
    ]
    counts = report.summary
    return msgspec.structs.replace(
        report,
        sites=sites,
        regions=[],
        summary=msgspec.structs.replace(counts, folded=0, kept=counts.kept + counts.folded),
        search=msgspec.structs.replace(report.search, accepted=False),
        written=written,
    )


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
    choose = functools.partial(reformulate, options=options, factor=options.factor)
    decisions = plan(document, options, choose)
    sites = [decision.report(options) for decision in decisions]
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
        raise UsageError("inspect lists the forms at one factor; give it")
    model = Path(model)
    loaded = load(model)
    document = Document(loaded.proto, loaded.folder)
    return InspectReport(
        model=model.name,
        opset=document.opset,
        ir_version=loaded.proto.ir_version,
        nodes=len(loaded.proto.graph.node),
        sites=survey(document, find_sites(document, options), options, options.factor),
    )


def _renamed(report: VerifyReport, temporary: str, final: str) -> VerifyReport:
    """The report of a file that will be renamed, under its final name."""
    reasons = [reason.replace(temporary, final) for reason in report.reasons]
    return msgspec.structs.replace(report, rewritten=final, reasons=reasons)
