"""Report what a plan does to a model: to every layer, region and companion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import onnx

from widthfold_onnx.decide.decisions import Decided, folded_report
from widthfold_onnx.errors import InternalError
from widthfold_onnx.model.graph.messages import NodeName
from widthfold_onnx.results import (
    MISFIT,
    CompanionReport,
    OptimizeReport,
    OptimizeSummary,
    PaddingReport,
    SearchReport,
    SiteReport,
)
from widthfold_onnx.rewrite.apply import Fitting, fit, misfit_text
from widthfold_onnx.rewrite.plan import Plan

STATUSES = ("folded", "kept", "refused")

NOT_PLANNED = "not-planned"
"""Code of a layer that a plan does not name."""


def optimize_report(
    model: str,
    size: int,
    fitting: Fitting,
    sites: Sequence[SiteReport],
    companions: Sequence[CompanionReport] = (),
    padding: PaddingReport | None = None,
    search: SearchReport | None = None,
) -> OptimizeReport:
    """Return the report of a command before anything is written.

    Args:
        model: name of the file.
        size: its bytes.
        fitting: the plan at this model.
        sites: the line of each layer.
        companions: the line of each companion that matches a node.
        padding: the line of padded channels, if there is one.
        search: the measurements, if there are any.
    """
    names = {site.node: site.name for site in fitting.reading.sites}
    counts = {status: sum(site.status == status for site in sites) for status in STATUSES}
    return OptimizeReport(
        model=model,
        sites=list(sites),
        regions=fitting.rewriting.region_reports(names),
        companions=list(companions),
        padding=padding,
        summary=OptimizeSummary(
            **counts,
            bytes_before=size,
            bytes_after=size,
            exchanged=len(fitting.plan.companions),
            frozen=len(fitting.plan.frozen),
            padded=0 if fitting.plan.padding is None else len(fitting.plan.padding.layers),
        ),
        search=search,
        fixed_sizes=(
            {name: list(shape) for name, shape in fitting.plan.sizes[0].items()}
            if fitting.plan.limits.fixed_shapes and fitting.plan.changes
            else {}
        ),
        written=None,
        verification=None,
    )


def fit_decided(
    decided: Decided, proto: onnx.ModelProto, folder: Path | None, model: str, size: int
) -> tuple[Fitting, OptimizeReport]:
    """Match a plan to the model for which it was decided, and return the report, too.

    Args:
        decided: the plan.
        proto: the model; it stays as it is.
        folder: where its external data lies.
        model: name of the file.
        size: its bytes.

    Raises:
        InternalError: a part of the plan does not fit: a fault of widthfold.
    """
    fitting = fit(proto, folder, decided.plan, decided.reading)
    if fitting.misfits:
        raise InternalError(misfit_text(fitting.misfits))
    report = optimize_report(
        *(model, size, fitting, decided.sites, decided.companions, decided.padding),
        search=decided.search,
    )
    return fitting, msgspec.structs.replace(report, assumed=decided.assumed)


def applied_sites(fitting: Fitting, plan: Plan) -> list[SiteReport]:
    """Return the line of every layer of a model to which a plan is applied.

    Layers and other parts of the plan that do not fit come last.
    """
    planned = {layer.name for layer in plan.layers}
    folded = {site.node: (site, form) for site, form in fitting.layers}
    sites = [
        folded_report(*folded[site.node])
        if site.node in folded
        else SiteReport(
            node=site.name,
            graph=site.scope.path,
            op=site.op,
            status="kept",
            code=NOT_PLANNED,
            reason="the plan does not name it",
        )
        for site in fitting.reading.sites
        if site.node in folded or NodeName(site.scope.path, site.name) not in planned
    ]
    return sites + [
        SiteReport(
            node=misfit.name.node,
            graph=misfit.name.graph,
            op=misfit.op,
            status="refused",
            code=MISFIT,
            reason=misfit.why,
        )
        for misfit in fitting.misfits
    ]
