"""Choose the formats of a result, render it, and write or print the text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import assert_never

import msgspec

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.atomic import check_own_target, write_file
from widthfold_onnx.reports.described import AnyReport, described
from widthfold_onnx.results import InspectReport, OptimizeReport, TuneReport, VerifyReport
from widthfold_onnx.text import quoted


class Format(StrEnum):
    """A format of a result beside tables; GITHUB is for standard output only."""

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

OFFERED: dict[type[AnyReport], tuple[Format, ...]] = {
    VerifyReport: tuple(Format),
    OptimizeReport: (Format.JSON, Format.MARKDOWN, Format.HTML, Format.GITHUB),
    InspectReport: (Format.JSON, Format.MARKDOWN, Format.HTML),
    TuneReport: (Format.JSON, Format.MARKDOWN, Format.HTML),
}


@dataclass(frozen=True)
class Destinations:
    """Where a result goes, and in which formats.

    Attributes:
        reports: report files; the suffix decides the format of a file.
        format: format on standard output; None means tables.
        details: True: the tables are full, False: brief.
    """

    reports: tuple[Path, ...] = ()
    format: Format | None = None
    details: bool = False

    def check(self, kind: type[AnyReport], protected: Sequence[Path]) -> None:
        """Check, before the work, that every format can be made and every file written.

        Args:
            kind: type of the result.
            protected: files that no report may replace, even if they do not exist yet.

        Raises:
            UsageError: an unknown suffix; a format that this result does not offer or whose library
                is missing; a path that cannot be written; or `details` for another format than
                tables, which always has them.
        """
        offered = OFFERED[kind]
        suffixes = [suffix for suffix, of_suffix in SUFFIXES.items() if of_suffix in offered]
        for index, path in enumerate(self.reports):
            check_own_target(path, [*protected, *self.reports[:index]], "report")
            if path.suffix.lower() not in suffixes:
                raise UsageError(
                    f"the suffix of report {quoted(str(path))} names no format of this command; it "
                    f"offers {', '.join(suffixes)}"
                )
        if self.format and self.format not in offered:
            raise UsageError(
                f"no {self.format} report of this command; it offers {', '.join(offered)}"
            )
        if self.format and self.details:
            raise UsageError(f"--details belongs to the tables, not to --format {self.format}")
        formats = [self.format, *(SUFFIXES[path.suffix.lower()] for path in self.reports)]
        if Format.HTML in formats and find_spec("matplotlib") is None:
            raise UsageError(
                "an html report needs matplotlib: pip install 'widthfold-onnx[report]'"
            )

    def deliver(self, result: AnyReport, model: Path) -> None:
        """Write every file in one step, then print the result.

        Args:
            result: the result, of the checked type.
            model: the model file as the caller named it, for annotations of that file.

        Raises:
            UsageError: a file cannot be written.
        """
        from widthfold_onnx.reports.console import show, write

        for path in self.reports:
            write_report(render(SUFFIXES[path.suffix.lower()], result, model), path)
        if self.format is None:
            show(described(result, is_full=self.details), whole_names=self.details)
        else:
            write(render(self.format, result, model))


def write_report(text: str, path: Path) -> None:
    """Write a rendered report in one step.

    Raises:
        UsageError: the file cannot be written.
    """
    check_own_target(path, (), "report")
    write_file(path, text.encode())


def render(report_format: Format, result: AnyReport, model: Path) -> str:
    """Render a result in a format that it offers, which imports the library of the format.

    Args:
        report_format: the format.
        result: the result of a command.
        model: the model file as the caller named it, for annotations of that file.
    """
    match report_format:
        case Format.JSON:
            # ASCII keeps control and bidi characters of a hostile model out of whatever shows it.
            return json.dumps(msgspec.to_builtins(result), indent=2, allow_nan=False) + "\n"
        case Format.MARKDOWN:
            from widthfold_onnx.reports import markdown

            return markdown.render(result)
        case Format.HTML:
            from widthfold_onnx.reports import html

            return html.page(result)
        case Format.GITHUB:
            from widthfold_onnx.reports import github

            assert isinstance(result, VerifyReport | OptimizeReport)
            return github.render(result, model)
        case Format.JUNIT:
            from widthfold_onnx.reports import junit

            assert isinstance(result, VerifyReport)
            return junit.render(result)
        case _:
            assert_never(report_format)
