"""Results as tables on standard output."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from widthfold_onnx.reports import wording
from widthfold_onnx.reports.console import Cell, printing, say, table
from widthfold_onnx.reports.histogram import histogram
from widthfold_onnx.reports.wording import figure, size
from widthfold_onnx.results import (
    InspectReport,
    InspectSite,
    NodeTime,
    OptimizeReport,
    OutputParity,
    Side,
    SiteReport,
    Timing,
    VerifyReport,
)

SLOWEST = 8
"""Nodes of each model that are shown."""

_NODE = 40
"""Characters of their names."""


@printing()
def show_optimize(report: OptimizeReport) -> None:
    """What became of every site, then the sum."""
    table(
        ["node", "status", "axis", "factor", "form", "MACs", "alone", "why"],
        [_site(site) for site in report.sites],
        below=True,
    )
    counts = report.summary
    line = f"{counts.folded} of {len(report.sites)} Conv nodes folded"
    if counts.kept:
        line += f", {counts.kept} kept"
    if report.written is None:
        line += "; nothing written"
    elif counts.folded:
        sizes = f"{size(counts.bytes_before)} -> {size(counts.bytes_after)}"
        line += f"; wrote {report.written} ({sizes})"
    else:
        line += f"; {report.written} is a copy of {report.model}"
    say(line)
    if report.search is not None:
        say(wording.search(report.search))
    if report.verification is not None:
        say(f"verdict: {wording.verdict(report.verification)}")


@printing()
def show_verify(
    report: VerifyReport, *, certificates: bool = False, latencies: bool = False
) -> None:
    """Outputs, probed sites, time and the verdict.

    Args:
        report: the result.
        certificates: print what was proved of every site in full.
        latencies: draw the latencies of both models in one histogram.
    """
    table(
        [
            "output",
            "runtime level",
            "max abs",
            "max rel",
            "allowed",
            "ulp",
            "cosine",
            "passed",
            "note",
        ],
        [_output(row) for row in report.outputs],
        below=True,
    )
    table(
        ["rewritten node", "probe", "channels", "why"],
        [
            [s.node, s.verdict, s.channels, "" if s.verdict == "exact" else s.reason]
            for s in report.exact
        ],
        below=True,
    )
    if certificates:
        for site in report.exact:
            if site.verdict == "exact":
                say(f"{site.node}: {site.fold}. Proved: {site.reason}.")
    if report.timing is not None:
        _show_timing(report.timing)
        if latencies:
            columns = ["ms from", "share of runs: original", "rewritten"]
            table(columns, histogram(report.timing))
    say(f"verdict: {wording.verdict(report)}")
    for reason in report.reasons:
        say(f"  {reason}")


def _show_timing(timing: Timing) -> None:
    """The two models beside each other, then where the time of each goes."""
    sides = (("original", timing.original), ("rewritten", timing.rewritten))
    table(
        ["model", "level", "p50 ms", "p90 ms", "p99 ms", "peak memory", "file", "ran on"],
        [
            [
                name,
                side.level,
                f"{side.median_ms:.3f}",
                f"{side.p90:.3f}",
                f"{side.p99:.3f}",
                f"{side.peak_mib:.0f} MiB",
                size(side.file_bytes),
                ", ".join(
                    f"{count} on {where.removesuffix('ExecutionProvider')}"
                    for where, count in side.providers.items()
                ),
            ]
            for name, side in sides
        ],
    )
    columns = [side.nodes[:SLOWEST] for _, side in sides]
    table(
        [
            *("slowest nodes of the original", "op", "us", "fell back to"),
            *("of the rewritten", "op ", "us ", "fell back to "),
        ],
        [
            [
                cell
                for node, (_, side) in zip(pair, sides, strict=True)
                for cell in _node(node, side)
            ]
            for pair in itertools.zip_longest(*columns)
        ],
    )
    say(f"time: {wording.speed(timing)}")


def _node(node: NodeTime | None, side: Side) -> list[str]:
    if node is None:
        return ["", "", "", ""]
    where = node.provider if node in side.fallbacks else ""
    return [wording.short(node.name, _NODE), node.op, f"{node.us:.0f}", where]


@printing()
def show_inspect(report: InspectReport) -> None:
    """Every site, its cost and what each fold would do."""
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
    say(f"{report.model}: {report.nodes} nodes, {len(report.sites)} Conv, opset {report.opset}")


def _site(site: SiteReport) -> list[str]:
    where = f"{site.node} in {site.graph}" if site.graph else site.node
    ratio = "" if site.flops_ratio is None else f"{site.flops_ratio:.2f}x"
    factor = "" if site.factor is None else str(site.factor)
    why = site.reason if site.status == "folded" else f"{site.code}: {site.reason}"
    alone = "" if site.gain is None else f"{site.gain.ratio:.2f}x"
    return [where, site.status, site.axis or "", factor, site.form or "", ratio, alone, why]


def _output(row: OutputParity) -> list[str]:
    return [
        row.name,
        row.level,
        figure(row.max_abs),
        figure(row.max_rel),
        figure(row.tolerance),
        wording.ulp(row),
        "-" if row.cosine is None else f"{row.cosine:.7f}",
        "pass" if row.passed else "fail",
        row.note,
    ]


def _inspected(site: InspectSite) -> list[Cell]:
    folds = [
        f"{c.axis} by {c.factor}: {c.channels}, {c.flops_ratio:.2f}x MACs, {c.form}"
        for c in site.choices
    ]
    if site.folded_as is not None:
        folds = [f"folded: {site.folded_as}"]
    refusals = [f"no fold of {axis}: {reason}" for axis, reason in site.refusals.items()]
    return [
        f"{site.node} in {site.graph}" if site.graph else site.node,
        _shape(site.input_shape),
        _shape(site.weight_shape),
        site.channels,
        site.alignment,
        "" if site.flops is None else f"{site.flops:,}",
        [site.attributes, *folds, *refusals],
    ]


def _shape(dims: Sequence[int | str] | None) -> str:
    return "" if dims is None else "x".join(map(str, dims))
