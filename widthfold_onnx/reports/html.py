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
from widthfold_onnx.results import OptimizeReport, VerifyReport
from widthfold_onnx.text import printable

MAX_ROWS = 100
"""Most rows of a table, so that a file stays below 3 MB for any model."""

_LONGEST = 1000
_NAME = 60
"""Most characters of a name in a table; its tooltip has the whole name."""


def page(report: AnyReport) -> str:
    """Render the report as a file of its own."""
    return _template("page.html").render(_context(report))


def part(report: AnyReport) -> str:
    """Render the report as a part of a page; pictures need matplotlib."""
    return _template("report.html").render(_context(report))


def _context(report: AnyReport) -> dict[str, object]:
    """Return the values that both templates show."""
    return {
        "signature": Markup(f"<!-- {report.schema} -->"),
        "description": described(report, is_full=True),
        "pictures": [] if find_spec("matplotlib") is None else _pictures(report),
        "is_number": lambda cell: isinstance(cell, str) and bool(NUMBER.fullmatch(cell)),
        "most": MAX_ROWS,
        "names": lambda table: table.short_names(_NAME),
    }


def _pictures(report: AnyReport) -> list[tuple[str, Markup]]:
    """Draw the timing of a report, else the gain of the whole model in a search."""
    from widthfold_onnx.reports import pictures

    # Different in all reports of a notebook, but always the same for one report.
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
