"""Draw times and folds as SVG that has the colours of its page, and ids of its own.

The picture of a fold shows which positions become channels, and where each tap of the kernel goes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from html import escape

import matplotlib.style
import numpy as np
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from widthfold_onnx.reports.words import short_text
from widthfold_onnx.results import AxisPattern, NodeTime, Timing
from widthfold_onnx.runtime.intervals import noise

WIDTH = 4.4
"""Inches; at 8 pt letters this is legible on a phone without turning it."""

INK, MUTED, RULE, BEFORE, AFTER = "#010101", "#020202", "#030303", "#040404", "#050505"
"""Stand-ins for the page's colours, which differ between a light and a dark screen."""

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
"""Changes to the SVG of matplotlib: the page has the fonts and the colours."""

MAX_DRAWN_NODES = 15
_NAME = 44


def draw(
    key: str,
    title: str,
    size: tuple[float, float],
    paint: Callable[[Axes], None],
    margins: tuple[float, float, float, float] | None = None,
) -> Markup:
    """Make one picture.

    Args:
        key: unique among the pictures of a page; the ids inside depend on it.
        title: text for readers who cannot see the picture.
        size: width and height in inches.
        paint: draws on the axes.
        margins: left, right, bottom and top in inches; None lets matplotlib measure, which takes
            it twice the time.
    """
    buffer = io.StringIO()
    settings = {**_STYLE, "svg.hashsalt": key}
    with matplotlib.style.context(["default", settings]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that matplotlib's font lacks, the viewer has
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
    """Label and time in both models, slowest first; a node of one model has 0 in the other."""
    times: dict[tuple[str, str], list[float]] = {}
    for side, profile in enumerate((original, rewritten)):
        for node in profile:
            times.setdefault((node.name, node.op), [0.0, 0.0])[side] += node.us
    ranked = sorted(times.items(), key=lambda item: (-max(item[1]), item[0]))[:MAX_DRAWN_NODES]
    return [(f"{short_text(n, _NAME)} ({short_text(op, 20)})", a, b) for (n, op), (a, b) in ranked]


_CELLS = 16
_ROWS, _COLUMNS = 32, 48
_MAX_NUMBERS = 300
_LETTER = 7
_PALE = [to_hex(colour) for colour in colormaps["Set3"].colors]  # type: ignore[attr-defined]
_BLACK = "#101010"
"""Text in cells is black on every screen, because cells are pale on every screen."""


def colour(index: int) -> str:
    """Return the colour of a tile, or of a tap, counted from -1 down to look different."""
    return _PALE[index % len(_PALE)]


def explanation(axis: AxisPattern) -> str:
    """Return a sentence that explains the drawings of an axis."""
    cells = axis.out_tile * axis.in_tile * axis.kernel
    kind = "blocks of positions" if axis.blocked else "neighbouring positions"
    reads = f"{axis.in_tile} {kind} of the input become channels"
    if axis.in_tile == 1:
        reads = "the input is read as it is"
    returns = f"{axis.out_tile} of the output come back from channels"
    if axis.out_tile == 1:
        returns = "the output is returned as it is"
    taps = f", where {len(axis.taps)} of {cells} places hold a tap and the others are zero"
    return (
        f"{axis.axis}: {reads} and {returns}; the kernel of {axis.original_kernel} becomes one of "
        f"{axis.kernel} at stride {axis.stride}"
        f"{f'{taps}.' if axis.taps else '. It has too many taps to be drawn.'}"
    )


def positions(axis: AxisPattern, key: str) -> Markup:
    """Draw the input as a row of positions, and below it the same positions as tiles in channels.

    The drawing is empty where the input is not packed.
    """
    if axis.in_tile == 1:
        return Markup()
    extent = None if axis.in_length is None else max(1, axis.in_length // axis.in_tile)
    tiles = min(axis.in_tile, _CELLS // 2)
    places = min(extent or _CELLS, max(2, _CELLS // tiles))
    is_tall, is_wide = axis.in_tile > tiles, places != extent
    # A group of neighbours is a tile where tiles are blocks, else the same place of every tile.
    groups, members = (tiles, places) if axis.blocked else (places, tiles)
    is_group_cut, are_groups_cut = (is_wide, is_tall) if axis.blocked else (is_tall, is_wide)

    def number(tile: int, place: int) -> str:
        if not axis.blocked:
            return str(place * axis.in_tile + tile)
        return "" if extent is None else str(tile * extent + place)

    def paint(axes: Axes) -> None:
        x = 0.0
        for group in range(groups):
            for member in range(members):
                tile, place = (group, member) if axis.blocked else (member, group)
                cell(axes, x, 0, colour(tile), number(tile, place))
                x += 1
            if is_group_cut or (are_groups_cut and group + 1 == groups):
                axes.text(x + 0.5, 0.5, "…", ha="center", va="center", color=INK)
                x += 1
            elif group + 1 < groups:
                x += 0.3
        width, height = places + is_wide, tiles + is_tall
        scale = max(x, width + 6)
        start = (scale - width) / 2
        axes.text(scale / 2, 1.55, "↓", ha="center", va="center", fontsize=11, color=MUTED)
        for tile in range(tiles):
            for place in range(places):
                cell(axes, start + place, 2.1 + tile, colour(tile), number(tile, place))
            axes.text(start - 0.2, 2.6 + tile, f"tile {tile}", ha="right", va="center",
                      fontsize=_LETTER)  # fmt: skip
        if is_tall:
            axes.text(start + places / 2, 2.6 + tiles, "⋮", ha="center", va="center")
        if is_wide:
            axes.text(start + places + 0.5, 2.1 + tiles / 2, "…", ha="center")
        axes.text(start + width + 0.2, 2.1 + tiles / 2, "each tile:\nall channels",
                  va="center", fontsize=_LETTER, color=MUTED)  # fmt: skip
        axes.set(xlim=(-0.1, scale + 0.1), ylim=(2.2 + height, -0.1), aspect="equal")
        axes.set_axis_off()

    title = f"Input positions along {axis.axis}, coloured by tile, before and after the fold"
    size = (WIDTH, 0.9 + 0.24 * (tiles + is_tall))
    return draw(key, title, size, paint, (0.05, 0.05, 0.05, 0.05))


def cell(axes: Axes, x: float, y: float, fill: str, text: str) -> None:
    """Draw a position or a tap."""
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=fill, edgecolor=MUTED, lw=0.5))
    _number(axes, x, y, text, _LETTER if len(text) < 3 else 5.5)


def _number(axes: Axes, x: float, y: float, text: str, size: float) -> None:
    axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=size, color=_BLACK)


def kernel(axis: AxisPattern, key: str) -> Markup:
    """Draw the expanded kernel along one axis: which tap stands where; empty places are zero.

    Columns stand in the order of the input positions that they read, which makes the taps a band.
    The drawing is empty where the taps are not recorded.
    """
    if not axis.taps:
        return Markup()
    tiles = min(axis.in_tile, max(1, _COLUMNS // axis.kernel))
    rows, columns = min(axis.out_tile, _ROWS), tiles * axis.kernel
    cut = rows < axis.out_tile or tiles < axis.in_tile
    by_tile = axis.blocked or 1 in (axis.kernel, tiles)  # else one line for each kernel position
    groups, group_size = (tiles, axis.kernel) if by_tile else (axis.kernel, tiles)

    def paint(axes: Axes) -> None:
        cells: dict[int, list[tuple[int, int]]] = {}
        for out_digit, in_digit, place, tap in axis.taps:
            if in_digit < tiles and out_digit < rows:
                x = in_digit * group_size + place if by_tile else place * group_size + in_digit
                cells.setdefault(tap, []).append((x, out_digit))
        has_numbers = sum(map(len, cells.values())) <= _MAX_NUMBERS
        for tap, corners in cells.items():
            squares = [[(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)] for x, y in corners]
            axes.add_collection(
                PolyCollection(squares, facecolor=colour(-1 - tap), lw=0), autolim=False
            )
            for x, y in corners if has_numbers else []:
                _number(axes, x, y, str(tap), _LETTER if columns <= _CELLS * 1.5 else 5)
        axes.vlines(range(0, columns + 1, group_size), 0, rows, color=MUTED, lw=0.7)
        axes.hlines(range(rows + 1), 0, columns, color=RULE, lw=0.5, zorder=0)
        ticks = range(0, groups, -(-groups // 12))
        axes.set_xticks([(tick + 0.5) * group_size for tick in ticks], list(map(str, ticks)))
        ticks = range(0, rows, -(-rows // 12))
        axes.set_yticks([tick + 0.5 for tick in ticks], list(map(str, ticks)))
        axes.set(xlim=(0, columns), ylim=(rows, 0))
        names = ("input tile", "kernel position")
        group, member = names if by_tile else names[::-1]
        inner = f", each with {member}s 0..{group_size - 1}" if group_size > 1 else ""
        part = f" (the first {rows} by {tiles} tiles)" if cut else ""
        axes.set_xlabel(f"{group}{inner}{part}")
        axes.set_ylabel("output tile")
        axes.tick_params(length=0)

    title = (
        f"Expanded kernel along {axis.axis}: {axis.out_tile} output tiles by {axis.in_tile} "
        f"input tiles of {axis.kernel} positions"
        f"{f', the first {rows} by {tiles} drawn' if cut else ''}"
    )
    return draw(
        key, title, (WIDTH, min(4.4, 0.8 + 0.2 * max(rows, 3))), paint, (0.45, 0.05, 0.45, 0.05)
    )
