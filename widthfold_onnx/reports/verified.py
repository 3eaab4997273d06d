"""Prints a verification as tables."""

from __future__ import annotations

import itertools

from widthfold_onnx.reports import wording
from widthfold_onnx.reports.text.console import printing, say, table
from widthfold_onnx.reports.text.histogram import histogram
from widthfold_onnx.reports.wording import SLOWEST, figure, size
from widthfold_onnx.results import NodeTime, OutputParity, Side, Timing, VerifyReport

_NODE = 40
"""Characters of their names."""


@printing()
def show_verify(
    report: VerifyReport, *, certificates: bool = False, latencies: bool = False
) -> None:
    """Print outputs, folded nodes, proof, time and the verdict.

    Args:
        report: the result.
        certificates: print the proved statement and the description of every fold in full.
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
        ["folded node", "what its record says"],
        [[fold.node, fold.channels or fold.fold] for fold in report.folds],
        below=True,
    )
    if report.proof is not None:
        say(f"proof: {wording.proof(report.proof)}")
        for line in wording.certificate(report.proof) if certificates else ():
            say(line)
    if report.integers is not None:
        say(f"runtime: {wording.integers(report.integers)}")
    for fold in report.folds if certificates else ():
        say(f"{fold.node}: {fold.fold}.")
    if report.timing is not None:
        _show_timing(report.timing)
        if latencies:
            columns = ["ms from", "share of runs: original", "rewritten"]
            table(columns, histogram(report.timing))
    say(f"verdict: {wording.verdict(report)}")
    for reason in report.reasons:
        say(f"  {reason}")


def _show_timing(timing: Timing) -> None:
    """Print the two models beside each other, then the times of the nodes of each."""
    sides = (("original", timing.original), ("rewritten", timing.rewritten))
    table(
        [
            *("model", "level", "p50 ms", "p90 ms", "p99 ms", "outliers", "load ms", "first run"),
            *("peak memory", "file", "ran on"),
        ],
        [
            [
                name,
                side.level,
                f"{side.median_ms:.3f}",
                f"{side.p90:.3f}",
                f"{side.p99:.3f}",
                f"{side.outliers}",
                f"{side.load_ms:.1f}",
                f"{side.first_ms:.3f}",
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
            *("slowest nodes of the original", "op", "us", "of limit", "fell back to"),
            *("of the rewritten", "op ", "us ", "of limit ", "fell back to "),
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
    if timing.limits:
        say(wording.limits(timing))
    say(f"time: {wording.speed(timing)}")
    if gpu := wording.gpu(timing):
        say(f"gpu: {gpu}")
    if timing.throughput is not None:
        say(f"throughput: {wording.throughput(timing.throughput)}")


def _node(node: NodeTime | None, side: Side) -> list[str]:
    if node is None:
        return ["", "", "", "", ""]
    where = node.provider if node in side.fallbacks else ""
    name = wording.short(node.name, _NODE)
    return [name, node.op, f"{node.us:.0f}", wording.reached(node), where]


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
