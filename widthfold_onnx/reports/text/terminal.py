"""Prints plans as tables: what `optimize` did and what `inspect` found."""

from __future__ import annotations

from collections.abc import Sequence

from widthfold_onnx.reports import wording
from widthfold_onnx.reports.text.console import Cell, printing, say, table
from widthfold_onnx.reports.wording import size
from widthfold_onnx.results import (
    InspectReport,
    InspectSite,
    OptimizeReport,
    SiteReport,
)


@printing()
def show_optimize(report: OptimizeReport) -> None:
    """Print the outcome of every site, then the sum."""
    _sites(report.sites)
    counts = report.summary
    line = f"{counts.folded} of {len(report.sites)} {wording.kinds(report.sites)} nodes folded"
    if counts.kept:
        line += f", {counts.kept} kept"
    if report.written is None:
        line += "; nothing written"
    elif counts.changes:
        sizes = f"{size(counts.bytes_before)} -> {size(counts.bytes_after)}"
        line += f"; wrote {report.written} ({sizes})"
    else:
        line += f"; {report.written} is a copy of {report.model}"
    say(line)
    if any(site.code == "already-folded" for site in report.sites):
        say(wording.already_folded(report.model))
    for found in report.companions:
        say(wording.companion(found))
    if counts.frozen:
        say(wording.frozen(counts))
    for region in report.regions:
        say(wording.region(region))
    if spread := wording.spread(report.sites):
        say(spread)
    if report.search is not None:
        say(wording.search(report.search))
    if report.verification is not None:
        say(f"verdict: {wording.verdict(report.verification)}")
        if report.verification.verdict == "pass":
            for reason in report.verification.reasons:
                say(f"  {reason}")
        if report.written is not None and report.verification.unrun:
            say(f"written without having been run: {report.verification.unrun}")


@printing()
def show_sites(sites: Sequence[SiteReport], done: str) -> None:
    """Print the outcome of every site, the sum, and what was done with it."""
    _sites(sites)
    folded = sum(site.status == "folded" for site in sites)
    say(f"{folded} of {len(sites)} {wording.kinds(sites)} layers folded; {done}")


@printing()
def show_inspect(report: InspectReport) -> None:
    """Print every site, its cost and what each fold would do."""
    table(
        [
            "node",
            "input",
            "weight",
            "channels",
            "of 8-wide tiles",
            "MACs",
            "geometry, then folds, cheapest first",
        ],
        [_inspected(site) for site in report.sites],
        below=True,
    )
    found = f"{len(report.sites)} {wording.kinds(report.sites)}"
    say(f"{report.model}: {report.nodes} nodes, {found}, opset {report.opset}")
    for companion in report.companions:
        say(wording.companion(companion))
    if any(site.folded_as is not None for site in report.sites):
        say(wording.already_folded(report.model))


def _sites(sites: Sequence[SiteReport]) -> None:
    table(
        ["node", "status", "axis", "factor", "form", "MACs", "alone", "why"],
        [_site(site) for site in sites],
        below=True,
    )


def _site(site: SiteReport) -> list[str]:
    where = f"{site.node} in {site.graph}" if site.graph else site.node
    ratio = "" if site.flops_ratio is None else f"{site.flops_ratio:.2f}x"
    factor = "" if site.factor is None else str(site.factor)
    why = site.reason if site.status == "folded" else f"{site.code}: {site.reason}"
    alone = "" if site.gain is None else f"{site.gain.ratio:.2f}x"
    if site.gain is not None and site.gain.predicted:
        alone += " predicted"
    return [where, site.status, site.axis or "", factor, site.form or "", ratio, alone, why]


def _inspected(site: InspectSite) -> list[Cell]:
    folds = [
        f"{c.axis} by {c.factor}: {c.channels}, {c.flops_ratio:.2f}x MACs, {c.form}"
        for c in site.choices
    ]
    if site.folded_as is not None:
        folds = [f"folded: {site.folded_as}"]
    refusals = [f"no fold of {axis}: {reason}" for axis, reason in site.refusals.items()]
    lines = [site.attributes, *folds, *refusals, site.hint]
    return [
        f"{site.node} in {site.graph}" if site.graph else site.node,
        _shape(site.input_shape),
        _shape(site.weight_shape),
        site.channels,
        site.alignment,
        "" if site.flops is None else f"{site.flops:,}",
        [line for line in lines if line],
    ]


def _shape(dims: Sequence[int | str] | None) -> str:
    return "" if dims is None else "x".join(map(str, dims))
