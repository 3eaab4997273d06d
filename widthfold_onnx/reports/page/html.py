"""Renders a verification as one HTML file: no network, no script, for phones and dark screens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from widthfold_onnx.errors import UsageError
from widthfold_onnx.reports import MISSING, wording
from widthfold_onnx.reports.files import signature
from widthfold_onnx.results import FoldedNode, VerifyReport
from widthfold_onnx.text import printable

MOST_ROWS = 100
MOST_HISTOGRAMS = 24
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
    """One fold and all sites that were folded so; they share text and pictures."""

    sites: list[FoldedNode]
    axes: list[AxisDrawing]


def render(report: VerifyReport) -> str:
    """Render the page.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from widthfold_onnx.reports.page import drawing, plots
    except ImportError as error:
        raise UsageError(MISSING) from error

    drawn = _drawn(report.folds, drawing)
    timing = report.timing
    pictures: list[tuple[str, Markup]] = []
    if timing is not None:
        pictures = [("Speed-up", plots.speed(timing)), ("Latency", plots.latency(timing))]
        if timing.original.nodes or timing.rewritten.nodes:
            pictures.append(("Where the time goes", plots.nodes(timing)))
    return _template().render(
        signature=Markup(signature(report.schema)),
        report=report,
        meaning=wording.meaning(report),
        verdict=wording.verdict(report),
        figure=wording.figure,
        size=wording.size,
        short=wording.short,
        difference=wording.difference,
        inputs=wording.inputs,
        pairs=wording.pairs,
        slowest=wording.slowest,
        reached=wording.reached,
        limits=wording.limits,
        baseline=wording.baseline,
        gpu=wording.gpu,
        ulp=wording.ulp,
        provider=wording.provider(report.environment),
        pictures=pictures,
        outputs=report.outputs[:MOST_ROWS],
        histograms=[
            plots.ulps(row, f"ulp{at}") if row.ulp_histogram else ""
            for at, row in enumerate(report.outputs[:MOST_HISTOGRAMS])
        ],
        proof="" if report.proof is None else wording.proof(report.proof),
        integers="" if report.integers is None else wording.integers(report.integers),
        certificate=[] if report.proof is None else list(wording.certificate(report.proof)),
        drawn=drawn,
        not_drawn=len(report.folds) - sum(len(fold.sites) for fold in drawn),
    )


def _drawn(sites: list[FoldedNode], drawing: ModuleType) -> list[FoldDrawing]:
    """Draw the first folds, as many as fit."""
    alike: dict[tuple[object, ...], list[FoldedNode]] = {}
    for site in sites:
        shape = msgspec.json.encode(site.axes)
        alike.setdefault((site.form, site.channels, shape), []).append(site)
    made: list[FoldDrawing] = []
    used = 0
    for at, group in enumerate(list(alike.values())[:MOST_FOLDS]):
        axes = [
            AxisDrawing(
                drawing.positions(axis, f"fold{at}p{number}"),
                drawing.kernel(axis, f"fold{at}k{number}"),
                drawing.explained(axis),
            )
            for number, axis in enumerate(group[0].axes)
        ]
        used += sum(len(axis.positions) + len(axis.kernel) for axis in axes)
        if used > MOST_DRAWN_BYTES:
            break
        made.append(FoldDrawing(group, axes))
    return made


@cache
def _template() -> Template:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    ).get_template("verify.html")


def _shown(value: object) -> object:
    """Escape the control characters of what the template shows, which then escapes HTML."""
    return value if isinstance(value, Markup) else printable(str(value), _LONGEST)
