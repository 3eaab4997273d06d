"""Draws pictures of a timing and of an error distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from widthfold_onnx.reports.page.svg import AFTER, BEFORE, INK, MUTED, RULE, draw
from widthfold_onnx.reports.words import short
from widthfold_onnx.results import NodeTime, Timing
from widthfold_onnx.runtime.intervals import noise

WIDTH = 4.4
"""Inches; at 8 pt letters this is legible on a phone without turning it."""

MOST_NODES = 15
_BINS = 40
_NAME = 44


def speed(ratio: float, low: float, high: float, control: float, key: str) -> Markup:
    """Draw the speed-up with its interval, over the band in which two copies of one model differ.

    The dashed lines are where a verdict begins, which is further out than the band. A control of 0
    is an unknown one: no band is drawn.
    """
    band = (1 / (1 + control), 1 + control)
    bars = (1 / noise(control), noise(control))

    def paint(axes: Axes) -> None:
        if control:
            axes.axvspan(*band, color=RULE, label="A/A control", lw=0)
        axes.axvline(1, color=MUTED, lw=1)
        for bar, label in zip(bars, ("verdict", "_"), strict=True):
            axes.axvline(bar, color=INK, lw=1, ls="--", label=label)
        axes.plot([low, high], [0, 0], color=AFTER, lw=5, solid_capstyle="butt",
                  label="95 % interval")  # fmt: skip
        axes.plot(ratio, 0, "|", color=INK, ms=18, mew=1.5, label="mean")
        least, most = min(low, bars[0]), max(high, bars[1])
        margin = 0.12 * (most - least) + 0.01
        axes.set(xlim=(least - margin, most + margin), ylim=(-1, 1), yticks=[])
        axes.set_xlabel("original / rewritten (all of the interval right of the lines: faster)")
        axes.spines["left"].set_visible(False)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, fontsize=7,
                    columnspacing=1, handlelength=1.6)  # fmt: skip

    title = (
        f"Speed-up {ratio:.3f}, interval {low:.3f} to {high:.3f}, "
        f"{f'A/A control {band[0]:.3f} to {band[1]:.3f}, ' if control else ''}"
        f"a verdict needs all of the interval below {bars[0]:.3f} or above {bars[1]:.3f}"
    )
    return draw(key, title, (WIDTH, 1.35), paint)


def latency(timing: Timing, key: str) -> Markup:
    """Draw both latency distributions over one axis; the slowest percent is cut off."""
    sides = (("original", timing.original, BEFORE), ("rewritten", timing.rewritten, AFTER))
    samples = [value for _, side, _ in sides for value in side.runs_ms]
    low = min(samples, default=0.0)
    high = max(timing.original.p99, timing.rewritten.p99) * 1.05
    cut = sum(value > high for value in samples)

    def paint(axes: Axes) -> None:
        edges = np.linspace(low, max(high, low + 1e-6), _BINS + 1)
        for name, side, colour in sides:
            inside = [value for value in side.runs_ms if value <= high]
            axes.hist(inside, bins=edges.tolist(), color=colour, alpha=0.5, label=name)
            marks = ((side.median_ms, "-"), (side.p90, "--"), (side.p99, ":"))
            for value, line in marks:
                axes.axvline(value, color=colour, ls=line, lw=1.5)
        for line, label in (("-", "p50"), ("--", "p90"), (":", "p99")):
            axes.plot([], [], color=INK, ls=line, lw=1.5, label=label)
        left_out = f"; slower, beyond the right edge: {cut}" if cut else ""
        axes.set(xlabel=f"ms per run{left_out}", ylabel="runs")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=5, fontsize=7,
                    columnspacing=1, handlelength=1.6)  # fmt: skip

    title = "Latency: " + "; ".join(
        f"{name} p50 {side.median_ms:.3f} ms, p90 {side.p90:.3f} ms, p99 {side.p99:.3f} ms"
        for name, side, _ in sides
    )
    return draw(key, title, (WIDTH, 2.4), paint)


def nodes(timing: Timing, key: str) -> Markup:
    """Draw the times of the slowest nodes of either model, before and after."""
    rows = _slowest(timing.original.nodes, timing.rewritten.nodes)

    def paint(axes: Axes) -> None:
        where = np.arange(len(rows)) * 1.0
        for offset, colour, name, at in (
            (0.05, BEFORE, "original", 1),
            (0.3, AFTER, "rewritten", 2),
        ):
            axes.barh(where + offset, [row[at] for row in rows], 0.25, color=colour, label=name)
        for y, (name, before, after) in zip(where, rows, strict=True):
            axes.text(0, y - 0.12, f" {name}", va="bottom", ha="left", fontsize=7)
            for offset, value in ((0.05, before), (0.3, after)):
                if value:
                    axes.text(value, y + offset, f" {value:.1f}", va="center", fontsize=6)
        widest = max(max(before, after) for _, before, after in rows)
        axes.set(xlim=(0, widest * 1.12 or 1), ylim=(len(rows) - 0.4, -0.6), yticks=[])
        axes.set_xlabel("µs per run, from the runtime's profile")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, fontsize=7)

    title = f"Time of the {len(rows)} slowest nodes in both models"
    return draw(key, title, (WIDTH, 0.9 + 0.36 * len(rows)), paint)


def _slowest(
    before: Sequence[NodeTime], after: Sequence[NodeTime]
) -> list[tuple[str, float, float]]:
    """Label and time in both models, slowest first; a node of one model has 0 in the other."""
    times: dict[tuple[str, str], list[float]] = {}
    for side, profile in enumerate((before, after)):
        for node in profile:
            times.setdefault((node.name, node.op), [0.0, 0.0])[side] += node.us
    ranked = sorted(times.items(), key=lambda item: (-max(item[1]), item[0]))[:MOST_NODES]
    return [(f"{short(name, _NAME)} ({short(op, 20)})", us[0], us[1]) for (name, op), us in ranked]
