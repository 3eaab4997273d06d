"""Renders Markdown for a pull-request comment or a step summary: verdict first, 60 kB at most.

Names from a model stand in <code> with every sign as a character reference: neither Markdown, HTML,
mathematics, mentions nor links come to life there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from widthfold_onnx.reports import wording
from widthfold_onnx.reports.files import signature
from widthfold_onnx.results import InspectReport, OptimizeReport, Side, Timing, VerifyReport

Item = TypeVar("Item")

LIMIT = 60_000
"""Bytes; GitHub refuses a comment of more than 65 536 characters."""

_OPEN_ROWS = 10
_ROW_LIMITS = (200, 100, 50, 20, 5)
_SIGN = re.compile(r"[^\w /-]|_")
_SIGNS = {"pass": "✅", "fail": "❌", "unverified": "⚠️"}


def render(report: VerifyReport | OptimizeReport | InspectReport) -> str:
    """Render the report; tables that do not fit are cut, and say so."""
    text = ""
    for rows in _ROW_LIMITS:
        text = _Page(rows).of(report)
        if len(text.encode()) < LIMIT:
            break
    return text


def code(text: str, limit: int = 80) -> str:
    """Return text of unknown origin as code without any markup in it."""
    shown = _SIGN.sub(lambda sign: f"&#{ord(sign[0])};", wording.short(text, limit))
    return f"<code>{shown}</code>" if text else ""


class _Page:
    """Writes one report with at most `rows` rows in each table."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def of(self, report: VerifyReport | OptimizeReport | InspectReport) -> str:
        parts = [signature(report.schema)]
        if isinstance(report, VerifyReport):
            parts += self._verify(report)
        elif isinstance(report, OptimizeReport):
            parts += self._optimize(report)
        else:
            parts += self._inspect(report)
        return "\n\n".join(part for part in parts if part) + "\n"

    def _verify(self, report: VerifyReport) -> list[str]:
        env = report.environment
        where = ", ".join(
            code(part)
            for part in (
                f"widthfold {env.widthfold}",
                f"onnxruntime {env.onnxruntime}",
                wording.provider(env),
                env.machine,
            )
        )
        return [
            f"{_SIGNS[report.verdict]} **{report.verdict}**: {wording.meaning(report)} "
            f"({code(report.original)} → {code(report.rewritten)})",
            _bullets(report.reasons, self.rows),
            f"Proof: {code(wording.proof(report.proof), 400)}" if report.proof else "",
            f"Runtime: {code(wording.integers(report.integers), 300)}" if report.integers else "",
            self._timing(report.timing),
            _slowest(report.timing) if report.timing else "",
            self._table(
                "outputs",
                ["output", "level", "max abs", "max rel", "allowed", "ULP", "passed", "note"],
                report.outputs,
                lambda row: [
                    code(row.name),
                    row.level,
                    wording.figure(row.max_abs),
                    wording.figure(row.max_rel),
                    wording.figure(row.tolerance),
                    wording.ulp(row),
                    "yes" if row.passed else "**no**",
                    code(row.note) if row.passed else code(wording.difference(row), 200),
                ],
            ),
            self._table(
                "folded nodes",
                ["folded node", "what its record says"],
                report.folds,
                lambda fold: [code(fold.node), code(wording.told(fold), 400)],
            ),
            f"{wording.counted(report.input_sets, 'input set')}; {where}",
            f"Repeat: {code(env.command, 500)}" if env.command else "",
        ]

    def _timing(self, timing: Timing | None) -> str:
        if timing is None:
            return ""
        before, after = timing.original, timing.rewritten
        head = (
            f"**{timing.verdict}**: {timing.speedup:.3f}x, 95 % [{timing.low:.3f}, "
            f"{timing.high:.3f}], A/A control ±{timing.control:.1%}, {wording.pairs(timing)}"
        )
        rows = [
            ["p50 ms", f"{before.median_ms:.3f}", f"{after.median_ms:.3f}"],
            ["p90 ms", f"{before.p90:.3f}", f"{after.p90:.3f}"],
            ["p99 ms", f"{before.p99:.3f}", f"{after.p99:.3f}"],
            ["outliers", f"{before.outliers}", f"{after.outliers}"],
            ["load ms", f"{before.load_ms:.1f}", f"{after.load_ms:.1f}"],
            ["first run ms", f"{before.first_ms:.3f}", f"{after.first_ms:.3f}"],
            ["peak MiB", f"{before.peak_mib:.1f}", f"{after.peak_mib:.1f}"],
            ["file", wording.size(before.file_bytes), wording.size(after.file_bytes)],
            ["best level", code(before.level), code(after.level)],
            ["nodes on", _placement(before), _placement(after)],
        ]
        shapes = wording.inputs(timing).removeprefix(", inputs ")
        head += f", inputs {code(shapes, 200)}" if shapes else ""
        note = f"\n\n{code(timing.note, 300)}" if timing.note else ""
        if gpu := wording.gpu(timing):
            note += f"\n\nGPU: {code(gpu, 500)}"
        if timing.throughput is not None:
            note += f"\n\nThroughput: {wording.throughput(timing.throughput)}"
        if timing.baseline is not None:
            note += f"\n\n{code(wording.baseline(timing.baseline), 500)}"
        return f"{head}{note}\n\n{_grid(['', 'original', 'rewritten'], rows)}"

    def _optimize(self, report: OptimizeReport) -> list[str]:
        counts = report.summary
        written = f"wrote {code(report.written)}" if report.written else "nothing written"
        proof = report.verification
        timed = report.search is not None
        return [
            f"**{counts.folded} of {len(report.sites)}** {wording.kinds(report.sites)} nodes of "
            f"{code(report.model)} folded, {counts.kept} kept, {counts.refused} refused; {written}",
            *(code(wording.companion(found), 400) for found in report.companions),
            wording.frozen(counts) if counts.frozen else "",
            wording.spread(report.sites),
            wording.search(report.search) if report.search is not None else "",
            self._table(
                "sites",
                ["node", "status", "axis", "factor", "MACs", *(["alone"] if timed else []), "why"],
                report.sites,
                lambda site: [
                    code(f"{site.node} in {site.graph}" if site.graph else site.node),
                    site.status,
                    code(site.axis or ""),
                    "" if site.factor is None else str(site.factor),
                    "" if site.flops_ratio is None else f"{site.flops_ratio:.2f}x",
                    *(["" if site.gain is None else wording.gain(site.gain)] if timed else []),
                    code(site.reason, 200),
                ],
            ),
            self._table(
                "regions",
                ["folded", "carried", "stops at"],
                report.regions,
                lambda region: [
                    code(", ".join(region.folded), 200),
                    code(", ".join(region.carried) or "nothing", 200),
                    code("; ".join(f"{s.op} {s.node}: {s.reason}" for s in region.stops), 300),
                ],
            ),
            *(self._verify(proof) if proof is not None else []),
        ]

    def _inspect(self, report: InspectReport) -> list[str]:
        return [
            f"{code(report.model)}: {report.nodes} nodes, {len(report.sites)} "
            f"{wording.kinds(report.sites)}, opset {report.opset}",
            *(code(wording.companion(found), 400) for found in report.companions),
            self._table(
                "sites",
                ["node", "channels", "cheapest fold", "not folded along"],
                report.sites,
                lambda site: [
                    code(f"{site.node} in {site.graph}" if site.graph else site.node),
                    code(site.channels),
                    *(
                        f"{code(c.axis)} by {c.factor}: {code(c.channels)}, "
                        f"{c.flops_ratio:.2f}x MACs"
                        for c in site.choices[:1]
                    ),
                    *([] if site.choices else [code(site.folded_as or "none")]),
                    ", ".join(code(f"{a}: {why}", 200) for a, why in site.refusals.items())
                    + (f"; {code(site.hint, 200)}" if site.hint else ""),
                ],
            ),
        ]

    def _table(
        self,
        title: str,
        head: Sequence[str],
        items: Sequence[Item],
        cells: Callable[[Item], Sequence[str]],
    ) -> str:
        if not items:
            return ""
        grid = _grid(head, [cells(item) for item in items[: self.rows]])
        if rest := len(items) - self.rows:
            grid += f"\n\n{rest} more {title} are not shown." if rest > 0 else ""
        if len(items) <= _OPEN_ROWS:
            return grid
        return f"<details><summary>{len(items)} {title}</summary>\n\n{grid}\n\n</details>"


def _placement(side: Side) -> str:
    return ", ".join(f"{code(name)}: {count}" for name, count in side.providers.items())


def _slowest(timing: Timing) -> str:
    columns = 5 if timing.limits else 4
    rows = [
        [code(node.name), name, code(node.op), f"{node.us:.0f}", wording.reached(node)][:columns]
        for name, node in wording.slowest(timing)
    ]
    head = ["slowest nodes", "model", "op", "us", "of limit"][:columns]
    return f"{_grid(head, rows)}\n\n{wording.limits(timing)}" if rows else ""


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _bullets(reasons: Sequence[str], most: int) -> str:
    lines = [f"- {code(reason, 300)}" for reason in reasons[:most]]
    if len(reasons) > most:
        lines.append(f"- {len(reasons) - most} more are not shown.")
    return "\n".join(lines)
