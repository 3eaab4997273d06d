"""Draw times as SVG in the colours of the surrounding page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from html import escape

import matplotlib.style
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from widthfold_onnx.reports.words import short_text
from widthfold_onnx.results import NodeTime, Timing
from widthfold_onnx.runtime.intervals import noise

WIDTH = 4.4
"""Width of pictures in inches: letters of 8 pt are legible on a phone in portrait mode."""

INK, MUTED, RULE, BEFORE, AFTER = "#010101", "#020202", "#030303", "#040404", "#050505"
"""Placeholders for colours of the page, which differ between light and dark mode."""

_COLOURS = {INK: "ink", MUTED: "muted", RULE: "rule", BEFORE: "before", AFTER: "after"}
_STYLE = {
    "svg.fonttype": "none",  # text stays text: small, searchable, read aloud
    "text.parse_math": False,  # a "$" in a name of the model is a "$"
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "font.size": 8,
    "legend.frameon": False,
}
_EDITS = (
    (r"<metadata>.*?</metadata>|<style.*?</style>", ""),
    (r'<g id="[^"]*"', "<g"),
    (r'\n? xlink:href="#', ' href="#'),
    (r"font: ([\d.]+px) [^;]*", r"font-size: \1"),  # matplotlib 3.10
    (r"font-family: [^;]*; ", ""),
    *(
        (f"(fill|stroke): {stand_in}", rf"\1: var(--{colour})")
        for stand_in, colour in _COLOURS.items()
    ),
)
"""Replacements in the SVG of matplotlib, so that fonts and colours come from the page."""

MAX_DRAWN_NODES = 15
_NAME = 44


def draw(
    key: str,
    title: str,
    size: tuple[float, float],
    paint: Callable[[Axes], None],
    margins: tuple[float, float, float, float] | None = None,
) -> Markup:
    """Render one picture as an SVG element.

    Args:
        key: unique among the pictures of a page; ids in the SVG are derived from it.
        title: text alternative, for screen readers.
        size: width and height in inches.
        paint: draws on the axes.
        margins: left, right, bottom and top in inches; None: matplotlib finds them, which doubles
            the time.
    """
    buffer = io.StringIO()
    settings = {**_STYLE, "svg.hashsalt": key}
    with matplotlib.style.context(["default", settings]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a missing glyph: the font of the page counts
        figure = Figure(figsize=size, layout="constrained" if margins is None else None)
        paint(figure.subplots())
        if margins is not None:
            width, height = size
            at_left, at_right, below, above = margins
            figure.subplots_adjust(
                at_left / width, below / height, 1 - at_right / width, 1 - above / height
            )
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    _, root, content = re.split(r"(<svg [^>]*>)", buffer.getvalue(), maxsplit=1)
    for pattern, replacement in _EDITS:
        content = re.sub(pattern, replacement, content, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', root)
    assert box is not None
    label = escape(title)
    return Markup(
        f'<svg {box[0]} role="img" aria-label="{label}"><title>{label}</title>{content.strip()}'
    )


def speed(ratio: float, low: float, high: float, control: float, key: str) -> Markup:
    """Draw the speed-up and its interval over the A/A control, by which copies of a model differ.

    Dashed lines are the limits of noise: the verdict is faster or slower if the whole interval lies
    beyond one. A control of 0 is unknown and not drawn.
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


def nodes(timing: Timing, key: str) -> Markup:
    """Draw the times of the slowest nodes as bars, one for each model."""
    rows = _slowest(timing.original.nodes, timing.rewritten.nodes)

    def paint(axes: Axes) -> None:
        where = np.arange(len(rows)) * 1.0
        for offset, colour, name, at in (
            (0.05, BEFORE, "original", 1),
            (0.3, AFTER, "rewritten", 2),
        ):
            axes.barh(where + offset, [row[at] for row in rows], 0.25, color=colour, label=name)
        for y, (name, original, rewritten) in zip(where, rows, strict=True):
            axes.text(0, y - 0.12, f" {name}", va="bottom", ha="left", fontsize=7)
            for offset, value in ((0.05, original), (0.3, rewritten)):
                if value:
                    axes.text(value, y + offset, f" {value:.1f}", va="center", fontsize=6)
        widest = max(max(original, rewritten) for _, original, rewritten in rows)
        axes.set(xlim=(0, widest * 1.12 or 1), ylim=(len(rows) - 0.4, -0.6), yticks=[])
        axes.set_xlabel("µs per run, from the runtime's profile")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, fontsize=7)

    title = f"Time of the {len(rows)} slowest nodes in both models"
    return draw(key, title, (WIDTH, 0.9 + 0.36 * len(rows)), paint)


def _slowest(
    original: Sequence[NodeTime], rewritten: Sequence[NodeTime]
) -> list[tuple[str, float, float]]:
    """Return label and times of nodes, slowest first; 0 for a model that lacks the node."""
    times: dict[tuple[str, str], list[float]] = {}
    for side, profile in enumerate((original, rewritten)):
        for node in profile:
            times.setdefault((node.name, node.op), [0.0, 0.0])[side] += node.us
    ranked = sorted(times.items(), key=lambda item: (-max(item[1]), item[0]))[:MAX_DRAWN_NODES]
    return [(f"{short_text(n, _NAME)} ({short_text(op, 20)})", a, b) for (n, op), (a, b) in ranked]
