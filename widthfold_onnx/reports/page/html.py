"""Renders a report as HTML: one file for a browser, or a part of a page for a notebook.

Neither needs a network or a script; both fit phones and dark screens.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from widthfold_onnx.errors import UsageError
from widthfold_onnx.reports import MISSING
from widthfold_onnx.reports.described import Report, described
from widthfold_onnx.reports.description import NUMBER, Detail
from widthfold_onnx.reports.files import signature
from widthfold_onnx.reports.words import short
from widthfold_onnx.results import FoldedNode, OptimizeReport, VerifyReport
from widthfold_onnx.text import printable

MOST_ROWS = 100
MOST_FOLDS = 24
MOST_DRAWN_BYTES = 1_500_000
"""All caps together keep the file below 3 MB, whatever the model."""

_LONGEST = 1000


@dataclass(frozen=True)
class AxisDrawing:
    """The pictures of one folded axis and the sentence below them."""

    positions: Markup
    kernel: Markup
    sentence: str


@dataclass(frozen=True)
class FoldDrawing:
    """One fold and all nodes that were folded so; they share text and pictures."""

    nodes: list[FoldedNode]
    axes: list[AxisDrawing]


def page(report: Report) -> str:
    """Render the report as a file of its own; the file of a verification draws the folds.

    Raises:
        UsageError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UsageError(MISSING)
    folds = report.folds if isinstance(report, VerifyReport) else []
    return _template("page.html").render(_context(report), **_folds(folds))


def part(report: Report) -> str:
    """Render the report as a part of a page, without folds; pictures need matplotlib."""
    return _template("report.html").render(_context(report), **_folds([]))


def _context(report: Report) -> dict[str, object]:
    """Return the values that both templates show."""
    pictures: list[tuple[str, Markup]] = []
    if find_spec("matplotlib") is not None:
        # Ids are unique among all reports of a notebook, and a report always has the same.
        key = f"w{hashlib.sha256(msgspec.json.encode(report)).hexdigest()[:12]}-"
        pictures = _pictures(report, key)
    return {
        "signature": Markup(signature(report.schema)),
        "description": described(report, Detail.PAGE),
        "pictures": pictures,
        "is_number": lambda cell: isinstance(cell, str) and bool(NUMBER.fullmatch(cell)),
        "most": MOST_ROWS,
        "short": short,
    }


def _pictures(report: Report, key: str) -> list[tuple[str, Markup]]:
    """Draw the times of a report, or the gain of a search that nothing else timed."""
    from widthfold_onnx.reports.page import plots

    checks = report.verification if isinstance(report, OptimizeReport) else report
    if isinstance(checks, VerifyReport) and (timing := checks.timing) is not None:
        ratio = (timing.speedup, timing.low, timing.high)
        pictures = [
            ("Speed-up", plots.speed(*ratio, timing.control, f"{key}speed")),
            ("Latency", plots.latency(timing, f"{key}latency")),
        ]
        if timing.original.nodes or timing.rewritten.nodes:
            pictures.append(("Where the time goes", plots.nodes(timing, f"{key}nodes")))
        return pictures
    search = report.search if isinstance(report, OptimizeReport) else None
    if search is not None and search.whole is not None and search.whole.pairs:
        whole = search.whole
        speed = plots.speed(whole.ratio, whole.low, whole.high, 0.0, f"{key}speed")
        return [("Speed-up of the whole model", speed)]
    return []


def _folds(folds: list[FoldedNode]) -> dict[str, object]:
    """Draw the first folds, as many as fit, and count the nodes of the others."""
    drawn: list[FoldDrawing] = []
    if folds:
        from widthfold_onnx.reports.page import drawing

        drawn = _drawn(folds, drawing)
    return {"drawn": drawn, "not_drawn": len(folds) - sum(len(fold.nodes) for fold in drawn)}


def _drawn(folds: list[FoldedNode], drawing: ModuleType) -> list[FoldDrawing]:
    alike: dict[bytes, list[FoldedNode]] = {}
    for node in folds:
        alike.setdefault(msgspec.json.encode((node.form, node.channels, node.axes)), []).append(
            node
        )
    drawn: list[FoldDrawing] = []
    used = 0
    for at, nodes in enumerate(list(alike.values())[:MOST_FOLDS]):
        axes = [
            AxisDrawing(
                drawing.positions(axis, f"fold{at}p{number}"),
                drawing.kernel(axis, f"fold{at}k{number}"),
                drawing.explained(axis),
            )
            for number, axis in enumerate(nodes[0].axes)
        ]
        used += sum(len(axis.positions) + len(axis.kernel) for axis in axes)
        if used > MOST_DRAWN_BYTES:
            break
        drawn.append(FoldDrawing(nodes, axes))
    return drawn


@cache
def _template(name: str) -> Template:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    ).get_template(name)


def _shown(value: object) -> object:
    """Escape the control characters of what the template shows, which then escapes HTML."""
    return value if isinstance(value, Markup) else printable(str(value), _LONGEST)
