"""The order of the steps of every verb; no other file knows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import onnx

from widthfold_onnx.errors import CheckFailedError
from widthfold_onnx.evidence.run import verify_files
from widthfold_onnx.model.check import check_model
from widthfold_onnx.model.external import check_external, external_tensors
from widthfold_onnx.model.graph import Document
from widthfold_onnx.model.loader import load
from widthfold_onnx.model.writer import copy_model, write_model
from widthfold_onnx.options import FoldOptions, VerifyOptions
from widthfold_onnx.plan import Decision, find_sites, plan
from widthfold_onnx.results import (
    InspectReport,
    OptimizeReport,
    OptimizeSummary,
    SiteReport,
    VerifyReport,
)
from widthfold_onnx.rewrite.engine import Engine
from widthfold_onnx.rules.base import Reformulation
from widthfold_onnx.survey import survey

Progress = Callable[[str], None]

PROVE_ONLY = VerifyOptions(thorough=False, timing=False)
"""How `optimize` verifies by default: what a wrong fold cannot pass; `verify` looks further."""


def silent(line: str) -> None:
    """Progress that nobody watches."""


def optimize(
    model: Path | str,
    out: Path | str | None,
    options: FoldOptions,
    verify_options: VerifyOptions | None = PROVE_ONLY,
    *,
    require_fold: bool = False,
    on_progress: Progress = silent,
) -> OptimizeReport:
    """Fold every site that the rules allow and write the result.

    Args:
        model: the model file; it is never changed.
        out: where the result goes, replaced in one step and only after it passed verification;
            None plans only. If nothing is folded it becomes a copy, byte for byte.
        options: which sites, how far, in which form.
        verify_options: how the result is verified; None writes it unverified.
        require_fold: write nothing where no site is folded.
        on_progress: gets a line of text per step.

    Returns:
        What became of every site. `written` is None if verification did not pass.

    Raises:
        UsageError: an option or path that does not fit.
        InvalidModelError: the model is broken or not supported.
    """
    on_progress("reading the model")
    model, out = Path(model), None if out is None else Path(out)
    loaded = load(model)
    document = Document(loaded.proto, loaded.folder)
    on_progress("planning")
    decisions = plan(document, options)
    sites = [decision.report() for decision in decisions]
    folded = sum(site.status == "folded" for site in sites)
    size = model.stat().st_size
    report = OptimizeReport(
        model=model.name,
        sites=sites,
        summary=OptimizeSummary(
            folded=folded,
            kept=sum(site.status == "kept" for site in sites),
            refused=sum(site.status == "refused" for site in sites),
            bytes_before=size,
            bytes_after=size,
        ),
        written=None,
        verification=None,
    )
    if out is None or (require_fold and not folded):
        return report
    if not folded:
        copy_model(model, out, proto=loaded.proto)
        return msgspec.structs.replace(report, written=out.name)

    # Folding drops tensors, and with them the names of the files that must stay.
    data = {check_external(t, loaded.folder).location for t in external_tensors(loaded.proto)}
    if verify_options is not None:
        shapes = {**options.input_shapes, **verify_options.input_shapes}
        verify_options = dataclasses.replace(verify_options, input_shapes=shapes)
    proto = _apply(document, decisions)
    verification: list[VerifyReport] = []

    def check(written: Path) -> None:
        load(written)
        if verify_options is not None:
            result = verify_files(
                model,
                written,
                verify_options,
                lambda line: on_progress(line.replace(written.name, out.name)),
            )
            result = _renamed(result, written.name, out.name)
            verification.append(result)
            if result.verdict != "pass":
                raise CheckFailedError(result.verdict)

    on_progress("writing")
    try:
        write_model(
            proto,
            out,
            source_folder=loaded.folder,
            check=check,
            protected=[model, *(loaded.folder / location for location in sorted(data))],
            externalize=document.external_names,
        )
    except CheckFailedError:
        return msgspec.structs.replace(report, verification=verification[0])
    summary = msgspec.structs.replace(report.summary, bytes_after=out.stat().st_size)
    return msgspec.structs.replace(
        report,
        summary=summary,
        written=out.name,
        verification=verification[0] if verification else None,
    )


def fold_model(
    proto: onnx.ModelProto, options: FoldOptions, folder: Path | None = None
) -> tuple[onnx.ModelProto, list[SiteReport]]:
    """Fold a model in memory, without running it.

    Args:
        proto: the model; it stays as it is.
        options: which sites, how far, in which form.
        folder: where its external data lies.

    Returns:
        The folded model and what became of every site.

    Raises:
        UsageError: an option that does not fit.
        InvalidModelError: the model is broken or not supported.
    """
    check_model(proto, folder)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    document = Document(copy, folder)
    decisions = plan(document, options)
    return _apply(document, decisions), [decision.report() for decision in decisions]


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
        on_progress: gets a line of text per step.

    Returns:
        The report; its verdict is pass, fail or unverified.

    Raises:
        UsageError: a path, an input or a shape that does not fit.
        InvalidModelError: a file that is no model.
    """
    return verify_files(Path(original), Path(rewritten), options, on_progress)


def inspect(model: Path | str, options: FoldOptions) -> InspectReport:
    """List every site with its shapes, cost, legal reformulations and refusals.

    Args:
        model: the model file.
        options: as for `optimize`.

    Raises:
        UsageError: an option or path that does not fit.
        InvalidModelError: the model is broken or not supported.
    """
    model = Path(model)
    loaded = load(model)
    document = Document(loaded.proto, loaded.folder)
    return InspectReport(
        model=model.name,
        opset=document.opset,
        ir_version=loaded.proto.ir_version,
        nodes=len(loaded.proto.graph.node),
        sites=survey(document, find_sites(document, options), options),
    )


def _apply(document: Document, decisions: Sequence[Decision]) -> onnx.ModelProto:
    engine = Engine(document)
    for decision in decisions:
        if decision.conv is not None and isinstance(decision.outcome, Reformulation):
            engine.apply(decision.conv, decision.outcome)
    engine.finish()
    return document.finish()


def _renamed(report: VerifyReport, temporary: str, final: str) -> VerifyReport:
    """The report of a file that will be renamed, under its final name."""
    reasons = [reason.replace(temporary, final) for reason in report.reasons]
    return msgspec.structs.replace(report, rewritten=final, reasons=reasons)
