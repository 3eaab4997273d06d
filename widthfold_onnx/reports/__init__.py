"""Renders results: one module for each form; `formats` chooses, `console` prints, `files` writes.

`described` turns a result into the tables and lines that every form shows. It imports `results`,
`text`, `errors` and constants of others. `cli` and `olive` import it; `results` does so by name.
"""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """A format of a result other than tables; GITHUB is for standard output only."""

    JSON = "json"
    JUNIT = "junit"
    MARKDOWN = "markdown"
    HTML = "html"
    GITHUB = "github"


SUFFIXES = {
    ".json": Format.JSON,
    ".xml": Format.JUNIT,
    ".md": Format.MARKDOWN,
    ".html": Format.HTML,
}
"""Format of a report file by its suffix."""

MISSING = "an html report needs matplotlib: pip install 'widthfold-onnx[report]'"
