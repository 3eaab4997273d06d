#!/usr/bin/env python3
"""Draw the pictures of README.md and docs/folds.md into docs/images/.

usage: pictures.py [NAME...]

fold.svg, strided.svg, depthwise.svg, transposed.svg and matmul.svg: small layers that are really
    folded.
session.svg: a terminal in which `widthfold` really runs.
gains.svg: what benchmarks/published.json says of the models that auto makes faster.

All but session.svg are the same bytes in every run; they follow a light or a dark screen, and
bring a background of their own, so that they are legible on any page.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import pty  # noqa: TID253 - a terminal is recorded on Unix
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from benchmark.report import NOT_RUN, Suite, label_ratios, lengths
from campaign.report import read
from markupsafe import Markup, escape
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from onnx import helper, numpy_helper
from rich.console import Console
from rich.text import Text

from widthfold_onnx import fold
from widthfold_onnx.reports.pictures import (
    AFTER,
    BEFORE,
    INK,
    MUTED,
    RULE,
    WIDTH,
    draw,
)
from widthfold_onnx.results import AxisPattern
from widthfold_onnx.rewrite.record import FOLD_KEY, FoldRecord, read_record

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
SESSION = (
    "widthfold optimize models/pitch_cnn.onnx out.onnx --factor 8",
    "widthfold verify models/pitch_cnn.onnx out.onnx --no-timing",
)
COLUMNS = 88
COMPARED = {"auto": ("folded by auto", AFTER), "OpenVINO": ("original in OpenVINO", BEFORE)}
SCALE = 1.6
"""Pixels per point of matplotlib."""
STYLE = """
svg { --paper: #fff; --ink: #1b1f24; --muted: #6a737d; --rule: #d5d9de; --before: #d97706;
  --after: #2563eb; font-family: system-ui, sans-serif; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #14171b; --ink: #e8eaed; --muted: #9aa4af; --rule: #3a414a; --before: #f59e0b;
    --after: #60a5fa; } }
text { fill: var(--ink); }
.caption { font-size: 9px; }
"""


class Example(NamedTuple):
    """A layer of one operator, and how it is folded."""

    op: str
    input: Sequence[int]
    weight: Sequence[int]
    options: Mapping[str, Any]
    attributes: Mapping[str, Any] = {}
    more: str = ""
    """What the caption says of the attributes."""


FOLDS = {
    "fold": Example("Conv", (1, 1, 1, 16), (4, 1, 1, 3), {"factor": 4}, {"pads": [0, 1, 0, 1]}),
    "strided": Example(
        *("Conv", (1, 1, 1, 16), (1, 1, 1, 4), {"form": "strides"}),
        {"strides": [1, 2], "pads": [0, 1, 0, 1]},
        " at stride 2",
    ),
    "depthwise": Example(
        *("Conv", (1, 2, 1, 16), (2, 1, 1, 3), {"factor": 4, "axis": "width"}),
        {"group": 2, "pads": [0, 1, 0, 1]},
        " in 2 groups",
    ),
    "transposed": Example(
        *("ConvTranspose", (1, 1, 1, 8), (1, 1, 1, 4), {"form": "strides"}),
        {"strides": [1, 2], "pads": [0, 1, 0, 1]},
        " at stride 2",
    ),
    "matmul": Example("MatMul", (1, 16, 3), (3, 3), {"factor": 4}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], metavar="NAME")
    IMAGES.mkdir(exist_ok=True)
    for name in parser.parse_args().names or PICTURES:
        (IMAGES / f"{name}.svg").write_text(PICTURES[name]())


def fold_picture(example: Example) -> str:
    """One layer's weight and positions before and after."""
    op, record = folded(example)
    (axis,) = record.axes
    before, after = (text.strip() for text in record.channels.split(", folded"))

    def taps(axes: Axes) -> None:
        for tap in range(axis.original_kernel):
            cell(axes, tap, 0, colour(-1 - tap), str(tap))
        axes.set(xlim=(-0.1, axis.original_kernel + 16.1), ylim=(1.1, -0.1))
        axes.set_aspect("equal", anchor="W")
        axes.set_axis_off()

    weight = draw("taps", "The kernel of the layer", (WIDTH, 0.3), taps, (0.05, 0.05, 0.02, 0.02))
    each = "rows" if axis.axis == "rows" else "positions"
    packs = f"Every {axis.in_tile} neighbouring {each} become channels:"
    if axis.in_tile == 1:
        packs = "The input is read as it is."
    unpacks = f"Every {axis.out_tile} channels become neighbouring {each} of the output."
    if axis.out_tile == 1:
        unpacks = "The output is returned as it is."
    mirrored = "mirrored " if example.op == "ConvTranspose" else ""
    kernel_of = f"a {mirrored}kernel of {axis.original_kernel} taps"
    same = "the same taps, elsewhere zeros"
    if axis.original_kernel == 1:
        kernel_of, same = "its weight", "the weight on the diagonal, elsewhere zeros"
    stride = f" at stride {axis.stride}" if "strides" in example.attributes else ""
    return page(
        f"A {example.op} before and after a fold",
        [
            f"Before: {example.op} {before}{example.more}, {kernel_of}:",
            weight,
            packs,
            positions(axis, "positions"),
            f"After: {op} {after}{stride}, {same}:",
            kernel(axis, "kernel"),
            unpacks,
        ],
    )


LETTER = 7
POSITIONS = 16
"""Drawn of an axis of any extent."""

PALE = [to_hex(colour) for colour in colormaps["Set3"].colors]  # type: ignore[attr-defined]
BLACK = "#101010"
"""Text in cells is black on every screen, because cells are pale on every screen."""


def colour(index: int) -> str:
    """The colour of a tile, or of a tap, counted from -1 down to look different."""
    return PALE[index % len(PALE)]


def cell(axes: Axes, x: float, y: float, fill: str, text: str) -> None:
    """Draw a position or a tap."""
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=fill, edgecolor=MUTED, lw=0.5))
    number(axes, x, y, text, LETTER)


def number(axes: Axes, x: float, y: float, text: str, size: float) -> None:
    axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=size, color=BLACK)


def positions(axis: AxisPattern, key: str) -> Markup:
    """Draw the input as a row of positions, and below it the same positions as tiles in channels.

    The drawing is empty where the input is not packed.
    """
    if axis.in_tile == 1:
        return Markup()
    tiles = axis.in_tile
    is_open = axis.in_length is None
    places = POSITIONS // tiles if axis.in_length is None else axis.in_length // tiles
    width = places + is_open

    def paint(axes: Axes) -> None:
        x = 0.0
        for place in range(places):
            for tile in range(tiles):
                cell(axes, x, 0, colour(tile), str(place * tiles + tile))
                x += 1
            x += 0.3 * (place + 1 < places)
        if is_open:
            axes.text(x + 0.5, 0.5, "…", ha="center", va="center", color=INK)
            x += 1
        scale = max(x, width + 6)
        start = (scale - width) / 2
        axes.text(scale / 2, 1.55, "↓", ha="center", va="center", fontsize=11, color=MUTED)
        for tile in range(tiles):
            for place in range(places):
                cell(axes, start + place, 2.1 + tile, colour(tile), str(place * tiles + tile))
            axes.text(start - 0.2, 2.6 + tile, f"tile {tile}", ha="right", va="center",
                      fontsize=LETTER)  # fmt: skip
        if is_open:
            axes.text(start + places + 0.5, 2.1 + tiles / 2, "…", ha="center")
        axes.text(start + width + 0.2, 2.1 + tiles / 2, "each tile:\nall channels",
                  va="center", fontsize=LETTER, color=MUTED)  # fmt: skip
        axes.set(xlim=(-0.1, scale + 0.1), ylim=(2.2 + tiles, -0.1), aspect="equal")
        axes.set_axis_off()

    title = f"Input positions along {axis.axis}, coloured by tile, before and after the fold"
    return draw(key, title, (WIDTH, 0.9 + 0.24 * tiles), paint, (0.05, 0.05, 0.05, 0.05))


def kernel(axis: AxisPattern, key: str) -> Markup:
    """Draw the expanded kernel along one axis: which tap stands where; empty places are zero.

    Columns stand in the order of the input positions that they read, which makes the taps a band.
    """
    rows, columns = axis.out_tile, axis.in_tile * axis.kernel
    by_tile = 1 in (axis.kernel, axis.in_tile)  # else one line for each kernel position
    names, counts = ("input tile", "kernel position"), (axis.in_tile, axis.kernel)
    (group, member), (groups, members) = (names, counts) if by_tile else (names[::-1], counts[::-1])

    def paint(axes: Axes) -> None:
        cells: dict[int, list[tuple[int, int]]] = {}
        for out_digit, in_digit, place, tap in axis.taps:
            x = in_digit * members + place if by_tile else place * members + in_digit
            cells.setdefault(tap, []).append((x, out_digit))
        for tap, corners in cells.items():
            squares = [[(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)] for x, y in corners]
            axes.add_collection(
                PolyCollection(squares, facecolor=colour(-1 - tap), lw=0), autolim=False
            )
            for x, y in corners:
                number(axes, x, y, str(tap), LETTER)
        axes.vlines(range(0, columns + 1, members), 0, rows, color=MUTED, lw=0.7)
        axes.hlines(range(rows + 1), 0, columns, color=RULE, lw=0.5, zorder=0)
        axes.set_xticks([(tick + 0.5) * members for tick in range(groups)], map(str, range(groups)))
        axes.set_yticks([tick + 0.5 for tick in range(rows)], map(str, range(rows)))
        axes.set(xlim=(0, columns), ylim=(rows, 0))
        inner = f", each with {member}s 0..{members - 1}" if members > 1 else ""
        axes.set_xlabel(f"{group}{inner}")
        axes.set_ylabel("output tile")
        axes.tick_params(length=0)

    title = (
        f"Expanded kernel along {axis.axis}: {rows} output tiles by {axis.in_tile} input tiles of "
        f"{axis.kernel} positions"
    )
    size = (WIDTH, 0.8 + 0.2 * max(rows, 3))
    return draw(key, title, size, paint, (0.45, 0.05, 0.45, 0.05))


def folded(example: Example) -> tuple[str, FoldRecord]:
    """The operator that a small layer becomes, and the record of its fold."""
    values = helper.make_tensor_value_info
    element = onnx.TensorProto.FLOAT
    node = helper.make_node(example.op, ["x", "w"], ["y"], **example.attributes)
    weight = numpy_helper.from_array(np.ones(example.weight, np.float32), "w")
    ends = [values("x", element, example.input)], [values("y", element, None)]
    graph = helper.make_graph([node], "small", *ends, [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    new = fold(model, **example.options).graph.node
    ((op, text),) = [
        (n.op_type, e.value) for n in new for e in n.metadata_props if e.key == FOLD_KEY
    ]
    return op, read_record(text)


def gains_picture(suite: Suite) -> str:
    """Speed-ups with intervals of the models that auto makes faster, the greatest first."""
    rows = [row for row in suite.rows if row.cells.get("auto", NOT_RUN).ratio is not None]
    rows.sort(key=lambda row: -(row.cells["auto"].ratio or 0))

    greatest = max((cell.high or 1 for row in rows for cell in row.cells.values()), default=1)
    names = list(map(str, rows))

    def paint(axes: Axes) -> None:
        bar = 0.8 / len(COMPARED)
        for place, (name, (label, fill)) in enumerate(COMPARED.items()):
            column = [(i, row.cells.get(name, NOT_RUN)) for i, row in enumerate(rows)]
            timed = [(i, cell) for i, cell in column if cell.ratio is not None]
            ratios, reach = lengths([cell for _, cell in timed])
            heights = [i + (place - (len(COMPARED) - 1) / 2) * bar for i, _ in timed]
            axes.barh(heights, [r - 1 for r in ratios], bar, left=1, color=fill, label=label)
            axes.errorbar(ratios, heights, xerr=reach, fmt="none", ecolor=INK, elinewidth=1)
            for ratio, height, (_, shown) in zip(ratios, heights, timed, strict=True):
                at = max(shown.high or ratio, 1) * 1.04
                axes.text(at, height, f"{ratio:.2f}x", va="center", fontsize=6.5)
        axes.axvline(1, color=MUTED, linewidth=1)
        label_ratios(axes, axes.xaxis)
        axes.grid(axis="x", color=RULE, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.set_yticks(range(len(rows)), names, fontsize=7)
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(None, 1.5 * greatest))
        axes.tick_params(length=0)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, fontsize=7)

    title = "Speed-up of auto and of OpenVINO over the original in ONNX Runtime"
    chart = draw("gains", title, (WIDTH, 0.5 + 0.3 * len(rows)), paint)
    return page(title, ["Times as fast as the original in ONNX Runtime, 95 % intervals:", chart])


def page(title: str, parts: Sequence[str | Markup]) -> str:
    """Stack captions and drawings, with their colours; a drawing may be empty."""
    width, y, placed = WIDTH * 72 + 16, 6.0, []
    for part in filter(None, parts):
        if isinstance(part, Markup):
            wide, high = size(part)
            place = f'<svg x="8" y="{y:g}" width="{wide:g}" height="{high:g}" '
            placed.append(str(part).replace("<svg ", place, 1))
            y += high + 7
        else:
            placed.append(f'<text class="caption" x="8" y="{y + 10:g}">{escape(part)}</text>')
            y += 15
    extent = f'width="{SCALE * width:g}" height="{SCALE * y:g}" viewBox="0 0 {width:g} {y:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {extent} role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            '<rect width="100%" height="100%" rx="6" fill="var(--paper)"/>',
            *placed,
            "</svg>",
            "",
        ]
    )


def size(svg: str) -> tuple[float, float]:
    """Width and height of a picture, in its own units."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert box is not None
    return float(box[1]), float(box[2])


def session_picture(commands: Sequence[str] = SESSION) -> str:
    """Draw a terminal with the commands and their output."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").symlink_to(ROOT / "models")
        for command in commands:
            console.print(Text(f"$ {command}", "bold"))
            console.print(Text.from_ansi(terminal(command, Path(folder))))
    svg = console.export_svg(title="widthfold", unique_id="session")
    # Without a stranger's fonts, which a page may not load for a picture.
    svg = re.sub(r"@font-face {.*?}", "", svg, flags=re.DOTALL)
    width, height = size(svg)
    return svg.replace("<svg ", f'<svg width="{width:g}" height="{height:g}" ', 1)


def terminal(command: str, folder: Path) -> str:
    """Return the output of a command of widthfold on a terminal, with its colours."""
    program = "from widthfold_onnx.cli import main; main(prog_name='widthfold')"
    ours, theirs = pty.openpty()
    setting = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    child = subprocess.Popen(
        [sys.executable, "-c", program, *shlex.split(command)[1:]],
        cwd=folder,
        env=setting,
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    printed = b""
    with contextlib.suppress(OSError):  # raised on Linux when the last writer has closed it
        while some := os.read(ours, 1 << 16):
            printed += some
    os.close(ours)
    _, errors = child.communicate()
    if child.returncode:
        sys.exit(f"{command}: exit code {child.returncode}: {errors.decode()}")
    return printed.decode().replace("\r\n", "\n")


PICTURES: dict[str, Callable[[], str]] = {
    **{name: partial(fold_picture, example) for name, example in FOLDS.items()},
    "session": session_picture,
    "gains": lambda: gains_picture(read(ROOT / "benchmarks" / "published.json").suite()),
}

if __name__ == "__main__":
    main()
