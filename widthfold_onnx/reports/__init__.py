"""One result, many forms: a file for each form, `forms` to choose, `console` to print."""

from __future__ import annotations

from enum import StrEnum


class Form(StrEnum):
    """How a result is written where tables are not wanted; GITHUB is for standard output only."""

    JSON = "json"
    JUNIT = "junit"
    MARKDOWN = "markdown"
    HTML = "html"
    GITHUB = "github"


SUFFIXES = {".json": Form.JSON, ".xml": Form.JUNIT, ".md": Form.MARKDOWN, ".html": Form.HTML}
"""What the suffix of a report file says."""

MISSING = "an html report needs matplotlib: pip install 'widthfold-onnx[report]'"
