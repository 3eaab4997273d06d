"""Describes the result of `optimize`: each layer, companions, regions, the search."""

from __future__ import annotations

from dataclasses import replace

from widthfold_onnx.reports.described import sizes, values, verification
from widthfold_onnx.reports.described.tuning import UNKEPT
from widthfold_onnx.reports.description import Column, Description, Detail, Line, Table, tabulated
from widthfold_onnx.reports.words import clauses, counted, first, gain, kinds, shapes, size
from widthfold_onnx.results import (
    CompanionReport,
    InspectSite,
    OptimizeReport,
    OptimizeSummary,
    PaddingReport,
    RegionReport,
    SearchReport,
    SiteReport,
    Stop,
)
from widthfold_onnx.text import printable

_NAME = 72
"""Characters of a name in a list."""

_REASON = 200
"""Characters of a name with a reason behind it."""


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


def _fixed(report: OptimizeReport) -> str:
    """Name the inputs that take one size only."""
    sizes = report.fixed_sizes.items()
    shown = (f"{printable(name)} takes {'x'.join(map(str, dims))} only" for name, dims in sizes)
    return ", ".join(shown) + " (--fixed-shapes)" if sizes else ""


def describe(report: OptimizeReport, detail: Detail) -> Description:
    """Describe the result of `optimize`."""
    full, counts, checks = detail >= Detail.FULL, report.summary, report.verification
    remarks = list(map(companion, report.companions))
    remarks += [padding(report.padding)] if report.padding is not None else []
    if any(site.code == "already-folded" for site in report.sites):
        remarks.insert(0, already_folded(report.model))
    remarks += [Line("", frozen(counts))] if counts.frozen else []
    remarks += map(region, report.regions)
    remarks += [Line("", line) for line in (spread(report), _fixed(report)) if line]
    if report.search is not None:
        remarks.append(Line(f"search on {report.search.provider}", search(report.search)))
    remarks += [Line("plan", report.note)] if report.note else []
    description = Description(
        head=Line(report.model if full else "", _summary(report)),
        assumptions=[
            *sizes.assumed(report.assumed or (checks.assumed if checks else None)),
            *values.assumed(report.values),
        ],
        tables=[*tabulated("sites", SITES, report.sites), *_by_size(report.search)],
        remarks=remarks,
    )
    if checks is None:
        return description
    verified = verification.describe(checks, detail)
    remarks.append(verified.head)
    remarks += verified.remarks if full or checks.verdict == "pass" else ()
    if report.written is not None and checks.unrun:
        remarks.append(Line("written without having been run", checks.unrun))
    if not full:
        return description
    tables = [*description.tables, *verified.tables]
    return replace(
        description, tables=tables, facts=verified.facts, certificate=verified.certificate
    )


def _by_size(search: SearchReport | None) -> list[Table]:
    """Return the gain of the whole model at each size, where it was timed at several."""
    return [] if search is None or search.whole is None else sizes.table(search.sizes)


def _summary(report: OptimizeReport) -> str:
    """Count the folded layers, and say what was written."""
    counts = report.summary
    kept = f", {counts.kept} kept" if counts.kept else ""
    written = f"{report.written} is a copy of {report.model}"
    if report.written is None:
        written = "nothing written"
    elif counts.changes:
        grown = f"{size(counts.bytes_before)} -> {size(counts.bytes_after)}"
        growth = counts.bytes_after / max(1, counts.bytes_before)
        said = f", {growth:.1f} times as many bytes" if growth > LARGE_GROWTH else ""
        written = f"wrote {report.written} ({grown}{said})"
    nodes = f"{len(report.sites)} {kinds(report.sites)} nodes"
    return f"{counts.folded} of {nodes} folded{kept}; {written}"


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
        f"Inf and NaN may spread within a sample: at {counted(len(factors), 'fold')}, to up to "
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


def search(report: SearchReport) -> str:
    """Describe the search for the fastest forms: its measurements, and its outcome."""
    if not report.layers and report.whole is None:
        return "no layer has a form to measure"
    source = "all measured before"
    if report.predicted:
        source = f"{counted(report.predicted, 'layer')} predicted for {report.target}, not measured"
    elif report.measured or report.left:
        source = f"{counted(report.measured, 'measurement')} taken"
    parts = [
        f"{counted(report.forms, 'form')} of {counted(report.layers, 'layer')}",
        source + (f" and {UNKEPT}" if report.measured and report.store_read_only else ""),
        "ended early" if report.interrupted else "",
        f"{counted(report.left, 'layer')} left to measure" if report.left else "",
    ]
    level = ""
    if report.folded_setting:
        level = (
            f"deploy it at level {report.folded_setting} "
            f"(the original is fastest at {report.original_setting})"
        )
    return clauses(", ".join(filter(None, parts)), _outcome(report), level, report.note)


def _outcome(report: SearchReport) -> str:
    """Describe the time of the whole model in the chosen forms."""
    whole = report.whole
    if whole is None:
        if report.accepted:
            return "the whole model was not timed"
        judged = " that was measured" if report.left and not report.predicted else ""
        return f"no choice of forms{judged} {'is sure to gain' if report.predicted else 'gains'}"
    if not whole.pairs:
        return f"folded, the whole model was not timed: {report.failure}"
    at = f" at {shapes(report.sizes[0].shapes)}" if len(report.sizes) > 1 else ""
    if any(row.verdict == "slower" for row in report.sizes[1:]):
        return f"folded, the whole model ran at {gain(whole)}{at}, and is slower at another size"
    if not report.accepted:
        rule = f"its low end {whole.low:.3f} is not above {report.bar:.3f}"
        control = f"up to which noise counts (A/A control {1 + report.control:.3f})"
        return f"folded, the whole model ran at {gain(whole)}{at}; {rule}, {control}"
    return f"the whole model ran at {gain(whole)} of the original's best{at}"
