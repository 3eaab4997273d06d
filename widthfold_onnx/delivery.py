"""Writes the file of a planned model, once the result is verified."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import msgspec

from widthfold_onnx.errors import CheckFailedError
from widthfold_onnx.evidence.files import verify_files
from widthfold_onnx.evidence.parity.outputs import meaningless
from widthfold_onnx.model.read.loader import load
from widthfold_onnx.model.write.writer import write_model
from widthfold_onnx.options import FoldOptions, VerifyOptions
from widthfold_onnx.planning import Planned
from widthfold_onnx.progress import Progress, Step
from widthfold_onnx.results import OptimizeReport, SiteReport, VerifyReport


def write_verified(
    planned: Planned,
    out: Path,
    verify_options: VerifyOptions | None,
    *,
    protected: Sequence[Path],
    on_progress: Progress,
) -> OptimizeReport:
    """Carry out what was planned, and replace `out` if the result passes.

    Args:
        planned: the plan; its document is rewritten in place, unless nothing is folded.
        out: where the result goes; a copy of the model where nothing is folded.
        verify_options: how the result is verified; None writes it unverified.
        protected: files of the model, which must not be overwritten.
        on_progress: called with every step.

    Returns:
        The report of the plan, with the written file and its verification.

    Raises:
        UsageError: a path or an option that does not fit.
        InvalidModelError: the result is no model that could be read again.
        UnverifiedError: no statement is possible without a runtime.
    """
    report = planned.report
    if not report.summary.changes:
        planned.copy(out)
        return msgspec.structs.replace(report, written=out.name)
    verification: list[VerifyReport] = []

    def check(written: Path) -> None:
        if verify_options is None:
            load(written)  # verification does that itself
            return
        result = _verified(planned, written, out.name, verify_options, on_progress)
        verification.append(result)
        if not _suffices(result, planned.options):
            raise CheckFailedError(result.verdict)

    proto = planned.rewriting.carry_out()
    on_progress(Step("writing"))
    try:
        write_model(
            proto,
            out,
            source_folder=planned.loaded.folder,
            check=check,
            protected=protected,
            externalize=planned.rewriting.document.external_names,
        )
    except CheckFailedError:
        return _rejected(planned, out, verification[0])
    summary = msgspec.structs.replace(report.summary, bytes_after=out.stat().st_size)
    return msgspec.structs.replace(
        report,
        summary=summary,
        written=out.name,
        verification=verification[0] if verification else None,
    )


def _verified(
    planned: Planned, written: Path, final: str, options: VerifyOptions, on_progress: Progress
) -> VerifyReport:
    """Verify a temporary file, and return the report under its final name."""
    shapes = {**planned.options.input_shapes, **options.input_shapes}
    freeze = planned.options.freeze_weights
    report = verify_files(
        planned.loaded.path,
        written,
        dataclasses.replace(options, input_shapes=shapes, needs_proof=True, freeze_weights=freeze),
        lambda line: on_progress(Step(line.replace(written.name, final))),
    )
    reasons = [reason.replace(written.name, final) for reason in report.reasons]
    return msgspec.structs.replace(report, rewritten=final, reasons=reasons)


def _suffices(result: VerifyReport, options: FoldOptions) -> bool:
    """Check whether a file may be written: at a fixed factor also if it cannot be run."""
    return result.verdict == "pass" or (options.fixed is not None and bool(result.unrun))


def _rejected(planned: Planned, out: Path, result: VerifyReport) -> OptimizeReport:
    """Report a failed verification; `auto` copies a model without meaningful outputs."""
    report = planned.report
    blind = result.verdict == "unverified" and meaningless(
        [row for row in result.outputs if row.level == "disabled"]
    )
    if planned.options.fixed is None and blind:
        planned.copy(out)
        report = _left_alone(report, result.reasons[0], out.name)
    return msgspec.structs.replace(report, verification=result)


def _left_alone(report: OptimizeReport, why: str, written: str) -> OptimizeReport:
    """Return the report of a model that is left unchanged although layers would be faster."""
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
        companions=[
            msgspec.structs.replace(one, status="kept", reason=why)
            if one.status == "exchanged"
            else one
            for one in report.companions
        ],
        summary=msgspec.structs.replace(
            counts, folded=0, kept=counts.kept + counts.folded, exchanged=0, frozen=0
        ),
        search=msgspec.structs.replace(report.search, accepted=False),
        written=written,
    )
