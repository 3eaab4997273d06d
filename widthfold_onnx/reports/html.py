"""Render a report as HTML: one file for a browser, or a part of a page for a notebook.

Neither needs a network or a script; both fit phones and dark screens.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from widthfold_onnx.reports.described import AnyReport, described
from widthfold_onnx.reports.description import NUMBER
from widthfold_onnx.reports.words import short_text
from widthfold_onnx.results import FoldReport, OptimizeReport, VerifyReport
from widthfold_onnx.text import printable

MAX_ROWS = 100
MAX_FOLDS = 24
MAX_DRAWN_BYTES = 1_500_000
"""All caps together keep the file below 3 MB, whatever the model."""

_LONGEST = 1000
_NAME = 60
"""Characters of a name in a table; the whole name is its tooltip."""

Drawing = tuple[list[FoldReport], list[tuple[Markup, Markup, str]]]
"""Nodes that are folded alike; positions, kernel and explanation of each axis."""


def page(report: AnyReport) -> str:
    """Render the report as a file of its own; the file of a verification draws the folds."""
    folds = report.folds if isinstance(report, VerifyReport) else []
    return _template("page.html").render(_context(report, folds))


def part(report: AnyReport) -> str:
    """Render the report as a part of a page, without folds; pictures need matplotlib."""
    return _template("report.html").render(_context(report, []))


def _context(report: AnyReport, folds: list[FoldReport]) -> dict[str, object]:
    """Return the values that both templates show."""
    drawings = _drawings(folds) if folds else []
    return {
        "signature": Markup(f"<!-- {report.schema} -->"),
        "description": described(report, is_full=True),
        "pictures": [] if find_spec("matplotlib") is None else _pictures(report),
        "drawings": drawings,
        "not_drawn": len(folds) - sum(len(nodes) for nodes, _ in drawings),
        "is_number": lambda cell: isinstance(cell, str) and bool(NUMBER.fullmatch(cell)),
        "most": MAX_ROWS,
        "names": lambda table: table.short_names(_NAME),
        "short": short_text,
    }


def _pictures(report: AnyReport) -> list[tuple[str, Markup]]:
    """Draw the times of a report, or the gain of a search that nothing else timed."""
    from widthfold_onnx.reports import pictures

    # Ids are unique among all reports of a notebook, and a report always has the same.
    key = hashlib.sha256(msgspec.json.encode(report)).hexdigest()[:12]
    checks = report.verification if isinstance(report, OptimizeReport) else report
    search = report.search if isinstance(report, OptimizeReport) else None
    if isinstance(checks, VerifyReport) and (timing := checks.timing) is not None:
        interval = (timing.speedup, timing.low, timing.high)
        drawings = [("Speed-up", pictures.speed(*interval, timing.control, f"{key}speed"))]
        if timing.original.nodes or timing.rewritten.nodes:
            drawings.append(("Where the time goes", pictures.nodes(timing, f"{key}nodes")))
        return drawings
    if search is not None and (model_gain := search.whole) is not None and model_gain.pairs:
        interval = (model_gain.ratio, model_gain.low, model_gain.high)
        picture = pictures.speed(*interval, search.control, f"{key}speed")
        return [("Speed-up of the whole model", picture)]
    return []


def _drawings(folds: list[FoldReport]) -> list[Drawing]:
    """Draw the first folds, as many as fit; equal folds share a drawing."""
    from widthfold_onnx.reports.pictures import explanation, kernel, positions

    alike: dict[bytes, list[FoldReport]] = {}
    for node in folds:
        alike.setdefault(msgspec.json.encode((node.form, node.channels, node.axes)), []).append(
            node
        )
    drawings: list[Drawing] = []
    size = 0
    for nodes in list(alike.values())[:MAX_FOLDS]:
        key = f"fold{len(drawings)}"
        axes = [
            (
                positions(axis, f"{key}positions{place}"),
                kernel(axis, f"{key}kernel{place}"),
                explanation(axis),
            )
            for place, axis in enumerate(nodes[0].axes)
        ]
        size += sum(len(row) + len(band) for row, band, _ in axes)
        if size > MAX_DRAWN_BYTES:
            break
        drawings.append((nodes, axes))
    return drawings


@cache
def _template(name: str) -> Template:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_escape,
    ).get_template(name)


def _escape(value: object) -> object:
    """Escape the control characters of a value that a template shows; the template escapes HTML."""
    return value if isinstance(value, Markup) else printable(str(value), _LONGEST)
