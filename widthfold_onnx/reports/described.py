"""Describes results as tables and lines, which a terminal, a pipe and Markdown show alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from widthfold_onnx.reports import wording
from widthfold_onnx.reports.wording import figure, size
from widthfold_onnx.results import (
    InspectReport,
    InspectSite,
    OptimizeReport,
    OutputParity,
    SiteReport,
    Timing,
    TunedModel,
    TuneReport,
    VerifyReport,
)

Report = VerifyReport | OptimizeReport | InspectReport | TuneReport

Cell = str | list[str]
"""The text of a cell, or its lines."""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: what its rows are.
        columns: headings.
        rows: cells by row.
        sentences: whether the last column holds sentences.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    sentences: bool


@dataclass(frozen=True)
class Description:
    """The tables and lines on a result; names in them are as the model has them.

    Attributes:
        tables: those that have rows.
        before: lines that lead to the head.
        head: the sum of all.
        after: lines that add to it.
    """

    tables: Sequence[Table]
    before: Sequence[str] = ()
    head: str = ""
    after: Sequence[str] = ()


def described(report: Report, *, full: bool = False, latencies: bool = False) -> Description:
    """Describe a result.

    Args:
        report: the result.
        full: of a verification say all of the proof, the folds and the conditions, of
            `optimize` all of its verification.
        latencies: draw the latencies of both models in one histogram.
    """
    match report:
        case VerifyReport():
            return _verified(report, full=full, latencies=latencies)
        case OptimizeReport():
            return _optimized(report, full=full)
        case InspectReport():
            return _inspected(report)
        case TuneReport():
            return _tuned(report)
        case _:
            assert_never(report)


def site_table(sites: Sequence[SiteReport]) -> list[Table]:
    """Return the outcome of every site."""
    columns = ["node", "status", "axis", "factor", "form", "MACs", "alone", "why"]
    return table_of("sites", columns, map(_site, sites), sentences=True)


def table_of(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, sentences: bool = False
) -> list[Table]:
    """Return a table without the columns that are empty everywhere; none if nothing is left."""
    rows = list(rows)
    used = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    cells = [[row[i] for i in used] for row in rows]
    sentences = sentences and used[-1:] == [len(columns) - 1]
    return [Table(title, [columns[i] for i in used], cells, sentences)] if used else []


def _verified(report: VerifyReport, *, full: bool, latencies: bool) -> Description:
    outputs = ["output", "runtime level", "max abs", "max rel", "allowed", "ulp", "cosine"]
    tables = table_of(
        "outputs", [*outputs, "passed", "note"], map(_output, report.outputs), sentences=True
    )
    tables += table_of(
        "folded nodes",
        ["folded node", "what its record says"],
        [[f.node, wording.told(f) if full else f.channels or f.fold] for f in report.folds],
        sentences=True,
    )
    lines = []
    if report.proof is not None:
        lines.append(f"proof: {wording.proof(report.proof)}")
    if report.integers is not None:
        lines.append(f"runtime: {wording.integers(report.integers)}")
    if (timing := report.timing) is not None:
        tables += _timed(timing)
        lines += filter(None, [wording.limits(timing)])
        lines.append(f"time: {wording.speed(timing)}")
        if gpu := wording.gpu(timing):
            lines.append(f"gpu: {gpu}")
        if timing.throughput is not None:
            lines.append(f"throughput: {wording.throughput(timing.throughput)}")
        if latencies:
            from widthfold_onnx.reports.text.histogram import histogram  # needs numpy

            columns = ["ms from", "share of runs: original", "rewritten"]
            tables += table_of("latencies", columns, histogram(timing))
    if full:
        lines += wording.certificate(report.proof) if report.proof is not None else ()
        env = report.environment
        versions = f"widthfold {env.widthfold}, onnx {env.onnx}, onnxruntime {env.onnxruntime}"
        lines.append(f"with: {versions}, {wording.provider(env)}, {env.machine}")
        lines += [f"repeat: {env.command}"] if env.command else []
    reasons = [f"  {reason}" for reason in report.reasons]
    return Description(tables, lines, f"verdict: {wording.verdict(report)}", reasons)


def _output(row: OutputParity) -> list[Cell]:
    return [
        row.name,
        row.level,
        figure(row.max_abs),
        figure(row.max_rel),
        figure(row.tolerance),
        wording.ulp(row),
        "-" if row.cosine is None else f"{row.cosine:.7f}",
        "pass" if row.passed else "fail",
        row.note if row.passed else wording.difference(row),
    ]


def _timed(timing: Timing) -> list[Table]:
    """Return the models, and the slowest nodes of each."""
    models = [
        [
            name,
            side.level,
            *(f"{ms:.3f}" for ms in (side.median_ms, side.p90, side.p99)),
            str(side.outliers),
            f"{side.load_ms:.1f}",
            f"{side.first_ms:.3f}",
            f"{side.peak_mib:.0f} MiB",
            size(side.file_bytes),
            ", ".join(
                f"{count} on {where.removesuffix('ExecutionProvider')}"
                for where, count in side.providers.items()
            ),
        ]
        for name, side in timing.sides.items()
    ]
    nodes = [
        [
            node.name,
            name,
            node.op,
            f"{node.us:.0f}",
            wording.reached(node),
            node.provider if node in timing.sides[name].fallbacks else "",
        ]
        for name, node in wording.slowest(timing)
    ]
    measured = ["p50 ms", "p90 ms", "p99 ms", "outliers", "load ms", "first run ms", "peak memory"]
    where = ["slowest nodes", "model", "op", "us", "of limit", "fell back to"]
    return [
        *table_of("models", ["model", "level", *measured, "file", "ran on"], models),
        *table_of("nodes", where, nodes),
    ]


def _optimized(report: OptimizeReport, *, full: bool) -> Description:
    counts, tables = report.summary, site_table(report.sites)
    line = f"{report.model}: " if full else ""
    line += f"{counts.folded} of {len(report.sites)} {wording.kinds(report.sites)} nodes folded"
    line += f", {counts.kept} kept" if counts.kept else ""
    if report.written is None:
        line += "; nothing written"
    elif counts.changes:
        sizes = f"{size(counts.bytes_before)} -> {size(counts.bytes_after)}"
        line += f"; wrote {report.written} ({sizes})"
    else:
        line += f"; {report.written} is a copy of {report.model}"
    after = []
    if any(site.code == "already-folded" for site in report.sites):
        after.append(wording.already_folded(report.model))
    after += map(wording.companion, report.companions)
    after += [wording.frozen(counts)] if counts.frozen else []
    after += map(wording.region, report.regions)
    after += filter(None, [wording.spread(report.sites)])
    after += [wording.search(report.search)] if report.search is not None else []
    if (verified := report.verification) is not None:
        said = _verified(verified, full=full, latencies=False)
        tables += said.tables if full else ()
        after += [*(said.before if full else ()), said.head]
        after += said.after if full or verified.verdict == "pass" else ()
        if report.written is not None and verified.unrun:
            after.append(f"written without having been run: {verified.unrun}")
    return Description(tables, head=line, after=after)


def _site(site: SiteReport) -> list[Cell]:
    return [
        _where(site),
        site.status,
        site.axis or "",
        "" if site.factor is None else str(site.factor),
        site.form or "",
        "" if site.flops_ratio is None else f"{site.flops_ratio:.2f}x",
        "" if site.gain is None else wording.gain(site.gain),
        site.reason if site.status == "folded" else f"{site.code}: {site.reason}",
    ]


def _where(site: SiteReport | InspectSite) -> str:
    return f"{site.node} in {site.graph}" if site.graph else site.node


def _inspected(report: InspectReport) -> Description:
    columns = ["node", "input", "weight", "channels", "of 8-wide tiles", "MACs"]
    last = "geometry, then folds, cheapest first"
    rows: list[list[Cell]] = [
        [
            _where(site),
            _shape(site.input_shape),
            _shape(site.weight_shape),
            site.channels,
            site.alignment,
            "" if site.flops is None else f"{site.flops:,}",
            _folds(site),
        ]
        for site in report.sites
    ]
    found = f"{len(report.sites)} {wording.kinds(report.sites)}"
    after = list(map(wording.companion, report.companions))
    if any(site.folded_as is not None for site in report.sites):
        after.append(wording.already_folded(report.model))
    return Description(
        table_of("sites", [*columns, last], rows, sentences=True),
        head=f"{report.model}: {report.nodes} nodes, {found}, opset {report.opset}",
        after=after,
    )


def _shape(dims: Sequence[int | str] | None) -> str:
    return "" if dims is None else "x".join(map(str, dims))


def _folds(site: InspectSite) -> list[str]:
    folds = [
        f"{c.axis} by {c.factor}: {c.channels}, {c.flops_ratio:.2f}x MACs, {c.form}"
        for c in site.choices
    ]
    if site.folded_as is not None:
        folds = [f"folded: {site.folded_as}"]
    refusals = [f"no fold of {axis}: {reason}" for axis, reason in site.refusals.items()]
    return [line for line in (site.attributes, *folds, *refusals, site.hint) if line]


def _tuned(report: TuneReport) -> Description:
    columns = ["model", "layers", "forms", "new", "known before", "skipped", "failed", "left"]
    lines = [
        f"{machine.measured} measurement(s) on {machine.provider}: {machine.machine}"
        for machine in report.machines
    ]
    if report.store_read_only and any(machine.measured for machine in report.machines):
        lines.append(wording.UNKEPT)
    rows = map(_tuned_model, report.models)
    return Description(table_of("models", [*columns, "why"], rows, sentences=True), after=lines)


def _tuned_model(model: TunedModel) -> list[Cell]:
    if model.reason:
        return [model.model, *[""] * 7, model.reason]
    counts = (model.layers, model.forms, model.measured, model.known, model.skipped, model.failed)
    return [model.model, *map(str, counts), str(model.left or ""), ""]
