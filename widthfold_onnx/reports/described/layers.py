"""Describe the results of `inspect` and `optimize`: layers, and changes beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from widthfold_onnx.refusal import Code
from widthfold_onnx.reports.described import inputs, tuning, verification
from widthfold_onnx.reports.description import Column, Description, Line, tabulated
from widthfold_onnx.reports.words import clauses, counted, gain_text, kinds, list_text, size_text
from widthfold_onnx.results import (
    CompanionReport,
    FormChoice,
    InspectReport,
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
"""Most characters of a name in a list."""

_REASON = 200
"""Most characters of a name followed by a reason."""

_GROUPS = 5
"""Most rows of folded sites in a brief description."""

_REFUSALS = 3
"""Most rows of refused sites in a brief description: fewer, as each has a sentence."""

LARGE_GROWTH = 4
"""Bytes of the new file / bytes of the old one, above which the summary says so."""


ONLY_MULTIPLIES = "only multiplies work"
"""Remark on a fold that computes more vectors than the layer as it is."""


IF_REACHED = "if the proof reaches the fold"
"""Remark on a layer whose fold `inspect` lists, although `optimize` may leave it alone."""


def _form(form: FormChoice) -> str:
    return (
        f"{form.axis} by {form.factor}: {form.channels}, {form.flops_ratio:.2f}x MACs, "
        f"{form.lanes_ratio:.2f}x in vectors, {form.form}"
        f"{', guarded' if form.guard else ''}"
        f"{f'; {ONLY_MULTIPLIES}' if form.only_multiplies else ''}"
    )


def _folds(site: InspectSite) -> list[str]:
    """Return the fold of an earlier run, or the cheapest fold along each axis."""
    if site.earlier_fold is not None:
        return [f"folded: {site.earlier_fold}"]
    return [*map(_form, site.choices)]


def _refusals(site: InspectSite) -> list[str]:
    return [f"no fold of {axis}: {reason}" for axis, reason in site.refusals.items()]


def _forms(site: InspectSite) -> list[str]:
    """Return geometry, folds, refusals and hint, one line each."""
    lines = (site.attributes, *_folds(site), *_refusals(site), site.hint)
    return [line for line in lines if line]


def _cheapest_form(site: InspectSite) -> list[str]:
    """Return the cheapest fold; or why the most promising axis has none, and the hint."""
    return _folds(site)[:1] or [line for line in (*_refusals(site)[:1], site.hint) if line]


def _shape(dims: Sequence[int | str] | None) -> str:
    return "" if dims is None else "x".join(map(str, dims))


LAYERS: tuple[Column[InspectSite], ...] = (
    Column("node", lambda site: site.node, names=True),
    Column("graph", lambda site: site.graph),
    Column("input", lambda site: _shape(site.input_shape)),
    Column("weight", lambda site: _shape(site.weight_shape)),
    Column("channels", lambda site: site.channels),
    Column("MACs", lambda site: "" if site.flops is None else f"{site.flops:,}"),
)
INSPECTED = (*LAYERS, Column("geometry, then folds, cheapest first", _forms, sentences=True))
BRIEFLY_INSPECTED = (*LAYERS, Column("cheapest fold", _cheapest_form, sentences=True))


def describe_inspection(report: InspectReport, *, is_full: bool) -> Description:
    """Describe the result of `inspect`; briefly, with the cheapest fold of each layer."""
    remarks = [companion(outcome, is_full=True) for outcome in report.companions]
    if report.padding is not None:
        remarks.append(padding(report.padding, is_full=is_full))
    if any(site.earlier_fold is not None for site in report.sites):
        remarks.append(_already_folded(report.model))
    remarks += [Line("", remark) for remark in report.remarks]
    return Description(
        head=Line(
            "", f"{report.model}: {report.nodes} nodes, opset {report.opset}; {_foldable(report)}"
        ),
        assumptions=inputs.assumptions(report.assumed, report.values),
        tables=tabulated("layers", INSPECTED if is_full else BRIEFLY_INSPECTED, report.sites),
        remarks=[*_meanings(report), *remarks],
    )


def _foldable(report: InspectReport) -> str:
    """Count the layers that can be folded, and those of them that `optimize` may leave alone."""
    cheapest = [site.choices[0] for site in report.sites if site.choices]
    text = f"{len(cheapest)} of {len(report.sites)} {kinds(report.sites)} can be folded"
    unsure = sum(site.must_be_reached for site in report.sites)
    multiplying = sum(form.only_multiplies for form in cheapest)
    if unsure:
        text += f", {unsure} of them {IF_REACHED}"
    verb = "multiplies" if multiplying == 1 else "multiply"
    return clauses(text, f"{counted(multiplying, 'fold')} only {verb} work" if multiplying else "")


def _meanings(report: InspectReport) -> list[Line]:
    """Explain the remarks on cheapest folds that the table contains."""
    cheapest = [site.choices[0] for site in report.sites if site.choices]
    lines = []
    if any(site.must_be_reached for site in report.sites):
        text = (
            "a guard, or a branch of the model, chooses at each run whether the fold computes; "
            "optimize folds such a layer only if it tries sizes that choose the fold "
            "(--input-shape)"
        )
        lines.append(Line(IF_REACHED, text))
    if any(form.only_multiplies for form in cheapest):
        text = (
            "the fold computes more vectors of 16 channels than the layer as it is; optimize "
            "without --factor measures which folds are faster"
        )
        lines.append(Line(ONLY_MULTIPLIES, text))
    return lines


def _gains(sites: Sequence[SiteReport]) -> str:
    """Return the speed-up of a site with its interval; for several sites, the range."""
    gains = sorted((site.gain for site in sites if site.gain is not None), key=lambda g: g.ratio)
    if len(gains) < 2:
        return gain_text(gains[0]) if gains else ""
    predicted = " predicted" if any(item.predicted for item in gains) else ""
    return f"{gains[0].ratio:.2f}x to {gains[-1].ratio:.2f}x{predicted}"


def _fold(site: SiteReport) -> str:
    """Return axis and factor, or the kind of a form that moves no positions, e.g. "lifted"."""
    if (site.factor or 1) > 1:
        return f"{site.axis} by {site.factor}"
    return (site.form or "").partition(" ")[2]


def _reason(site: SiteReport) -> str:
    return "" if site.status == "folded" else f"{site.code}: {site.reason}"


SITES: tuple[Column[SiteReport], ...] = (
    Column("node", lambda site: site.node, names=True),
    Column("graph", lambda site: site.graph),
    Column("status", lambda site: site.status),
    Column("axis", lambda site: site.axis or ""),
    Column("factor", lambda site: str(site.factor or "")),
    Column("form", lambda site: site.form or ""),
    Column("MACs", lambda site: "" if site.flops_ratio is None else f"{site.flops_ratio:.2f}x"),
    Column("alone", lambda site: _gains([site])),
    Column("why", lambda site: _reason(site) or site.reason, sentences=True),
)

GROUPS: tuple[Column[Sequence[SiteReport]], ...] = (
    Column("node", lambda group: group[0].node, names=True),
    Column("graph", lambda group: group[0].graph),
    Column("nodes alike", lambda group: str(len(group)) if len(group) > 1 else ""),
    Column("fold", lambda group: _fold(group[0])),
    Column("alone", _gains),
    Column("sizes", lambda group: "guarded" if group[0].guard else ""),
    Column("why", lambda group: _reason(group[0]), sentences=True),
)
"""Sites with the same outcome, in one row."""


def describe_optimization(report: OptimizeReport, *, is_full: bool) -> Description:
    """Describe the result of `optimize`.

    A brief description holds what decides whether the result is deployed: changes, speed, sizes,
    level and verdict.
    """
    checks, search = report.verification, report.search
    tables = tabulated("layers", SITES, report.sites)
    if not is_full:
        tables = tabulated("layers", GROUPS, _groups(report))
    elif search is not None and search.whole is not None:
        tables += inputs.size_table(search.sizes)
    remarks = [
        *_changes(report, is_full=is_full),
        *tuning.lines(search, is_full=is_full),
        *_cautions(report),
    ]
    head = Line(report.model if is_full else "", _summary(report))
    sizes, verified = report.assumed, Description(head)
    if checks is not None:
        sizes, verified = sizes or checks.assumed, verification.describe(checks, is_full=is_full)
        remarks.append(verified.head)
        remarks += verified.remarks if is_full or checks.verdict == "pass" else ()
        if report.written is not None and checks.unrun:
            remarks.append(Line("written without having been run", checks.unrun))
    return replace(
        verified,
        head=head,
        assumptions=inputs.assumptions(sizes, report.values),
        tables=[*tables, *verified.tables] if is_full else tables,
        facts=[*map(region, report.regions), *verified.facts] if is_full else (),
        remarks=remarks,
    )


def _groups(report: OptimizeReport) -> list[list[SiteReport]]:
    """Return the rows of a brief table: folded sites; if nothing was changed, common refusals.

    If they are many, sites with the same outcome share a row.
    """
    is_changed = report.summary.is_changing
    limit = _GROUPS if is_changed else _REFUSALS
    sites = [
        s for s in report.sites if s.status == "folded" or s.code == Code.MISFIT or not is_changed
    ]
    groups: dict[tuple[object, ...], list[SiteReport]] = {}
    for site in sites:
        is_alone = len(sites) <= limit or site.code == Code.MISFIT
        name, outcome = (site.graph, site.node), (site.code, site.axis, site.factor, site.guard)
        groups.setdefault(name if is_alone else outcome, []).append(site)
    rows = sorted(groups.values(), key=lambda group: (group[0].code != Code.MISFIT, -len(group)))
    return rows[:limit]


def _changes(report: OptimizeReport, *, is_full: bool) -> list[Line]:
    """Return the lines on what was changed or left alone beside the sites."""
    lines = []
    if any(site.code == Code.ALREADY_FOLDED for site in report.sites):
        lines.append(_already_folded(report.model))
    lines += [
        companion(outcome, is_full=is_full)
        for outcome in report.companions
        if is_full or outcome.status == "exchanged"
    ]
    if report.padding is not None and (is_full or report.padding.status == "padded"):
        lines.append(padding(report.padding, is_full=is_full))
    lines += [Line("", interface_change(report.summary))] if report.summary.frozen else []
    return [*lines, *([] if is_full else _unlisted(report))]


def _unlisted(report: OptimizeReport) -> list[Line]:
    """Count the sites that the brief table does not list, and name what else is unchanged."""
    listed_codes = Counter(site.code for group in _groups(report) for site in group)
    codes = Counter(site.code for site in report.sites) - listed_codes
    folds = codes.pop("folded", 0)
    parts = [f"{count} {code}" for code, count in codes.most_common()]
    parts += [f"companion {c.name}" for c in report.companions if c.status != "exchanged"]
    if report.padding is not None and report.padding.status == "kept":
        parts.append("channels to pad")
    lines = [
        Line("", f"{folds} of the folded nodes are not listed; see --details" if folds else ""),
        Line("left alone", f"{', '.join(parts)}; --details says why" if parts else ""),
    ]
    return [line for line in lines if line.text]


def _cautions(report: OptimizeReport) -> list[Line]:
    """Return warnings and remarks for users of the result."""
    spreads = [site.spread for site in report.sites if site.spread is not None and site.spread > 1]
    spread = (
        f"Inf and NaN may spread within a sample: {counted(len(spreads), 'fold')}, up to "
        f"{max(spreads, default=0):g} times as many outputs"
    )
    sizes = (
        f"{printable(name)} takes {_shape(dims)} only" for name, dims in report.fixed_sizes.items()
    )
    guards = sum(bool(site.guard) for site in report.sites)
    guarded = f"{counted(guards, 'fold')} with a guard, kept only {IF_REACHED}"
    lines = [
        Line("", guarded if guards and report.written is None else ""),
        Line("", spread if spreads else ""),
        Line("", f"{', '.join(sizes)} (--fixed-shapes)" if report.fixed_sizes else ""),
        Line("plan", report.note),
        *(Line("", remark) for remark in report.remarks),
    ]
    return [line for line in lines if line.text]


def _summary(report: OptimizeReport) -> str:
    """Count the folded layers, and name the written file."""
    counts = report.summary
    delivery = f"{report.written} is a copy of {report.model}"
    if report.written is None:
        delivery = "nothing written"
    elif counts.is_changing:
        growth = counts.bytes_after / max(1, counts.bytes_before)
        delivery = (
            f"wrote {report.written} "
            f"({size_text(counts.bytes_before)} -> {size_text(counts.bytes_after)}"
            f"{f', {growth:.1f} times as many bytes' if growth > LARGE_GROWTH else ''})"
        )
    kept_count = f", {counts.kept} kept" if counts.kept else ""
    nodes = f"{len(report.sites)} {kinds(report.sites)} nodes"
    is_tried = report.written is not None or report.verification is not None
    folded = "folded" if is_tried or not counts.folded else "would be folded"
    return f"{counts.folded} of {nodes} {folded}{kept_count}; {delivery}"


def _already_folded(model: str) -> Line:
    """Say that a model is not folded again."""
    return Line(
        "", f"{model} carries folds of an earlier run and is not folded again; fold the original"
    )


def _stop(stop: Stop, code: str = "") -> str:
    return f"{stop.op} {stop.node} ({code}{stop.reason})"


def region(report: RegionReport) -> Line:
    """Describe a region in one line: its nodes, the ops that it carries, and its end."""
    where = f" in {report.graph}" if report.graph else ""
    stops = list_text([_stop(stop) for stop in report.stops], _REASON)
    return Line(
        f"region of {list_text(report.folded, _NAME)}{where}",
        clauses(
            f"carries {list_text(report.carried, _NAME) or 'nothing'}",
            f"stops at {stops}" if stops else "",
        ),
    )


_OUTCOMES = {"exchanged": "became", "kept": "could become"}


def companion(report: CompanionReport, *, is_full: bool) -> Line:
    """Describe the outcome of a companion in one line; briefly, without its gain and refusals."""
    label = f"companion {report.name}"
    nodes = exchange = refusals = ""
    if report.nodes:
        ops = " or ".join(f"({op})" if "," in op else op for op in report.replacements)
        nodes = f"{counted(len(report.nodes), 'node')} {_OUTCOMES[report.status]} {ops}"
    if not is_full:
        return Line(label, nodes)
    if report.gain is not None:
        smooth = report.gain_on_smooth
        exchange = f"the whole model ran at {gain_text(report.gain)} with it"
        exchange += f", on smooth inputs at {gain_text(smooth)}" if smooth is not None else ""
    if report.refused:
        stops = [_stop(stop, f"{stop.code}: ") for stop in report.refused]
        refusals = f"refused: {list_text(stops, _REASON)}"
    return Line(label, clauses(nodes, exchange, report.reason, refusals))


def padding(report: PaddingReport, *, is_full: bool) -> Line:
    """Describe padded channels in one line; briefly, without gain and stops."""
    layers = [f"{layer.node} {layer.channels} -> {layer.padded}" for layer in report.layers]
    modality = "" if report.status == "padded" else "could be "
    speed = stops = ""
    if is_full:
        stops = list_text([_stop(stop) for stop in report.stops], _REASON)
        gain = report.gain
        speed = "" if gain is None else f"the whole model ran at {gain_text(gain)} with it"
    return Line(
        f"channels {modality if layers else 'not '}padded to multiples of {report.multiple}",
        clauses(
            f"{counted(len(layers), 'layer')}: {list_text(layers, _NAME)}" if layers else "",
            speed,
            report.reason,
            f"{'other ' if layers else ''}channels end at {stops}" if stops else "",
        ),
    )


def changes_text(counts: OptimizeSummary) -> str:
    """Say what would be changed."""
    parts = (
        (counts.folded, "node", "folded"),
        (counts.exchanged, "node", "exchanged"),
        (counts.frozen, "weight", "frozen"),
        (counts.padded, "layer", "padded"),
    )
    return ", ".join(f"{counted(n, kind)} would be {change}" for n, kind, change in parts if n)


def interface_change(counts: OptimizeSummary) -> str:
    """Say how the interface has changed."""
    return f"{counted(counts.frozen, 'weight')} taken out of the inputs"
