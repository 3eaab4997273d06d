"""Let notebooks show reports as HTML; `api` calls this, as it may be used in a notebook."""

from __future__ import annotations

from widthfold_onnx.reports.described import AnyReport
from widthfold_onnx.results import Report


def show_as_html() -> None:
    """Give every report its HTML, as `reports.html.part` renders it."""
    Report.as_html = _part


def _part(report: AnyReport) -> str:
    # Imported here because the templates take a while to import and most callers show nothing.
    from widthfold_onnx.reports.html import part

    return part(report)
