"""Renders results: one module for each form, `forms` to choose, `console` to print."""

from __future__ import annotations

from enum import StrEnum


class Form(StrEnum):
    """A form of a result other than tables; GITHUB is for standard output only."""

    JSON = "json"
    JUNIT = "junit"
    MARKDOWN = "markdown"
    HTML = "html"
    GITHUB = "github"


SUFFIXES = {".json": Form.JSON, ".xml": Form.JUNIT, ".md": Form.MARKDOWN, ".html": Form.HTML}
"""Form of a report file by its suffix."""

MISSING = "an html report needs matplotlib: pip install 'widthfold-onnx[report]'"
