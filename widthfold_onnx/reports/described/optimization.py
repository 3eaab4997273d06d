"""Describes the result of `optimize`: each layer, companions, regions, the search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from widthfold_onnx.reports.described import inputs, tuning, verification
from widthfold_onnx.reports.description import Column, Description, Detail, Line, Table, tabulated
from widthfold_onnx.reports.words import clauses, counted, first, gain, kinds, short, size
from widthfold_onnx.results import (
    MISFIT,
    CompanionReport,
    Gain,
    InspectSite,
    OptimizeReport,
    OptimizeSummary,
    PaddingReport,
    RegionReport,
    SiteReport,
    Stop,
)
from widthfold_onnx.text import printable

_NAME = 72
"""Characters of a name in a list."""

_REASON = 200
"""Characters of a name with a reason behind it."""

_GROUPS = 5
"""Rows of folded sites in a brief description."""

_REFUSALS = 3
"""Rows of refused sites in a brief description; each has a sentence."""


def located(site: SiteReport | InspectSite) -> str:
    """Return the node of a site, and the graph that holds it if that is not the main graph."""
    return f"{site.node} in {site.graph}" if site.graph else site.node


SITES: tuple[Column[SiteReport], ...] = (
    Column("node", located),
    Column("status", lambda site: site.status),
    Column("axis", lambda site: site.axis or ""),
    Column("factor", lambda site: "" if site.factor is None else str(site.factor)),
    Column("form", lambda site: site.form or ""),
    Column("MACs", lambda site: "" if site.flops_ratio is None else f"{site.flops_ratio:.2f}x"),
    Column("alone", lambda site: "" if site.gain is None else gain(site.gain)),
    Column(
        "why",
        lambda site: site.reason if site.status == "folded" else f"{site.code}: {site.reason}",
        sentences=True,
    ),
)


LARGE_GROWTH = 4
"""Bytes of the new file / bytes of the old one, above which the summary says so."""


BRIEF_SITES: tuple[Column[Sequence[SiteReport]], ...] = (
    Column("node", lambda group: short(located(group[0]), _NAME) + _others(len(group) - 1)),
    Column("axis", lambda group: group[0].axis or ""),
    Column("factor", lambda group: "" if group[0].factor is None else str(group[0].factor)),
    Column("alone", lambda group: _range([site.gain for site in group if site.gain is not None])),
    Column("sizes", lambda group: "guarded" if group[0].guard else ""),
    Column("why", lambda group: _why(group[0]), sentences=True),
)
"""Sites with the same outcome, in one row."""


def _others(count: int) -> str:
    return f" and {count} more" if count else ""


def _why(site: SiteReport) -> str:
    return "" if site.status == "folded" else f"{site.code}: {site.reason}"


def _range(gains: Sequence[Gain]) -> str:
    """Return the least and the largest of several speed-ups."""
    ratios = sorted(value.ratio for value in gains)
    texts = dict.fromkeys(f"{ratio:.2f}x" for ratio in (*ratios[:1], *ratios[-1:]))
    predicted = " predicted" if any(value.predicted for value in gains) else ""
    return " to ".join(texts) + predicted


def describe(report: OptimizeReport, detail: Detail) -> Description:
    """Describe the result of `optimize`.

    A brief description holds what decides whether the result is deployed: changes, speed, sizes,
    level and verdict.
    """
    full, checks = detail >= Detail.FULL, report.verification
    sizes = report.assumed or (checks.assumed if checks else None)
    description = Description(
        head=Line(report.model if full else "", _summary(report)),
        assumptions=inputs.assumptions(sizes, report.values),
        tables=_all_tables(report) if full else _brief_sites(report),
        remarks=[*_changes(report, full), *tuning.lines(report.search, detail), *_cautions(report)],
    )
    if checks is None:
        return description
    verified = verification.describe(checks, detail)
    remarks = [*description.remarks, verified.head]
    remarks += verified.remarks if full or checks.verdict == "pass" else ()
    if report.written is not None and checks.unrun:
        remarks.append(Line("written without having been run", checks.unrun))
    if not full:
        return replace(description, remarks=remarks)
    return replace(
        description,
        tables=[*description.tables, *verified.tables],
        facts=verified.facts,
        certificate=verified.certificate,
        remarks=remarks,
    )


def _all_tables(report: OptimizeReport) -> list[Table]:
    """Return all sites, and the gain of the whole model at each size."""
    trial = report.search
    by_size = [] if trial is None or trial.whole is None else inputs.size_table(trial.sizes)
    return [*tabulated("sites", SITES, report.sites), *by_size]


def _brief_sites(report: OptimizeReport) -> list[Table]:
    """Return the folded sites; if nothing was changed, the most frequent refusals.

    Many sites share a row if their outcome is the same.
    """
    is_changed = report.summary.changes
    limit = _GROUPS if is_changed else _REFUSALS
    sites = [s for s in report.sites if s.status == "folded" or s.code == MISFIT or not is_changed]
    groups: dict[tuple[object, ...], list[SiteReport]] = {}
    for site in sites:
        key = (site.code, site.axis, site.factor, site.guard)
        is_alone = len(sites) <= limit or site.code == MISFIT
        groups.setdefault((site.graph, site.node) if is_alone else key, []).append(site)
    rows = sorted(groups.values(), key=lambda group: (group[0].code != MISFIT, -len(group)))
    tables = tabulated("sites", BRIEF_SITES, rows[:limit])
    count = sum(len(group) for group in rows[limit:] if is_changed or group[0].code == MISFIT)
    if not count:
        return tables
    (table,) = tables
    rest = [f"and {count} more, see --details", *[""] * (len(table.columns) - 1)]
    return [replace(table, rows=[*table.rows, rest])]


def _changes(report: OptimizeReport, full: bool) -> list[Line]:
    """Return the lines on everything that was changed beside the sites, or left alone."""
    lines = []
    if any(site.code == "already-folded" for site in report.sites):
        lines.append(already_folded(report.model))
    if full:
        lines += map(companion, report.companions)
        lines += [padding(report.padding)] if report.padding is not None else []
    else:
        exchanged = [c for c in report.companions if c.status == "exchanged"]
        lines += [companion(msgspec.structs.replace(c, refused=[], gain=None)) for c in exchanged]
        if report.padding is not None and report.padding.status == "padded":
            lines.append(padding(msgspec.structs.replace(report.padding, stops=[], gain=None)))
    lines += [Line("", frozen(report.summary))] if report.summary.frozen else []
    lines += map(region, report.regions) if full else _left_alone(report)
    return lines


def _left_alone(report: OptimizeReport) -> list[Line]:
    """Count unchanged layers by code, unless a table lists them, and unchanged other parts."""
    is_listed = not report.summary.changes and len(report.sites) <= _REFUSALS
    sites = [] if is_listed else report.sites
    codes = Counter(site.code for site in sites if site.status != "folded")
    parts = [f"{count} {code}" for code, count in codes.most_common()]
    parts += [f"companion {c.name}" for c in report.companions if c.status != "exchanged"]
    if report.padding is not None and report.padding.status == "kept":
        parts.append("channels to pad")
    return [Line("left alone", f"{', '.join(parts)}; --details says why")] if parts else []


def _fixed(report: OptimizeReport) -> str:
    """Name the inputs that take one size only."""
    sizes = report.fixed_sizes.items()
    shown = (f"{printable(name)} takes {'x'.join(map(str, dims))} only" for name, dims in sizes)
    return ", ".join(shown) + " (--fixed-shapes)" if sizes else ""


def _cautions(report: OptimizeReport) -> list[Line]:
    """Return what a user of the result should know beside its speed."""
    lines = [Line("", spread(report)), Line("", _fixed(report)), Line("plan", report.note)]
    return [line for line in lines if line.text]


def _summary(report: OptimizeReport) -> str:
    """Count the folded layers, and name the written file."""
    counts = report.summary
    alone = f", {counts.kept} kept" if counts.kept else ""
    written = f"{report.written} is a copy of {report.model}"
    if report.written is None:
        written = "nothing written"
    elif counts.changes:
        grown = f"{size(counts.bytes_before)} -> {size(counts.bytes_after)}"
        growth = counts.bytes_after / max(1, counts.bytes_before)
        growth_note = f", {growth:.1f} times as many bytes" if growth > LARGE_GROWTH else ""
        written = f"wrote {report.written} ({grown}{growth_note})"
    nodes = f"{len(report.sites)} {kinds(report.sites)} nodes"
    return f"{counts.folded} of {nodes} folded{alone}; {written}"


def already_folded(model: str) -> Line:
    """Say that a model is not folded again."""
    return Line(
        "", f"{model} carries folds of an earlier run and is not folded again; fold the original"
    )


def spread(report: OptimizeReport) -> str:
    """Say how far Inf and NaN may spread, "" if nowhere."""
    factors = [site.spread for site in report.sites if site.spread is not None and site.spread > 1]
    if not factors:
        return ""
    return (
        f"Inf and NaN may spread within a sample: {counted(len(factors), 'fold')}, up to "
        f"{max(factors):g} times as many outputs"
    )


def _stop(stop: Stop, code: str = "") -> str:
    return f"{stop.op} {stop.node} ({code}{stop.reason})"


def region(region: RegionReport) -> Line:
    """Describe a region in one line: its nodes, the ops that it carries, and its end."""
    where = f" in {region.graph}" if region.graph else ""
    stops = first([_stop(stop) for stop in region.stops], _REASON)
    return Line(
        f"region of {first(region.folded, _NAME)}{where}",
        clauses(
            f"carries {first(region.carried, _NAME) or 'nothing'}",
            f"stops at {stops}" if stops else "",
        ),
    )


_OUTCOMES = {"exchanged": "became", "kept": "could become"}


def companion(report: CompanionReport) -> Line:
    """Describe the outcome of a companion in one line."""
    nodes = exchange = refused = ""
    if report.nodes:
        ops = " or ".join(f"({op})" if "," in op else op for op in report.became)
        nodes = f"{counted(len(report.nodes), 'node')} {_OUTCOMES[report.status]} {ops}"
    if report.gain is not None:
        smooth = report.gain_on_smooth
        exchange = f"the whole model ran at {gain(report.gain)} with it"
        exchange += f", on smooth inputs at {gain(smooth)}" if smooth is not None else ""
    if report.refused:
        stops = [_stop(stop, f"{stop.code}: ") for stop in report.refused]
        refused = f"refused: {first(stops, _REASON)}"
    return Line(f"companion {report.name}", clauses(nodes, exchange, report.reason, refused))


def padding(report: PaddingReport) -> Line:
    """Describe padded channels in one line."""
    layers = [f"{layer.node} {layer.channels} -> {layer.padded}" for layer in report.layers]
    can = "" if report.status == "padded" else "could be "
    timed = "" if report.gain is None else f"the whole model ran at {gain(report.gain)} with it"
    stops = first([_stop(stop) for stop in report.stops], _REASON)
    return Line(
        f"channels {can}padded to multiples of {report.multiple}",
        clauses(
            f"{counted(len(layers), 'layer')}: {first(layers, _NAME)}",
            timed,
            report.reason,
            f"other channels end at {stops}" if stops else "",
        ),
    )


def changes(counts: OptimizeSummary) -> str:
    """Say what would be changed."""
    parts = (
        (counts.folded, "node", "folded"),
        (counts.exchanged, "node", "exchanged"),
        (counts.frozen, "weight", "frozen"),
        (counts.padded, "layer", "padded"),
    )
    return ", ".join(f"{counted(n, kind)} would be {done}" for n, kind, done in parts if n)


def frozen(counts: OptimizeSummary) -> str:
    """Say that the interface has changed."""
    return f"{counted(counts.frozen, 'weight')} taken out of the inputs"
